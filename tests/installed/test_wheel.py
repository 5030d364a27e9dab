"""What the wheel holds, and the commands of a package that was installed from it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

from chimera.paths import ROOT
from chimera.program import DISTRIBUTION, VERSION
from tests import forks

BUILD = "import sys; from setuptools.build_meta import build_wheel; build_wheel(sys.argv[1])"
#: A run of seconds.
TINY = ["scale=smoke", "logger=none", "trainer.accelerator=cpu", "trainer.max_steps=2"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this tree, built without network from a copy."""
    tree = tmp_path_factory.mktemp("tree")
    for folder in ("src", "conf", "experiments"):
        left_out = shutil.ignore_patterns("*.pyc", "*.egg-info", "__pycache__")
        shutil.copytree(ROOT / folder, tree / folder, ignore=left_out)
    for file in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, tree)
    built = tmp_path_factory.mktemp("dist")
    done = subprocess.run(
        [sys.executable, "-c", BUILD, str(built)], cwd=tree, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return next(built.glob("*.whl"))


@pytest.fixture(scope="module")
def place(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose `src/` has the files of the wheel, as an environment's site-packages."""
    place = tmp_path_factory.mktemp("place")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(place / "src")
    return place


def test_the_wheel_has_all_configuration_and_all_code(wheel: Path) -> None:
    inside = set(zipfile.ZipFile(wheel).namelist())
    files = [f for d in ("conf", "experiments") for f in (ROOT / d).rglob("*") if f.is_file()]
    kept = {file for file in files if "results" not in file.relative_to(ROOT).parts}
    assert {f.suffix for f in kept} >= {".yaml", ".csv", ".json"}
    wanted = {f"chimera/{file.relative_to(ROOT).as_posix()}" for file in kept}
    sources = (ROOT / "src").rglob("*.py")
    wanted |= {file.relative_to(ROOT / "src").as_posix() for file in sources}
    wanted |= {f"chimera/report/compare.{end}" for end in ("css", "html", "js")}
    assert not wanted - inside
    assert not {name for name in inside if "/results/" in name or name.startswith("tests")}


def test_the_wheel_says_what_it_is_and_needs(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    (name,) = [name for name in archive.namelist() if name.endswith("METADATA")]
    about = Parser().parsestr(archive.read(name).decode())
    assert (about["Name"], about["Version"]) == (DISTRIBUTION, VERSION)
    needed = [text for text in about.get_all("Requires-Dist") if "extra ==" not in text]
    assert "torch<3,>=2.11" in [text.replace(" ", "") for text in needed]
    assert not [text for text in needed if "==" in text.partition(";")[0]]
    points = archive.read(name.replace("METADATA", "entry_points.txt")).decode()
    assert "chimera = chimera.cli.main:main" in points


def test_an_installed_run_is_below_the_current_folder(place: Path, tmp_path: Path) -> None:
    # The environment is inside somebody's project, which has configuration and a commit of its own.
    (place / "conf").mkdir(exist_ok=True)
    (place / "conf" / "config.yaml").write_text("defaults: [nothing]\n")
    trained = forks.run("-m", "chimera", "train", *TINY, root=place, cwd=tmp_path)
    assert trained.returncode == 0, trained.stderr
    (run,) = (tmp_path / "runs").glob("mlm-attention-*")
    about = json.loads((run / "environment.json").read_text())
    assert about["chimera"] == VERSION
    assert about["git"] == {}
    tested = forks.run("-m", "chimera", "eval", "run=runs/nowhere", root=place, cwd=tmp_path)
    assert (tested.returncode, tested.stderr.count("\n")) == (2, 1)
    zoo = forks.run("-m", "chimera.model.catalog", root=place, cwd=tmp_path)
    assert "checkout" in zoo.stderr


def test_a_shape_among_the_tables_is_found_from_anywhere(place: Path, tmp_path: Path) -> None:
    words = ["preset=tptt", "scale=smoke", "model.name=meta-llama/Llama-3.2-1B", "data.path=x"]
    shown = forks.run("-m", "chimera", "train", "--cfg", "job", *words, root=place, cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    shape = "experiments/tptt/shapes/meta-llama/Llama-3.2-1B"
    code = (
        "from chimera.data.tokenizer.own import Own;"
        "from chimera.model.hf_settings import HuggingFace;"
        f"Own(path='{shape}').check(); print(HuggingFace(name='{shape}').folder())"
    )
    found = forks.run("-c", code, root=place, cwd=tmp_path)
    assert found.stdout.strip() == str(place / "src/chimera" / shape), found.stderr
