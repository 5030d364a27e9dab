"""A bad command fails within a second, so nothing that is checked first may load torch."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hydra.utils import instantiate
from omegaconf import OmegaConf

from tests.data.kit import ROOT

#: All of these folders: what makes batches knows torch, what makes tokens does not.
FOLDERS = ("source", "corpus", "tokenizer", "encode")
NAMES = [
    f"{folder}.{file.stem}"
    for folder in FOLDERS
    for file in sorted((ROOT / "src/chimera/data" / folder).glob("[a-z]*.py"))
]
CHOICES = [
    file
    for pattern in ("data/*.yaml", "data/*/*.yaml", "tokenizer/*")
    for file in sorted((ROOT / "conf").glob(pattern))
]


def test_importing_loads_nothing_heavy() -> None:
    code = "\n".join(f"import chimera.data.{name}" for name in NAMES)
    code += "\nimport sys; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    heavy = {"torch", "lightning", "datasets", "transformers", "sentencepiece", "tokenizers"}
    assert not heavy & set(loaded.stdout.split())


def merged(file: Path) -> dict[str, Any]:
    """The keys of a choice over those of the one that its defaults name."""
    node: dict[str, Any] = yaml.safe_load(file.read_text())
    base, *_ = node.pop("defaults", ["_self_"])
    return node if base == "_self_" else merged(file.with_name(f"{base}.yaml")) | node


@pytest.mark.parametrize("file", CHOICES, ids=lambda file: f"{file.parent.name}={file.stem}")
def test_yaml_holds_every_key_with_its_default(file) -> None:
    node = merged(file)
    target = node.pop("_target_")
    node.pop("seq_len", None)
    node.pop("cache_dir", None)
    for made in (instantiate({"_target_": target, **node}), instantiate({"_target_": target})):
        fields = set(vars(made)) - {"seq_len", "cache_dir"}
        assert fields == set(node)
    defaults = vars(instantiate({"_target_": target}))
    different = {key for key, value in node.items() if defaults[key] != value}
    # A bound; where a second choice reads from; what has no default that any text would have; a
    # value of another group.
    assert different <= {"max_bytes", "path", "config", "stream", "sources", "snapshots", "size"}


@pytest.mark.parametrize("file", CHOICES, ids=lambda file: f"{file.parent.name}={file.stem}")
def test_yaml_resolves_inside_a_configuration(file, monkeypatch) -> None:
    monkeypatch.setenv("CHIMERA_CACHE", "/elsewhere")
    whole = OmegaConf.create({"model": {"max_len": 77}, "part": merged(file)})
    made = instantiate(OmegaConf.to_container(whole, resolve=True)["part"])
    if file.parent.name == "data":
        assert (made.seq_len, made.cache_dir) == (77, "/elsewhere")
        monkeypatch.delenv("CHIMERA_CACHE")
        assert whole.part.cache_dir == "~/.cache/chimera"
