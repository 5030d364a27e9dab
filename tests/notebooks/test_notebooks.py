"""Every notebook runs, keeps small results in git, and defines nothing of its own."""

from __future__ import annotations

import ast
import base64
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import nbformat
import pytest
from nbclient import NotebookClient

from chimera.paths import ROOT
from tests.report.runs import make

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def code(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_kept_with_small_results(path: Path) -> None:
    """Written by `python -m tools.execute_evidence <name>`."""
    cells = code(nbformat.read(path, as_version=4))
    assert sum(bool(cell.outputs) for cell in cells) >= 3
    for output in (output for cell in cells for output in cell.outputs):
        assert output.get("execution_count") is None
        assert "/tmp/" not in str(output.get("text", output.get("data")))
        assert "text/html" not in output.get("data", {})
    assert path.stat().st_size < 250_000


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_imports_and_defines_nothing(path: Path) -> None:
    tree = ast.parse("\n".join(cell.source for cell in code(nbformat.read(path, as_version=4))))
    own = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
    assert not [node for node in ast.walk(tree) if isinstance(node, own)]
    modules = {str(n.module) for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    modules |= {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    assert any(module.startswith("chimera") for module in modules)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_what_is_used_of_the_library_exists(path: Path) -> None:
    """Running a notebook is a slow test; a name that has moved is found without."""
    tree = ast.parse("\n".join(cell.source for cell in code(nbformat.read(path, as_version=4))))
    modules: dict[str, object] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("chimera"):
            module = import_module(str(node.module))
            for alias in node.names:
                if not hasattr(module, alias.name):
                    import_module(f"{node.module}.{alias.name}")  # or it does not exist
                modules[alias.asname or alias.name] = getattr(module, alias.name)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name == "chimera" and alias.asname:
                    modules[alias.asname] = import_module(alias.name)
    assert modules
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            found = modules.get(node.value.id)
            if isinstance(found, ModuleType):
                assert hasattr(found, node.attr), f"{node.value.id}.{node.attr}"


@pytest.mark.slow
def test_tables_redraws_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHIMERA_RUNS", str(tmp_path / "runs"))
    for name, value in (("TABLE", "bitnet_qdyt/norms"), ("SCALE", "smoke"), ("SEEDS", "2")):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:/usr/bin:/bin")
    make("bitnet_qdyt/norms", {("qdyt", 0): 425.2, ("qdyt", 1): 422.8, ("layernorm", 0): 431.2})
    notebook = nbformat.read(ROOT / "notebooks/tables.ipynb", as_version=4)
    NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    shown = [o for cell in code(notebook) for o in cell.outputs]
    assert not [o for o in shown if o.output_type in ("error", "stream")]
    pictures = [o.data["image/png"] for o in shown if "image/png" in o.get("data", {})]
    assert len(pictures) == 2
    assert all(base64.b64decode(p).startswith(b"\x89PNG") for p in pictures)
    text = "\n".join(str(o.data.get("text/markdown", "")) for o in shown)
    assert "424.0 ± 1.7" in text
    assert "| layernorm | 0 | done | 431.20 |" in text
    assert "| static_tanh | 1 | missing |  |" in text


def execute(name: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run a notebook on the library in a folder; return the text of its results."""
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:/usr/bin:/bin")
    monkeypatch.setenv("CHIMERA_RUNS", str(place / "runs"))
    notebook = nbformat.read(ROOT / "notebooks" / name, as_version=4)
    context = {"metadata": {"path": str(place)}}
    NotebookClient(notebook, timeout=240, kernel_name="python3", resources=context).execute()
    shown = [o for cell in code(notebook) for o in cell.outputs]
    assert not [o for o in shown if o.output_type == "error"]
    return "\n".join(str(o.get("data", o.get("text", ""))) for o in shown)


#: Notebook, the runs that it trains, and what it shows.
SHOWN = [
    ("first_model", 2, ["The function returns", "attention", "image/png"]),
    (
        "own_mixer",
        1,
        [
            "torch.Size([1, 3, 4000])",
            "torch.Size([1, 10, 32])",
            "mixer.gain=-1.0 is not allowed; it takes a number above 0",
        ],
    ),
    ("sweep", 4, ["gated_delta", "image/png", "count"]),
    ("looking_inside", 1, ["image/png", "backbone.blocks.0.mixer"]),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "count", "says"), SHOWN)
def test_a_notebook_trains_and_shows(
    name: str, count: int, says: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = execute(f"{name}.ipynb", tmp_path, monkeypatch)
    runs = list(tmp_path.glob("runs/*/run.json"))
    assert len(runs) == count
    assert not [text for text in says if text not in shown]
    if name == "own_mixer":
        assert runs[0].parent.name.startswith("mlm-running_mean-")
        assert "running_mean" in runs[0].read_text()
    if name == "looking_inside":
        assert shown.count("image/png") == 3
        for picture in ("activations", "gates", "maps", "weights"):
            assert (runs[0].parent / f"{picture}.png").is_file()
