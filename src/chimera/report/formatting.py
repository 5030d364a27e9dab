"""Write numbers as text, print tables, escape text for Markdown and LaTeX.

A mean ends at the second significant digit of its spread. Every text from outside (names, titles,
reasons) is escaped by one of these functions before it is written to a file, so that a reader sees
it as written. The functions for Markdown return `Markdown`, which is not escaped again.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from chimera.errors import printable
from chimera.report import stats
from chimera.report.stats import Difference, Spread

if TYPE_CHECKING:
    from rich.console import Console


def number(value: float, digits: int = 4) -> str:
    """Format with `digits` significant digits and thousands separators.

    Values below 1e-4 or from 1e9 on have an exponent.
    """
    if value == 0.0:
        return "0"
    if not 1e-4 <= abs(value) < 1e9:
        return f"{value:.{digits - 1}e}"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:,.{decimals}f}"


def spread(value: Spread, *, sign: bool = False) -> str:
    """Format mean and standard deviation, as in `189.7 ± 2.3`; only the mean of one value.

    The standard deviation has two significant digits, the mean as many decimals.
    """
    plus = "+" if sign and value.mean > 0 else ""
    if value.std is None or value.equal:
        return plus + number(value.mean) + ("" if value.std is None else " ± 0")
    decimals = min(8, max(0, 1 - math.floor(math.log10(value.std))))
    return f"{plus}{value.mean:,.{decimals}f} ± {value.std:,.{decimals}f}"


def values(found: Iterable[float]) -> str:
    """Mean and standard deviation of values, as `spread` has them; empty without any."""
    value = stats.spread(list(found))
    return spread(value) if value else ""


def p_value(difference: Difference) -> str:
    """Format p, corrected if it was, with two digits; empty for one seed."""
    p = difference.p if difference.corrected is None else difference.corrected
    if p is None:
        return ""
    return "<0.001" if p < 0.001 else f"{p:.2g}"


def p_equals(difference: Difference) -> str:
    """`p_value` with its sign, as in `p = 0.013` or `p <0.001`; empty for one seed."""
    p = p_value(difference)
    return f"p {p}" if p.startswith("<") else f"p = {p}" if p else ""


def interval(difference: Difference) -> str:
    """Format the confidence interval with the decimals of `spread`; empty for one seed."""
    if difference.interval is None or not difference.std or difference.equal:
        return ""
    decimals = min(8, max(0, 1 - math.floor(math.log10(difference.std))))
    return " to ".join(f"{end:+,.{decimals}f}" for end in difference.interval)


def difference(value: Difference) -> str:
    """Mean, standard deviation and interval, as in `+0.086 ± 0.019 (+0.038 to +0.134)`."""
    ends = interval(value)
    return spread(value, sign=True) + (f" ({ends})" if ends else "")


def count(value: float) -> str:
    """Format a large number with a unit, as in `12.8 M`."""
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:g}"


def seeds(number: int) -> str:
    """`1 seed`, `2 seeds`."""
    return f"{number} seed{'s' * (number != 1)}"


def clock(seconds: float) -> str:
    """Format a duration as minutes and seconds, `3:14`, from one hour on as `2:03:14`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


#: Least width of a column of names that is broken, in characters.
NAMES = 12


def show_grid(
    title: str | None,
    left: Sequence[str],
    right: Sequence[str],
    body: Iterable[Sequence[str]],
    console: Console | None = None,
    width: int = 160,
) -> Console:
    """Print a table; returns the console.

    Args:
        title: above the table.
        left: heads of the columns of names, whose long values are broken.
        right: heads of the columns of numbers, which are aligned to the right.
        body: cells by line, shown as they are written.
        console: None: standard output.
        width: in characters, of a console that is no terminal; more where the numbers need it.
    """
    from rich.cells import cell_len
    from rich.console import Console
    from rich.measure import Measurement
    from rich.table import Table
    from rich.text import Text

    console = console or Console()
    grid = Table(title=None if title is None else Text(printable(title)), title_justify="left")
    lines = list(body)
    for n, head in enumerate((*left, *right)):
        longest = max(map(cell_len, (head, *(line[n] for line in lines))))
        if n < len(left):
            grid.add_column(Text(head), overflow="fold", min_width=min(longest, NAMES))
        else:
            grid.add_column(Text(head), justify="right", no_wrap=True, min_width=longest)
    for cells in lines:
        grid.add_row(*map(Text, map(printable, cells)))
    needed = Measurement.get(console, console.options.update(width=10_000), grid).minimum
    # A terminal that is too narrow breaks its lines: better than columns without their text.
    console.width = max(console.width if console.is_terminal else width, needed)
    console.print(grid)
    return console


#: Characters that start inline markup, raw HTML or an entity; a `_` between two letters or digits
#: does not.
_INLINE = re.compile(r"[\\`*\[\]|$~]|<(?=[A-Za-z/!?])|&(?=#?\w+;)|(?<![^\W_])_|_(?![^\W_])")
#: Start of a line that makes it a heading, a quotation or a list item.
_BLOCK = re.compile(r"^(?:(?=#{1,6}(?:\s|$)|>|[-+](?:\s|$))|\d+(?=[.)](?:\s|$)))")


class Markdown(str):
    """Text that is already Markdown."""


def markdown(text: str) -> Markdown:
    """Escape text as one line of Markdown without markup."""
    if isinstance(text, Markdown):
        return text
    line = _INLINE.sub(r"\\\g<0>", " ".join(text.split()))
    return Markdown(_BLOCK.sub(r"\g<0>\\", line))


def code(text: str) -> Markdown:
    """Write text as an inline code span of Markdown."""
    line = " ".join(text.split())
    fence = _fence(line, 1)
    space = " " if "`" in line or not line else ""
    return Markdown(f"{fence}{space}{line}{space}{fence}")


def codes(names: Iterable[str]) -> str:
    """Write texts as code spans, separated by commas."""
    return ", ".join(map(code, names))


def block(text: str, language: str) -> Markdown:
    """Write text as a fenced code block of Markdown."""
    fence = _fence(text, 3)
    return Markdown(f"{fence}{language}\n{text}\n{fence}")


def cell(text: str) -> str:
    """Escape text as a cell of a Markdown table, where `|` is escaped even in a code span."""
    return re.sub(r"(?<!\\)\|", r"\\|", markdown(text))


def _fence(text: str, shortest: int) -> str:
    """A fence of more backticks than any run of backticks in the text."""
    longest = max(map(len, re.findall("`+", text)), default=0)
    return "`" * max(shortest, longest + 1)


def latex(text: str) -> str:
    """Escape text for a table or a caption of LaTeX; needs no package.

    A character without a LaTeX name in `_LATEX` becomes its code point.
    """
    return "".join(map(_latex, unicodedata.normalize("NFC", " ".join(text.split()))))


def _latex(character: str) -> str:
    if character in _LATEX:
        return _LATEX[character]
    if character.isascii() and character.isprintable():
        return character
    first, *rest = unicodedata.decomposition(character).split() or [""]
    if first in _RAISED and (raised := _ascii(rest)):
        return f"${_RAISED[first]}{{{raised}}}$"
    if rest and rest[0] in _ACCENTS and (letter := _ascii([first])):
        return f"\\{_ACCENTS[rest[0]]}{{{letter}}}"
    return f"\\texttt{{U+{ord(character):04X}}}"


def _ascii(code_points: list[str]) -> str:
    """The characters of these code points if all are ASCII letters or digits, else empty."""
    text = "".join(chr(int(point, 16)) for point in code_points)
    return text if text.isascii() and text.isalnum() else ""


_RAISED = {"<super>": "^", "<sub>": "_"}
#: Combining characters by their code points.
_ACCENTS = {"0300": "`", "0301": "'", "0302": "^", "0303": "~", "0304": "=", "0306": "u"}
_ACCENTS |= {"0307": ".", "0308": '"', "030A": "r", "030B": "H", "030C": "v", "0327": "c"}
_MATH = """\
α alpha β beta γ gamma δ delta ε varepsilon ζ zeta η eta θ theta ι iota κ kappa λ lambda μ mu µ mu
ν nu ξ xi π pi ρ rho ς varsigma σ sigma τ tau υ upsilon φ varphi χ chi ψ psi ω omega Γ Gamma Δ Delta
Θ Theta Λ Lambda Ξ Xi Π Pi Σ Sigma Υ Upsilon Φ Phi Ψ Psi Ω Omega ± pm × times ÷ div · cdot ∘ circ
≈ approx ≠ neq ≤ leq ≥ geq ≪ ll ≫ gg « ll » gg → to ← leftarrow ↔ leftrightarrow ⇒ Rightarrow
∞ infty ∑ sum ∏ prod √ surd ∂ partial ∇ nabla ∈ in ∉ notin ⊂ subset ⊆ subseteq ∪ cup ∩ cap ⊕ oplus
⊗ otimes ⊙ odot ‖ Vert ⌈ lceil ⌉ rceil ⌊ lfloor ⌋ rfloor"""
_LATEX = {
    **{symbol: f"$\\{name}$" for symbol, name in re.findall(r"(\S) (\w{2,})", _MATH)},
    **{letter: f"\\{letter}" for letter in "{}&%$#_"},
    **{letter: f"${letter}$" for letter in "<>|"},
    **{letter: f"{{{letter}}}" for letter in "[*"},  # bare, they are options of a `\\` before
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    '"': "''",
    "−": "$-$",
    "–": "--",
    "—": "---",
    "‘": "`",
    "’": "'",
    "“": "``",
    "”": "''",
    "…": r"\dots{}",
    "\u00a0": "~",
    "ß": r"\ss{}",
    "ø": r"\o{}",
    "Ø": r"\O{}",
    "æ": r"\ae{}",
    "Æ": r"\AE{}",
}
