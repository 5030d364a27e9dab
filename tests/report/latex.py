"""Check tables of LaTeX: by an engine where one is installed, and always by reading them."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from matplotlib.mathtext import MathTextParser

#: Engines, the first installed one is used.
ENGINES = ("pdflatex", "lualatex", "xelatex")
HEAD = "\\documentclass{article}\n\\usepackage{booktabs}\n\\begin{document}\n"
#: Commands outside formulas: LaTeX's own and those of booktabs, with the number of arguments.
TEXT = {"begin": 1, "end": 1, "centering": 0, "caption": 1, "label": 1, "texttt": 1, "dots": 0}
TEXT |= {"toprule": 0, "midrule": 0, "bottomrule": 0, "textbackslash": 0, "textasciitilde": 0}
TEXT |= {"textasciicircum": 0, "ss": 0, "o": 0, "O": 0, "ae": 0, "AE": 0}
#: Accents take an argument.
ACCENTS = frozenset("`'^~=.\"uHrvc")
FORMULA = re.compile(r"(?<!\\)\$(.*?)(?<!\\)\$", re.S)
MATH = MathTextParser("path")
#: A command of LaTeX that matplotlib does not know.
SURD = re.compile(r"\\surd(?![A-Za-z])")


def engine() -> str | None:
    """The engine that is installed."""
    return next((name for name in ENGINES if shutil.which(name)), None)


def compiled(text: str, folder: Path) -> str:
    """Compile a document with this body; return the engine's errors, empty without any."""
    name = engine()
    assert name is not None
    (folder / "it.tex").write_text(f"{HEAD}{text}\n\\end{{document}}\n", encoding="utf-8")
    command = [name, "-interaction=nonstopmode", "-no-shell-escape", "-halt-on-error", "it.tex"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace")
    lines = [line for line in done.stdout.splitlines() if line.startswith("!")]
    if done.returncode == 0 and (folder / "it.pdf").stat().st_size:
        return "\n".join(lines)
    return "\n".join(lines) or f"{name} ended with {done.returncode}"


def faults(text: str) -> list[str]:
    """What keeps a table from compiling, as far as reading it tells."""
    found = [f"{character!r} is not ASCII" for character in text if not character.isascii()]
    if re.sub(r"\\.", "", text).count("$") % 2:
        return [*found, "a formula does not end"]
    found += [fault for match in FORMULA.finditer(text) for fault in _of_formula(match[1])]
    outside = FORMULA.sub(" ", text)
    found += _of_text(outside)
    found += _of_grid(outside)
    return found


def _of_formula(formula: str) -> Iterator[str]:
    try:
        MATH.parse(f"${SURD.sub('s', formula)}$")
    except ValueError as error:
        yield f"${formula}$: {str(error).splitlines()[-1]}"


def _of_text(text: str) -> Iterator[str]:
    for name, after in re.findall(r"\\([A-Za-z]+)\s*(.?)", text):
        if name not in TEXT and not (name in ACCENTS and after == "{"):
            yield f"\\{name} is no command outside a formula"
    for sign, after in re.findall(r"\\([^A-Za-z])(.?)", text):
        if sign not in "{}&%$#_\\" and not (sign in ACCENTS and after == "{"):
            yield f"\\{sign} is no command"
    bare = re.sub(r"\\(?:label|begin|end)\{[^}]*\}|\\[^A-Za-z]", "", text)
    for sign in "#^_%":
        if sign in bare:
            yield f"{sign} outside a formula"
    depth = 0
    for brace in re.findall(r"[{}]", re.sub(r"\\[{}]", "", text)):
        depth += 1 if brace == "{" else -1
        if depth < 0:
            break
    if depth:
        yield "braces do not match"
    stack: list[str] = []
    for kind, name in re.findall(r"\\(begin|end)\{(\w+)\}", text):
        if kind == "begin":
            stack.append(name)
        elif not stack or stack.pop() != name:
            yield f"\\end{{{name}}} ends another environment"
    if stack:
        yield f"{stack[-1]} does not end"


def _of_grid(text: str) -> Iterator[str]:
    for columns, body in re.findall(
        r"\\begin\{tabular\}\{([lrc]*)\}(.*?)\\end\{tabular\}", text, re.S
    ):
        for row in re.split(r"\\\\(?=\s)", body)[:-1]:
            cells = 1 + re.sub(r"\\&", "", row).count("&")
            if cells != len(columns):
                yield f"{cells} cells in a table of {len(columns)} columns"
