"""Escape text (names, titles, reasons) so that Markdown, LaTeX and matplotlib show it as written.

Text from outside passes one of these functions where it is put into a file. Those for Markdown
return `Markdown`, which is not escaped again.
"""

from __future__ import annotations

import re
import unicodedata

#: What starts inline markup, raw HTML or an entity; a single `_` inside a word does not.
_INLINE = re.compile(r"[\\`*\[\]|$~]|<(?=[A-Za-z/!?])|&(?=#?\w+;)|(?<!\w)_|_(?!\w)")
#: What starts a heading, a quotation or a list at the start of a line.
_BLOCK = re.compile(r"^(?:(?=#{1,6}(?:\s|$)|>|[-+](?:\s|$))|\d+(?=[.)](?:\s|$)))")


class Markdown(str):
    """Text that is Markdown already."""


def markdown(text: str) -> Markdown:
    """Text as one line of Markdown without markup."""
    if isinstance(text, Markdown):
        return text
    line = _INLINE.sub(r"\\\g<0>", " ".join(text.split()))
    return Markdown(_BLOCK.sub(r"\g<0>\\", line))


def code(text: str) -> Markdown:
    """Text as an inline code span of Markdown."""
    line = " ".join(text.split())
    fence = _fence(line, 1)
    space = " " if "`" in line or not line else ""
    return Markdown(f"{fence}{space}{line}{space}{fence}")


def block(text: str, language: str) -> Markdown:
    """Text as a fenced code block of Markdown."""
    fence = _fence(text, 3)
    return Markdown(f"{fence}{language}\n{text}\n{fence}")


def cell(text: str) -> str:
    """Text as a cell of a Markdown table, where even a code span may hold no bare `|`."""
    return re.sub(r"(?<!\\)\|", r"\\|", markdown(text))


def _fence(text: str, shortest: int) -> str:
    """More backticks than any run of them in the text."""
    longest = max(map(len, re.findall("`+", text)), default=0)
    return "`" * max(shortest, longest + 1)


def figure(text: str) -> str:
    """Text for matplotlib, which reads what stands between dollars as a formula."""
    return text.replace("$", r"\$")


def latex(text: str) -> str:
    """Text for a table or a caption of LaTeX; needs no package.

    A character without a LaTeX name below is shown by its code point.
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
    """These ASCII letters and digits; empty if there are others."""
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
≈ approx ≠ neq ≤ leq ≥ geq ≪ ll ≫ gg « ll » gg → to ← gets ↔ leftrightarrow ⇒ Rightarrow ∞ infty
∑ sum ∏ prod √ surd ∂ partial ∇ nabla ∈ in ∉ notin ⊂ subset ⊆ subseteq ∪ cup ∩ cap ⊕ oplus ⊗ otimes
⊙ odot ‖ Vert ⌈ lceil ⌉ rceil ⌊ lfloor ⌋ rfloor"""
_LATEX = {
    **{symbol: f"$\\{name}$" for symbol, name in re.findall(r"(\S) (\w{2,})", _MATH)},
    **{letter: f"\\{letter}" for letter in "{}&%$#_"},
    **{letter: f"${letter}$" for letter in "<>|"},
    **{letter: f"{{{letter}}}" for letter in "[*"},  # else options of the row's `\\` before
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
