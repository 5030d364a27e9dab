"""Escape text (names, titles, reasons) so that Markdown and LaTeX show it as written.

Every text from outside is escaped by one of these functions before it is written to a file. The
functions for Markdown return `Markdown`, which is not escaped again.
"""

from __future__ import annotations

import re
import unicodedata

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
