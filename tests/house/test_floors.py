"""An import only ever goes down; there is no circle of files or of folders."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.house.imports import FLOOR, arrows, circles, folder, modules, room

#: `import chimera` and `python -m chimera`: they lead to the ninth floor, and nobody imports them.
ENTRIES = {"", "__main__"}


def test_every_room_has_a_floor() -> None:
    rooms = {room(module) for module in modules() if module}
    assert rooms <= set(FLOOR), rooms - set(FLOOR)


def test_no_arrow_runs_up() -> None:
    up = [
        f"{module} -> {target}"
        for module, targets in arrows().items()
        for target in targets
        if module not in ENTRIES
        and target
        and room(module) != room(target)
        and FLOOR[room(target)] >= FLOOR[room(module)]
    ]
    assert not up


def test_nobody_imports_the_package_itself() -> None:
    """`from chimera import graft` is for its users; inside, a module is named by its place."""
    assert not [module for module, targets in arrows().items() if ENTRIES & targets]


def test_there_is_no_circle_of_files() -> None:
    assert not circles(arrows())


def test_there_is_no_circle_of_folders() -> None:
    known = modules()
    graph: dict[str, set[str]] = {}
    for module, targets in arrows().items():
        if module in ENTRIES:
            continue
        here = folder(module, known)
        graph.setdefault(here, set()).update({folder(t, known) for t in targets} - {here})
    assert not circles(graph)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("from pack import b", {"b"}),
        ("def f():\n    from pack.sub.c import X", {"sub.c"}),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import pack.sub", {"sub"}),
        ("from . import b", {"b"}),
        ("from .sub import c", {"sub.c"}),
        ("import os, packaging", set()),
    ],
)
def test_every_kind_of_import_is_read(text: str, found: set[str], tmp_path: Path) -> None:
    package = tmp_path / "pack"
    (package / "sub").mkdir(parents=True)
    for name in ("__init__", "b", "sub/__init__", "sub/c"):
        (package / f"{name}.py").touch()
    (package / "a.py").write_text(text)
    assert arrows(package)["a"] == found


def test_a_circle_is_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == [["b", "c"]]
    assert not circles({"a": {"b", "c"}, "b": {"c"}, "c": set()})
