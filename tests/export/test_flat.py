"""The code of an exported folder: flat, whole, and free of this package."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._library.custom_ops import CustomOpDef
from transformers.dynamic_module_utils import get_imports, get_relative_imports

from chimera.contract_tests import zoo
from chimera.errors import UserError
from chimera.export.hf import flat
from chimera.export.hf.modeling import GROUPS

NEEDED = {"torch", "einops", "transformers", "safetensors", *sys.stdlib_module_names}


def nodes(**choices: str) -> dict[str, Any]:
    config = zoo.config(**choices)
    return {group: config[group] for group in GROUPS}


def check(folder: Path, names: list[str]) -> None:
    """Every file compiles, imports files of the folder or known packages, and is imported."""
    assert sorted(file.name for file in folder.iterdir()) == names
    imported = {"modeling_chimera", "configuration_chimera"}
    for file in folder.iterdir():
        compile(file.read_text(), file.name, "exec")
        relative = set(get_relative_imports(file))
        assert {f"{name}.py" for name in relative} <= set(names), file.name
        assert set(get_imports(file)) <= NEEDED, file.name
        for node in ast.walk(ast.parse(file.read_text())):  # the library's own search sees all
            if isinstance(node, ast.ImportFrom) and node.level:
                assert node.module in relative or {f"{a.name}" for a in node.names} <= relative
        imported |= relative
    assert {f"{name}.py" for name in imported} == set(names)


@pytest.mark.parametrize(
    "choices",
    [
        {"mixer": "retnet", "quant": "bitnet158", "norm": "qdyt", "ffn": "moe", "position": "rope"},
        {"mixer": "interleaved", "quant": "hbit", "ffn": "swiglu", "position": "alibi"},
    ],
)
def test_files_import_each_other_only(choices: dict[str, str], tmp_path: Path) -> None:
    names = flat.write(tmp_path, nodes(**choices))
    check(tmp_path, names)
    assert f"chimera_mixer_{'retnet' if choices['mixer'] == 'retnet' else 'pattern'}.py" in names
    assert "chimera_config_settings.py" not in names
    assert "chimera_mixer_liza.py" not in names


def test_a_copy_leaves_operations_of_torch_to_the_package(tmp_path: Path, monkeypatch: Any) -> None:
    """A second operation of the same name would break the first one."""
    folder = tmp_path / "modèle"
    folder.mkdir()
    flat.write(folder, nodes(mixer="gated_delta", quant="hbit"))
    monkeypatch.syspath_prepend(tmp_path)
    x, h = torch.ones(2, 4, dtype=torch.bfloat16), torch.ones(4, 4, dtype=torch.bfloat16)
    copies = [file.stem for file in folder.iterdir() if "custom_op(" in file.read_text()]
    assert {"chimera_ops_conv", "chimera_ops_hadamard", "chimera_ops_recurrence"} <= {*copies}
    for name in copies:
        copy = importlib.import_module(f"modèle.{name}")
        own = importlib.import_module(name.replace("_", ".", 2))
        operations = {key for key, value in vars(own).items() if isinstance(value, CustomOpDef)}
        assert operations
        assert all(vars(copy)[key]._qualname != vars(own)[key]._qualname for key in operations)
        if name == "chimera_ops_hadamard":
            for module in (copy, own):
                assert torch.equal(module.half_product(x, h), torch.full((2, 4), 4.0))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("group", "name"), [(g, n) for g in GROUPS for n in zoo.names(g)], ids=lambda x: x
)
def test_files_of_every_part(group: str, name: str, tmp_path: Path) -> None:
    check(tmp_path, flat.write(tmp_path, nodes(**{group: name})))


def test_imports_are_rewritten_and_other_lines_stay(tmp_path: Path, monkeypatch: Any) -> None:
    package = tmp_path / "own_parts"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "helper.py").write_text("VALUE = 3\n")
    source = '''"""Own part."""
from __future__ import annotations
from typing import TYPE_CHECKING
from jaxtyping import Float
from chimera.ops import decay as d, scan
from chimera.contract import (
    Norm,  # the base
)
from .helper import VALUE
if TYPE_CHECKING:
    from somewhere import Nothing


class Own(Norm):  # as it was
    def forward(self, x: Float[object, "b"], mask=None):
        from absent.kernels import fast as quick

        return quick(d.step, scan, VALUE)
'''
    (package / "part.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    own = nodes() | {"norm": {"_target_": "own_parts.part.Own", "_partial_": True}}
    (tmp_path / "out").mkdir()
    names = flat.write(tmp_path / "out", own)
    check(tmp_path / "out", names)
    lines = (tmp_path / "out/own_parts_part.py").read_text().splitlines()
    assert "from typing import Annotated as Float" in lines
    assert "from . import chimera_ops_decay as d" in lines
    assert "from . import chimera_ops_scan as scan" in lines
    assert "from .chimera_contract import Norm" in lines
    assert "from .own_parts_helper import VALUE" in lines
    assert '        quick = import_module("absent.kernels").fast' in lines
    assert "class Own(Norm):  # as it was" in lines
    assert not [line for line in lines if "somewhere" in line]
    assert '    "own_parts.part.Own": ' in (tmp_path / "out/modeling_chimera.py").read_text()


WRITE = """
import sys
from pathlib import Path
import chimera.export
from chimera.contract_tests import zoo
from chimera.export.hf import flat
config = zoo.config()
names = flat.write(Path(sys.argv[1]), {g: config[g] for g in ("mixer", "norm", "quant", "ffn")})
assert "modeling_chimera.py" in names
print(*(name for name in sys.modules if name.startswith("chimera.export.hf.")))
"""


@pytest.mark.slow
def test_an_export_imports_no_module_that_needs_transformers(tmp_path: Path) -> None:
    """The library is an extra of this package."""
    words = [sys.executable, "-c", WRITE, str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    imported = {name.rpartition(".")[2] for name in done.stdout.split()}
    assert imported == {"flat", "tokenizer"}


def test_what_is_in_no_file_is_refused(tmp_path: Path) -> None:
    own = nodes() | {"norm": {"_target_": "math.sqrt", "_partial_": True}}
    with pytest.raises(UserError, match="math is in no Python file"):
        flat.write(tmp_path, own)
