"""Markdown, LaTeX, figures and the terminal show any text as written."""

from __future__ import annotations

import html
import io
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from matplotlib.mathtext import MathTextParser
from rich.console import Console

from chimera.config.tables import Row, load
from chimera.paths import EXPERIMENTS
from chimera.report.formatting import _LATEX, block, cell, code, latex, markdown, show_grid
from chimera.report.table_results import read_results
from chimera.report.write import show, write
from tests.report.runs import make
from tests.rundir.kit import ENVIRONMENT

RENDER = MarkdownIt("commonmark").enable(["table", "strikethrough"]).render
#: Markup, HTML, entities, LaTeX, formulas of matplotlib, markup of rich.
HOSTILE = (
    r"**a** _b_ `c` <img src=x> &amp; [d](e) ~~f~~ | $x^2$ $\frac \input{/etc/passwd} [red]%#"
    r" </td><script>alert(1)</script> [x](javascript:alert(1)) ![](http://evil) # *"
    r" \write18{touch x} ${oc.env:HOME} [red]x[/red]"
)
#: Commands that `latex` writes itself.
COMMANDS = r"\$[^$]*\$|\\[a-zA-Z]+\{[^{}]*\}|\\[{}&%$#_]|\\[`'^~=.\"]\{\w\}|\{[\[*]\}"
#: An engine of LaTeX, if one is installed.
ENGINE = next(filter(None, map(shutil.which, ("pdflatex", "lualatex", "xelatex"))), None)
TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), max_size=40)


def lines(text: str) -> str:
    return " ".join(text.split())


def shown(rendered: str) -> str:
    """The text of HTML that a reader sees."""
    assert not re.search(r"<(?!/?(p|code|table|thead|tbody|tr|th|td|pre)\b)", rendered)
    return html.unescape(re.sub(r"<[^>]*>", "", rendered)).strip()


@given(TEXT)
@example(HOSTILE)
@example("# heading")
@example("1. item")
@example("- item")
@example("> quotation")
@example("\\|")
@example("***")
@example("    code")
@example("__0__")
@example("a__b__c_d_")
def test_markdown_shows_the_text(text: str) -> None:
    assert shown(RENDER(f"x {markdown(text)}")).removeprefix("x").strip() == lines(text)
    assert markdown(markdown(text)) == markdown(text)


@pytest.mark.parametrize("text", ["# h", "1. i", "2) i", "- i", "+ i", "> q", HOSTILE, "-0.1 ± 1"])
def test_a_line_of_text_is_a_paragraph(text: str) -> None:
    rendered = RENDER(markdown(text))
    assert rendered.startswith("<p>")
    assert shown(rendered) == lines(text)


@given(TEXT)
@example(HOSTILE)
@example("``")
def test_code_shows_the_text(text: str) -> None:
    rendered = RENDER(f"x {code(text)}")
    assert "<code>" in rendered
    assert shown(rendered).removeprefix("x").strip() == lines(text)


@pytest.mark.parametrize("text", ["a|b", "a\\|b", "`|`", HOSTILE])
def test_a_cell_stays_one_cell(text: str) -> None:
    for cells in ([cell(text), "z"], [cell(code(text)), "z"]):
        row = RENDER(f"| a | b |\n| --- | --- |\n| {' | '.join(cells)} |")
        assert row.count("<td>") == 2
        assert "<td>z</td>" in row


def test_a_fence_in_the_text_does_not_end_the_block() -> None:
    text = "a\n```\n# b"
    assert shown(RENDER(block(text, "bash"))) == text


@given(TEXT)
@example(HOSTILE)
@example("₂ₔᵃꝰ é ǻ ϓ")
def test_latex_is_ascii_without_commands_from_the_text(text: str) -> None:
    escaped = latex(text)
    assert escaped.isascii()
    assert escaped.isprintable()
    remaining = re.sub(COMMANDS, "", escaped)
    assert not re.search(r"[\\{}$&#^_%]", remaining)


def test_latex_has_names_for_letters_and_signs() -> None:
    assert latex("η·λ ⊙ ±2²") == r"$\eta$$\cdot$$\lambda$ $\odot$ $\pm$2$^{2}$"
    assert latex("Señor Gödel «x»") == r"Se\~{n}or G\"{o}del $\ll$x$\gg$"
    assert latex("漢") == r"\texttt{U+6F22}"
    assert latex("50% of a_b & {c}") == r"50\% of a\_b \& \{c\}"


def test_a_report_shows_what_strangers_wrote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Titles of a table; reasons, machines and commits, which come from a run's files."""
    monkeypatch.setenv("CHIMERA_RUNS", str(tmp_path / "runs"))
    table = load("bitnet_qdyt/norms")
    failed, *done = [row.name for row in table.rows]
    of_a_stranger = {
        **ENVIRONMENT,
        **dict.fromkeys(("machine", "processor"), HOSTILE),
        "git": {"commit": HOSTILE, "changed": True},
    }
    states = {(failed, 0): {"state": "FAILED", "why": HOSTILE}}
    values = {(row, 0): 9.0 for row in done}
    make(table.path, values, states=states, environment=of_a_stranger)
    rows = tuple(Row(row.name, HOSTILE) for row in table.rows)
    table = replace(table, rows=rows, title=HOSTILE, source=HOSTILE, note=HOSTILE)
    summary = write(table, ["scale=smoke"], [0], tmp_path / "out")
    text = (tmp_path / "out/report.md").read_text(encoding="utf-8")
    rendered = RENDER(text)
    assert not re.search(r'<(script|del|img src=x|\w+ \w+="(d"|javascript|http://evil))', rendered)
    # Title, source, note; a row each; why one failed, its machine and commit.
    assert rendered.count(html.escape(HOSTILE)) == 9
    tex = (tmp_path / "out/report.tex").read_text(encoding="utf-8")
    assert not re.search(r"\\(input|write18)", tex)
    assert tex.isascii()
    out = io.StringIO()
    show(summary, tmp_path, Console(file=out, width=400))
    assert HOSTILE in lines(out.getvalue())  # a title may take several
    assert read_results(table, ["scale=smoke"], [0]).lines == summary.lines


def test_every_formula_of_latex_is_one_that_matplotlib_reads() -> None:
    for formula in [text for text in _LATEX.values() if text.startswith("$")]:
        MathTextParser("path").parse(formula.replace("surd", "sqrt{2}"))


@pytest.mark.skipif(ENGINE is None, reason="no LaTeX engine is installed")
def test_an_engine_compiles_the_committed_tables(tmp_path: Path) -> None:
    every = latex("".join([*_LATEX, HOSTILE]))
    tables = [file.read_text("utf-8") for file in EXPERIMENTS.glob("*/*/results/*/report.tex")]
    body = "\n".join([f"{every}\n", *tables])
    head = "\\documentclass{article}\n\\usepackage{booktabs}\n\\begin{document}\n"
    (tmp_path / "it.tex").write_text(f"{head}{body}\\end{{document}}\n", encoding="utf-8")
    command = [str(ENGINE), "-interaction=nonstopmode", "-halt-on-error", "it.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:]


def test_names_are_left_where_many_numbers_are_wider_than_the_page(
    capsys: pytest.CaptureFixture[str],
) -> None:
    heads = [f"a number {n}" for n in range(20)]
    show_grid("title", ["row"], heads, [["non_recursive", *heads]])
    said = capsys.readouterr().out
    assert "non_recursiv" in said
    assert all(head in said for head in heads)
