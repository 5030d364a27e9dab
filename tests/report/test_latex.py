"""Tables of LaTeX compile: those of the repository, every escaped character, a hostile report."""

from __future__ import annotations

from pathlib import Path

import pytest

from chimera.paths import EXPERIMENTS
from chimera.report.formatting import _LATEX, latex
from tests.report.latex import compiled, engine, faults

FILES = sorted(EXPERIMENTS.glob("*/*/results/*/report.tex"))
#: Accents, raised and lowered digits, a letter that LaTeX has no name for.
HOSTILE = "Señor Gödel Ž₂x²ᵃ 漢 \\input{x} $x$ 50% #1 a_b^c ~ {d} [e] *f* «g» “h” |i| <j> --- ''k"
TABLE = """\\begin{table}
\\caption{%s}
\\label{tab:a-b_c}
\\begin{tabular}{lr}
\\toprule
row & %s \\\\
\\midrule
a & $\\pm$1 \\\\
\\bottomrule
\\end{tabular}
\\end{table}
"""
#: What a report must not hold, each as a cell.
BAD = [
    "λ",
    "$\\lamda$",
    "$x",
    "\\alpha",
    "\\frak",
    "a_b",
    "a & b",
    "{c",
    "c}",
    "$x^{$",
    "\\end{table}",
]


def whole() -> str:
    """Every committed table, and one with every character that has a name, in one document."""
    every = " ".join(map(latex, [*_LATEX, HOSTILE]))
    return "\n".join([TABLE % (every, every), *(file.read_text("utf-8") for file in FILES)])


@pytest.mark.parametrize("file", FILES, ids=lambda file: "-".join(file.parts[-5:-3]))
def test_a_report_of_the_repository_has_no_fault(file: Path) -> None:
    assert faults(file.read_text(encoding="utf-8")) == []


def test_every_escaped_character_has_no_fault() -> None:
    assert len(FILES) == len(list(EXPERIMENTS.glob("*/*/results/*/report.md"))) > 0
    assert faults(whole()) == []


@pytest.mark.parametrize("cell", BAD)
def test_a_fault_is_found(cell: str) -> None:
    assert faults(TABLE % ("fine", cell))


@pytest.mark.skipif(engine() is None, reason="no LaTeX engine is installed")
def test_an_engine_compiles_them_all(tmp_path: Path) -> None:
    assert compiled(whole(), tmp_path) == ""


@pytest.mark.slow
@pytest.mark.skipif(engine() is None, reason="no LaTeX engine is installed")
@pytest.mark.parametrize("cell", [cell for cell in BAD if cell != "λ"])
def test_what_is_called_a_fault_does_not_compile(cell: str, tmp_path: Path) -> None:
    """Newer engines read λ, and print nothing for it."""
    assert compiled(TABLE % ("fine", cell), tmp_path) != ""
