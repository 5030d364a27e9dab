"""Tables of experiments: what `experiments/` holds, and the jobs that fill a table in.

experiments/<paper>/<table>.yaml         a table: title, source, metric, the reference row
experiments/<paper>/<table>/<row>.yaml   a row: overrides only; its first comment is its title
experiments/<paper>/<table>.csv          what the paper printed

Free of torch.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import yaml

from chimera.config.groups import is_part
from chimera.config.roots import find, roots
from chimera.errors import UserError, unknown

#: What a reference to a row of a table begins with.
ROW = "row:"


@dataclass(frozen=True)
class Row:
    """One line of a table: the option `name` of the group `<paper>/<table>`."""

    name: str
    title: str


@dataclass(frozen=True)
class Published:
    """One number as the paper prints it."""

    row: str
    column: str
    value: float
    unit: str
    source: str
    note: str


@dataclass(frozen=True)
class Table:
    """A table of a paper, as we run it.

    Args:
        paper: folder below experiments/.
        name: of the table in it.
        title: as a reader wants it.
        source: where in the paper it stands.
        metric: key among the metrics of run.json.
        better: which way the metric improves.
        reference: row that the others are compared with.
        note: where a row differs from the paper's setting, and why.
        rows: in the order of the published numbers, then by name.
        published: the paper's numbers.
        also: metrics that are shown besides those that the paper prints.
    """

    paper: str
    name: str
    title: str
    source: str
    metric: str
    better: Literal["lower", "higher"]
    reference: str
    note: str
    rows: tuple[Row, ...]
    published: tuple[Published, ...]
    also: tuple[str, ...] = ()

    @property
    def path(self) -> str:
        """`<paper>/<table>`, which is also the config group of its rows."""
        return f"{self.paper}/{self.name}"


@dataclass(frozen=True)
class Job:
    """One run of a table: its row, its seed, and the words that start it."""

    row: str
    seed: int
    overrides: list[str]


def tables() -> list[str]:
    """Every table as `<paper>/<table>`."""
    found = {
        file.relative_to(root).with_suffix("").as_posix()
        for root in roots()[1:]
        for file in root.glob("*/*.yaml")
        if not is_part(file.parent.name)
    }
    return sorted(found)


def papers() -> set[str]:
    """The folders that tables are in."""
    return {table.partition("/")[0] for table in tables()}


def load(name: str) -> Table:
    """The table `<paper>/<table>`.

    Raises:
        UserError: no such table; the message names near ones.
    """
    if name not in tables():
        raise unknown("table", name, tables())
    paper, _, table = name.partition("/")
    file = find(name)
    node = yaml.safe_load(file.read_text(encoding="utf-8"))["table"]
    published = _published(file.with_suffix(".csv"))
    order = list(dict.fromkeys(p.row for p in published))
    names = sorted(
        (path.stem for path in file.with_suffix("").glob("*.yaml")),
        key=lambda row: (order.index(row) if row in order else len(order), row),
    )
    rows = tuple(Row(row, title_of(file.with_suffix("") / f"{row}.yaml")) for row in names)
    return Table(paper, table, **node, rows=rows, published=published)


def jobs(table: Table, words: list[str], seeds: list[int]) -> list[Job]:
    """The runs of a table: every row with every seed.

    A job's run directory is `RunDir.of(plain(compose(job.overrides)))`.
    """
    for word in words:
        if word.startswith("seed="):
            raise UserError(f"{word}: the seeds of a table are given apart")
    return [
        Job(row.name, seed, [f"+{table.path}={row.name}", *words, f"seed={seed}"])
        for row in table.rows
        for seed in seeds
    ]


def row_override(reference: str, where: str) -> str:
    """The override that chooses the row `row:<paper>/<table>/<row>`.

    Args:
        reference: to a row.
        where: the key that says so, for the message.

    Raises:
        UserError: no such table or row.
    """
    table, _, row = reference.removeprefix(ROW).rpartition("/")
    rows = [r.name for r in load(table).rows]
    if row not in rows:
        raise unknown(f"the row of {where}={reference}, {table}", row, rows)
    return f"+{table}={row}"


def listing() -> str:
    """Every table in two lines: name, title, source, metric; then its rows."""
    lines = []
    for table in map(load, tables()):
        better = "low" if table.better == "lower" else "high"
        lines.append(f"{table.path:<24} {table.title} ({table.source}; {table.metric}, {better})")
        lines.append(f"{'':<24} {', '.join(row.name for row in table.rows)}")
    return "\n".join(lines)


def title_of(file: Path) -> str:
    """The first comment line of a YAML file that is no directive; its stem if there is none."""
    for line in file.read_text(encoding="utf-8").splitlines():
        if line.startswith("#") and not line.startswith("# @package"):
            return line.lstrip("# ").strip()
    return file.stem


def _published(file: Path) -> tuple[Published, ...]:
    if not file.exists():
        return ()
    with file.open(encoding="utf-8", newline="") as opened:
        return tuple(
            Published(
                line["row"],
                line["column"],
                float(line["value"]),
                line["unit"],
                line["source"],
                line["note"],
            )
            for line in csv.DictReader(opened)
        )
