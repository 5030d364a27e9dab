"""Extract prose from docstrings: paragraphs of English sentences without code, tables or markup.

Docstrings mix reStructuredText, numpydoc, Google style and Markdown. `paragraphs` reads their lines
once and drops all other text: doctests, literal blocks, parameter sections, field lists, tables,
references. It keeps a block only if it looks like English prose: complete sentences, plain words,
and enough function words.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

#: Directives whose body is prose; bodies of other directives are dropped.
_SPOKEN = re.compile(
    "admonition|attention|caution|danger|deprecated|hint|important|note|tip|topic|versionadded"
    "|versionchanged|warning"
)
#: Directives whose argument is a version, which is dropped.
_VERSIONED = re.compile("deprecated|version.*")
#: Titles of sections that list parameters or names.
_LISTS = re.compile(
    "args|arguments|attributes|exceptions|fields|inputs?|keyword arg(ument)?s|kwargs|methods"
    "|outputs?|(other )?param(eter)?s|raises|receives|references|returns?|see also|shape|throws"
    "|warns|yields?",
    re.IGNORECASE,
)
_DIRECTIVE = re.compile(r"\.\.(?: \|[^|]+\|)? ([\w:-]+)::(.*)|\.\.(?: .*)?$")
_UNDERLINE = re.compile(r"([=\-~^\"*#+.`_])\1{2,}")
_ITEM = re.compile(r"(?:[-*•]|\(?\d{1,2}[.)]|\(?[a-z]\)) +(?=\S)")
_FIELD = re.compile(r":[\w *.,-]+:(?=\s|$)|@\w+\b")
_ENTRY = re.compile(r"\*{0,2}`*[\w.\[\]]+`*(?: *, *\*{0,2}\w+)*(?: +:(?= |$)| ?\([^)]*\): )")
_TABLE = re.compile(r"[|+]|[=-]{2,}(?: +[=-]{2,})+$")

_INLINE = [
    (re.compile(r":[\w:+-]+:`~([^`]*\.)?([^`.]+)`"), r"\2"),
    (re.compile(r":[\w:+-]+:`!?([^`<]+?)(?:\s*<[^>`]*>)?`"), r"\1"),
    (re.compile(r"``([^`]+)``"), r"\1"),
    (re.compile(r"`([^`<]+?)\s*<[^>`]*>`_{0,2}"), r"\1"),
    (re.compile(r"`~?([^`]+)`_{0,2}"), r"\1"),
    (re.compile(r" ?\[[#*\w.-]+\]_"), ""),
    (re.compile(r"\[([^\]]+)\]\((?:[^()\s]|\([^)]*\))+\)"), r"\1"),
    (re.compile(r"(?<![\w*])\*{1,3}(\S(?:[^*]*\S)?)\*{1,3}(?![\w*])"), r"\1"),
    (re.compile(r"</?[a-zA-Z]\w*/?>"), ""),
    (re.compile(r"\s+"), " "),
]

_WORD = re.compile(r"[\"'(\[]*[A-Za-z]+(?:['’/-][A-Za-z]+)*[.,;:!?)\]\"']*")
_NOT_PROSE = re.compile(
    r"://|[{}\\<>|$^~#@•&]| =|=[= ]|\w=\S|\(\)\.|\.\.\.? ?[,)\]]|::|--\w|__|\+\+|%\w"
)
_START = re.compile(r"[\"'(]*[A-Z]")
_END = re.compile(r"[.!?:][\"')]*$")
_FUNCTION_WORD = re.compile(
    r"\b(?:a|about|after|all|also|an|and|any|are|as|at|be|because|been|before|being"
    r"|between|both|but|by|can|could|do|does|each|either|every|few|for|from|had"
    r"|has|have|how|if|in|into|is|it|its|itself|just|like|may|might|more|most"
    r"|much|must|no|nor|not|of|on|once|one|only|or|other|our|out|over|own|same"
    r"|should|since|so|some|such|than|that|the|their|them|then|there|these|they"
    r"|this|those|through|to|too|two|under|until|up|upon|us|used|using|very|was"
    r"|we|were|what|when|where|whether|which|while|who|whose|why|will|with|within"
    r"|without|would|yet|you|your)\b",
    re.IGNORECASE,
)


def paragraphs(docstring: str) -> list[str]:
    """Paragraphs of a docstring that are English prose, each on one line, in order."""
    cleaned = (_unmark(" ".join(block)) for block in _blocks(docstring) if not _is_table(block))
    return [text for text in cleaned if is_prose(text)]


def is_prose(text: str) -> bool:
    """Whether a paragraph of at least seven words consists of English sentences."""
    if not _START.match(text) or not _END.search(text):
        return False
    words = text.split()
    if len(words) < 7 or _NOT_PROSE.search(text):
        return False
    plain = sum(bool(_WORD.fullmatch(word)) for word in words)
    common = len(_FUNCTION_WORD.findall(text))
    return plain >= 0.85 * len(words) and common >= 0.25 * len(words)


def _blocks(docstring: str) -> Iterator[list[str]]:
    """Groups of lines that form paragraphs or list items, without code, fields and references."""
    block: list[str] = []
    edge = 0  # indentation of the block
    deeper: int | None = None  # lines with a larger indentation than this are dropped
    in_list = fenced = doctest = False
    heading = ""
    for line in inspect.cleandoc(docstring).splitlines():
        text = line.strip()
        indent = len(line) - len(line.lstrip())
        if text.startswith(("```", "~~~~")):
            fenced = not fenced
            text = ""
        if not text or fenced:
            doctest = False
            if block and not in_list:
                yield block
            block = []
            heading = ""
            continue
        if deeper is not None and indent > deeper:
            continue
        deeper = None
        if _UNDERLINE.fullmatch(text) and (heading or not block):
            in_list = bool(_LISTS.fullmatch(heading.rstrip(":")))
            block = []
            heading = ""
            continue
        heading = text
        doctest = doctest or text.startswith((">>>", "In [", "$ "))
        directive = _DIRECTIVE.match(text)
        item = _ITEM.match(text)
        starts = directive or item or indent != edge
        if doctest or starts or _FIELD.match(text) or _ENTRY.match(text):
            if block and not in_list:
                yield block
            block = []
            edge = indent
        if doctest:
            continue
        if directive:
            name = directive[1] or ""
            deeper = None if _SPOKEN.fullmatch(name) else indent
            unspoken = deeper is not None or _VERSIONED.fullmatch(name)
            text = "" if unspoken else directive[2].strip()
        elif _FIELD.match(text) or (text.endswith(":") and _LISTS.fullmatch(text[:-1])):
            deeper = indent
            text = ""
        elif _ENTRY.match(text):
            text = ""
        elif item:
            text = text[item.end() :]
            edge = indent + item.end()
        if text.endswith("::"):
            deeper = indent
            text = text[:-1].strip(":") + ":"
        if text:
            block.append(text)
    if block and not in_list:
        yield block


def _is_table(block: list[str]) -> bool:
    return any(_TABLE.match(line) for line in block)


def _unmark(text: str) -> str:
    for pattern, plain in _INLINE:
        text = pattern.sub(plain, text)
    return text.strip()
