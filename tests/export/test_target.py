"""What an export replaces, and what a killed one leaves."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from chimera.errors import UserError
from chimera.export.target import check_target, replacing_folder


def write(to: Path, text: str) -> None:
    with replacing_folder(to) as made:
        (made / "inner").mkdir()
        (made / "inner/file").write_text(text)


def held(root: Path) -> dict[str, str]:
    files = [p for p in root.rglob("*") if p.is_file() and p.name != "export.json"]
    return {str(p.relative_to(root)): p.read_text() for p in files}


def test_a_killed_export_loses_nothing_and_leaves_nothing(tmp_path: Path) -> None:
    to = tmp_path / "out"
    write(to, "first")
    to.chmod(0o700)
    with pytest.raises(ZeroDivisionError), replacing_folder(to) as made:
        (made / "file").write_text(str(1 / 0))
    assert held(tmp_path) == {"out/inner/file": "first"}
    os.rename(to, tmp_path / ".out.earlier")  # killed between the two renames
    with pytest.raises(ZeroDivisionError), replacing_folder(to):
        1 / 0  # noqa: B018
    assert held(tmp_path) == {"out/inner/file": "first"}
    os.rename(to, tmp_path / ".out.earlier")
    write(to, "second")
    write(tmp_path / ".out.earlier", "first")  # killed after them
    write(to, "third")
    assert held(tmp_path) == {"out/inner/file": "third"}
    assert os.listdir(tmp_path) == ["out"]
    assert to.stat().st_mode & 0o777 == 0o700


OTHERS: dict[str, Callable[[Path], object]] = {
    "empty": Path.mkdir,
    "pipe": os.mkfifo,
    "link": lambda file: file.symlink_to(file.parent / "inner/file"),
    "inner/file": lambda file: file.write_text("mine"),
    "export.json": lambda file: file.write_text('{"files": {}}'),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_no_export_wrote_is_refused(name: str, tmp_path: Path) -> None:
    write(tmp_path / "out", "first")
    check_target(tmp_path / "out")
    OTHERS[name](tmp_path / "out" / name)
    with pytest.raises(UserError, match=f"contains {name}, which no export wrote"):
        check_target(tmp_path / "out")


@pytest.mark.parametrize("place", ["../link", ".", "..", "../file/below"])
def test_places_of_other_kinds_are_refused(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "new")
    (tmp_path / "file").write_text("mine")
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    with pytest.raises(UserError, match=r"is a link|working directory|is a file"):
        check_target(Path(place))
