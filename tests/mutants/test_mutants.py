"""The mutants themselves: valid, different, one expression each, with tests that concern them."""

from __future__ import annotations

import ast

import pytest

from tests.mutants.concern import concerning
from tests.mutants.equal import EQUAL
from tests.mutants.known import known
from tests.mutants.mutate import ROOT, draw, files, mutants

SOURCE = '''"""Text with 1 + 1."""
def f(x: Float[Tensor, "b 1 t"], eps: float = 1e-6) -> int | None:
    if x.ndim < 2:
        raise ValueError(f"{x.ndim - 1}")
    return x.sum(-1) * -x + eps
'''


def test_mistakes_are_made_in_arithmetic_only() -> None:
    found = {(m.line, m.kind, m.before, m.after) for m in mutants("f.py", SOURCE)}
    assert found == {
        (2, "constant", "1e-06", "2e-06"),
        (2, "constant", "1e-06", "5e-07"),
        (3, "off by one", "x.ndim < 2", "x.ndim <= 2"),
        (3, "off by one", "2", "3"),
        (3, "off by one", "2", "1"),
        (5, "sign", "x.sum(-1) * -x + eps", "x.sum(-1) * -x - eps"),
        (5, "missing term", "x.sum(-1) * -x + eps", "x.sum(-1) * -x"),
        (5, "missing term", "x.sum(-1) * -x + eps", "eps"),
        (5, "missing term", "x.sum(-1) * -x", "x.sum(-1)"),
        (5, "missing term", "x.sum(-1) * -x", "-x"),
        (5, "axis", "-1", "-2"),
        (5, "off by one", "1", "2"),
        (5, "off by one", "1", "0"),
        (5, "sign", "-x", "x"),
    }


@pytest.mark.parametrize("seed", [1, 2])
def test_a_draw_is_of_different_lines_and_repeats(seed: int) -> None:
    drawn, total = draw(ROOT, seed, 20, only="position/")
    again, _ = draw(ROOT, seed, 20, only="position/")
    assert [m.key for m in drawn] == [m.key for m in again]
    assert len({(m.file, m.line) for m in drawn}) == 20 < total
    assert draw(ROOT, seed, 5, only="position/")[0] == drawn[:5]
    for mutant in drawn:
        right = (ROOT / "src/chimera" / mutant.file).read_text()
        assert ast.dump(ast.parse(mutant.source)) != ast.dump(ast.parse(right))


def test_every_file_has_tests_that_concern_it() -> None:
    for path in files(ROOT):
        tests, mixers = concerning(path.relative_to(ROOT / "src/chimera").as_posix())
        assert len(tests) > 1 or mixers or path.name in ("__init__.py", "none.py"), path
        assert all((ROOT / test).is_file() for test in tests)


def test_lists_speak_of_the_sources_as_they_are() -> None:
    assert len(known(ROOT)) >= 9
    for file, text, *_ in EQUAL:
        assert text in (ROOT / "src/chimera" / file).read_text(), (file, text)
