"""What is read from the source of a class is what importing it says."""

from __future__ import annotations

import dataclasses
import inspect
import subprocess
import sys
from types import SimpleNamespace
from typing import get_type_hints

import pytest
import yaml
from hydra.utils import get_object

from chimera.config import schema
from chimera.paths import CONF


def targets() -> list[str]:
    """Every class or function of this package that conf/ names."""
    found: set[str] = set()

    def walk(node: object) -> None:
        if isinstance(node, dict):
            if str(node.get("_target_")).startswith("chimera."):
                found.add(node["_target_"])
            for inner in node.values():
                walk(inner)

    for file in CONF.rglob("*.yaml"):
        walk(yaml.safe_load(file.read_text(encoding="utf-8")))
    return sorted(found)


@pytest.mark.parametrize("target", targets())
def test_reading_is_as_good_as_importing(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    known = get_object(target)
    call = known.__init__ if inspect.isclass(known) else known
    hints = get_type_hints(call, include_extras=True)
    expected = {
        p.name: hints[p.name]
        for p in inspect.signature(known).parameters.values()
        if p.kind is inspect.Parameter.KEYWORD_ONLY
    }
    assert schema.keywords(target) is None  # imported by now
    monkeypatch.setattr(schema, "sys", SimpleNamespace(modules={}))  # as if nothing were imported
    read = schema.keywords(target)
    if dataclasses.is_dataclass(known):
        assert read is None  # of settings, which are quick to import
        return
    assert read is not None
    assert read.keys() == expected.keys()
    same = {key for key, hint in read.items() if repr(hint) == repr(expected[key])}
    opaque = {
        key for key, hint in expected.items() if "chimera." in repr(hint) or "torch" in repr(hint)
    }
    assert same | opaque == expected.keys()
    if hasattr(known, "causal"):
        assert schema.attribute(target, "causal") is known.causal


def test_checking_a_task_and_its_callbacks_imports_no_lightning() -> None:
    code = (
        "import sys; from chimera.train.check import check;"
        "from chimera.config.compose import compose, plain;"
        "check(plain(compose(['mixer=retnet', 'norm=qdyt', 'quant=bitnet158'])));"
        "sys.exit('lightning' in sys.modules or 'torch._dynamo' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
