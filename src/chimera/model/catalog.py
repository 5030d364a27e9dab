"""Make tables of all components from their YAML, docstrings and class attributes.

`python train.py list` prints the tables; `python -m chimera.model.catalog` writes them into
docs/reference/zoo.md, and the names into README.md.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from hydra.utils import get_object

from chimera.config.groups import find, groups, node
from chimera.config.tables import title_of
from chimera.contract import CAUSAL, Mixer
from chimera.errors import UserError
from chimera.model.assemble import provides_of
from chimera.paths import CHECKOUT
from chimera.program import command_name

#: Groups in the order of the tables.
GROUPS = ("mixer", "norm", "quant", "ffn", "position", "adapter")
BEGIN = "<!-- zoo: written by `make zoo` -->"
END = "<!-- end of zoo -->"


@dataclass(frozen=True)
class Row:
    """Row of one component; columns that its group does not have are empty."""

    name: str
    what: str
    source: str
    forms: str = ""
    directions: str = ""
    positions: str = ""
    cost: str = ""
    state: str = ""


#: Column heads by group.
HEADS = {
    "mixer": ("name", "what it is", "source", "forms", "encoder", "positions", "cost", "state"),
}
PLAIN = ("name", "what it is", "source")
#: Ids of the specification, which a reader of the tables does not have.
IDS = re.compile(r"^((\w\d+( slstm)?|(ffn )?`\w+`)(, |; |$))+")
#: Characters of a line that has room for all columns.
WIDE = 150


def rows(group: str) -> list[Row]:
    """Rows of all components of a group, in alphabetical order."""
    if group not in GROUPS:  # a preset, an optimiser: its file says what it is
        return [Row(name, _title(group, name), "") for name in groups()[group]]
    return [_row(group, name) for name in groups()[group]]


def _row(group: str, name: str) -> Row:
    text = find(f"{group}/{name}").read_text(encoding="utf-8")
    target: Any = get_object(node(group, name)["_target_"])
    module = inspect.getmodule(target)
    assert module is not None
    what = _comment(text) or _first_line(target)
    source = papers(getattr(target, "source", "") or _in_brackets(module.__doc__ or ""))
    if group != "mixer":
        return Row(name, what, source)
    if not inspect.isclass(target):  # a function that returns one of its members
        return Row(name, what, _cited(what) or "as its members", *("as its members",) * 5)
    mixer = cast(type[Mixer], target)
    return Row(
        name,
        what,
        source,
        ", ".join(mixer.forms),
        "by a wrapper" if mixer.directions == CAUSAL else "native",
        ", ".join(p for p in groups()["position"] if provides_of(p) <= mixer.position_hooks),
        mixer.cost,
        mixer.state_size or "none",
    )


def papers(source: str) -> str:
    """The papers of a component's `source`, without the ids before them."""
    return IDS.sub("", source)


def _title(group: str, name: str) -> str:
    """First comment of a choice's file, else the first line of what it builds."""
    title = title_of(find(f"{group}/{name}"))
    target = (node(group, name) or {}).get("_target_")
    if title != name or not isinstance(target, str):
        return title if title != name else ""
    return _first_line(get_object(target))


def _comment(text: str) -> str:
    """Comment in the first line of a YAML file, which describes the component; else empty."""
    first = text.splitlines()[0]
    return first.removeprefix("#").strip().rstrip(".") if first.startswith("#") else ""


def _first_line(target: Any) -> str:
    return (inspect.getdoc(target) or "").splitlines()[0].rstrip(".")


def _cited(comment: str) -> str:
    """Source in a pattern's comment: `SPEC`'s id at its start, or the last brackets."""
    at_start = re.match(r"(\S+ [\w. ]*\d):", comment)
    in_brackets = re.findall(r"\(([^()]*)\)", comment)
    return at_start[1] if at_start else in_brackets[-1] if in_brackets else ""


def _in_brackets(doc: str) -> str:
    """Source in brackets of a docstring such as `LayerNorm (SPEC N1; arXiv 1607.06450).`"""
    head = " ".join(doc.split("\n\n")[0].split())
    _, _, rest = head.partition("(SPEC ")
    return rest.partition(")")[0] if rest else ""


def markdown() -> str:
    """Tables of docs/reference/zoo.md, one per group."""
    parts = []
    for group in GROUPS:
        heads = HEADS.get(group, PLAIN)
        lines = [f"### `{group}=`", "", _line(heads), _line(["---"] * len(heads))]
        for row in rows(group):
            cells = [f"`{row.name}`", *list(row.__dict__.values())[1 : len(heads)]]
            lines.append(_line([cell.replace("|", "\\|") for cell in cells]))
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _line(cells: Any) -> str:
    return "| " + " | ".join(cells) + " |"


def show(shown: Sequence[str] = GROUPS) -> None:
    """Print tables to the terminal; a narrow one gets the columns that all groups have.

    Args:
        shown: the groups.
    """
    from rich.console import Console
    from rich.table import Table

    console = Console()
    for group in shown:
        table = Table(title=f"{group}=", title_justify="left", show_lines=False)
        heads: tuple[str, ...] = HEADS.get(group, PLAIN) if console.width >= WIDE else PLAIN
        heads = heads if group in GROUPS else PLAIN[:2]
        narrow = console.width // 4 if heads == PLAIN else None
        for head in heads:
            width = narrow if head == "source" else None
            table.add_column(head, overflow="fold", max_width=width)
        for row in rows(group):
            table.add_row(*list(row.__dict__.values())[: len(heads)])
        console.print(table)
    console.print(
        f"{command_name('train')} list <name> shows one of them: its equation, options, cost and"
        " partners",
        highlight=False,
        soft_wrap=True,
        markup=False,
    )


def names() -> str:
    """Line of README.md: how many choices each group has."""
    counts = [f"{len(groups()[group])} of `{group}=`" for group in GROUPS]
    return f"- **Combine** [parts](docs/reference/zoo.md): {', '.join(counts)}."


def write() -> None:
    """Write the tables and counts between the marks of docs/reference/zoo.md and README.md."""
    if CHECKOUT is None:
        raise UserError("an installed package has no README.md; write the tables in a checkout")
    for name, content in (("docs/reference/zoo.md", markdown()), ("README.md", names())):
        file = CHECKOUT / name
        text = file.read_text(encoding="utf-8")
        before, _, rest = text.partition(BEGIN)
        _, _, after = rest.partition(END)
        file.write_text(f"{before}{BEGIN}\n{content}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    write()
