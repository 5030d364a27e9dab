"""Read the tables of `experiments/` and list the jobs that fill a table.

experiments/<paper>/<table>.yaml         a table: title, source, metric, reference, number of rows
experiments/<paper>/<table>/<row>.yaml   a row: overrides only; its first comment is its title
experiments/<paper>/<table>.csv          numbers printed in the paper
experiments/<paper>/<table>.rates.csv    learning rates chosen for the rows (row_learning_rates.py)

Does not import torch.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import wrap
from typing import Literal

import yaml
from pydantic import TypeAdapter

from chimera.config.groups import find, is_part, roots
from chimera.errors import UserError, unknown

#: Prefix of a reference to a row of a table.
ROW = "row:"


#: A value of a row that is read from the environment.
_VARIABLE = re.compile(r"\$\{oc\.env:(\w+)")


@dataclass(frozen=True)
class Row:
    """One line of a table: the option `name` of the group `<paper>/<table>`."""

    name: str
    title: str


@dataclass(frozen=True)
class Published:
    """One number printed in the paper."""

    row: str
    column: str
    value: float
    unit: str
    source: str
    note: str


@dataclass(frozen=True)
class Table:
    """A table of a paper, reproduced by runs.

    Args:
        paper: folder below experiments/.
        name: of the table in that folder.
        title: for readers.
        source: number or section of the table in the paper.
        metric: key of the compared metric in run.json.
        better: whether a lower or a higher metric is better.
        reference: row that the other rows are compared with.
        note: differences between a row and the paper's setting, with reasons.
        rows: in the order of the published numbers, then by name; a reference without any is first.
        published: the paper's numbers.
        also: further metrics to show, which the paper does not print.
        counts: the metric is a count, such as a number of gates: no difference is tested.
        whole: the table of which this has some rows (`only`); None for a whole one.
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
    counts: bool = False
    whole: Table | None = None

    @property
    def path(self) -> str:
        """`<paper>/<table>`, which is also the configuration group of the rows."""
        return f"{self.paper}/{self.name}"

    @property
    def left_out(self) -> tuple[str, ...]:
        """Names of the rows of the whole table that this one has not."""
        all_rows = self.whole.rows if self.whole else ()
        return tuple(row.name for row in all_rows if row not in self.rows)

    def only(self, rows: Sequence[str]) -> Table:
        """The table with some of its rows, in its order; with all of them for none named.

        Where its reference is not among them, the first one named is.

        Raises:
            UserError: it has no such row.
        """
        names = [row.name for row in self.rows]
        for row in rows:
            if row not in names:
                raise unknown("rows", row, names)
        if not rows or set(rows) == set(names):
            return self
        return replace(
            self,
            rows=tuple(row for row in self.rows if row.name in rows),
            published=tuple(p for p in self.published if p.row in rows),
            reference=self.reference if self.reference in rows else rows[0],
            whole=self,
        )


@dataclass(frozen=True)
class RowRun:
    """One run of a table: its row, its seed, its overrides."""

    row: str
    seed: int
    overrides: list[str]


def tables() -> list[str]:
    """Names of all tables, as `<paper>/<table>`, sorted."""
    names = {
        file.relative_to(root).with_suffix("").as_posix()
        for root in roots()[1:]
        for file in root.glob("*/*.yaml")
        if not is_part(file.parent.name)
    }
    return sorted(names)


def load(name: str) -> Table:
    """Read the table `<paper>/<table>`.

    Raises:
        UserError: no such table, the message names the nearest; or not as many rows as it says.
    """
    if name not in tables():
        raise unknown("table", name, tables())
    paper, _, table = name.partition("/")
    file = find(name)
    node = yaml.safe_load(file.read_text(encoding="utf-8"))["table"]
    published = _published(file.with_suffix(".csv"))
    order = list(dict.fromkeys(p.row for p in published))
    if node["reference"] not in order:
        order.insert(0, node["reference"])
    names = sorted(
        (path.stem for path in file.with_suffix("").glob("*.yaml")),
        key=lambda row: (order.index(row) if row in order else len(order), row),
    )
    if (count := node.pop("rows", len(names))) != len(names):
        raise UserError(f"{file} says rows: {count}, and {file.with_suffix('')} has {len(names)}")
    rows = tuple(Row(row, title_of(file.with_suffix("") / f"{row}.yaml")) for row in names)
    return Table(paper, table, **node, rows=rows, published=published)


def variables(table: Table) -> list[str]:
    """Names of the environment variables that the rows read, in alphabetical order."""
    folder = find(table.path).with_suffix("")
    texts = ((folder / f"{row.name}.yaml").read_text(encoding="utf-8") for row in table.rows)
    return sorted({name for text in texts for name in _VARIABLE.findall(text)})


def metric_of(name: str) -> str | None:
    """Key of the metric that a table compares; None if there is no table of this name."""
    return load(name).metric if name in tables() else None


def jobs(table: Table, overrides: list[str], seeds: list[int]) -> list[RowRun]:
    """List the runs of a table: every row with every seed.

    A job's run directory is `RunDir.of(plain(compose(job.overrides)))`.

    Args:
        table: whose rows are run.
        overrides: of all jobs, besides row and seed.
        seeds: of the runs of each row.

    Raises:
        UserError: `overrides` sets a seed.
    """
    for override in overrides:
        if override.startswith("seed="):
            raise UserError(f"{override} is no override of a table; give its seeds in `seeds`")
    return [
        RowRun(row.name, seed, [f"+{table.path}={row.name}", *overrides, f"seed={seed}"])
        for row in table.rows
        for seed in seeds
    ]


def row_override(reference: str, where: str) -> str:
    """Override that chooses the row of a reference.

    Args:
        reference: `row:<paper>/<table>/<row>`.
        where: key whose value the reference is, for the message.

    Raises:
        UserError: no such table or row.
    """
    table, _, row = reference.removeprefix(ROW).rpartition("/")
    rows = [r.name for r in load(table).rows]
    if row not in rows:
        raise unknown(f"the row of {where}={reference}, {table}", row, rows)
    return f"+{table}={row}"


def listing(width: int | None = None) -> str:
    """Describe all tables, each in two lines: name, title, source and metric; then its rows.

    Args:
        width: of a terminal, in characters, to which lines are broken; None breaks none.
    """
    lines = []
    for table in map(load, tables()):
        better = "low" if table.better == "lower" else "high"
        lines.append(f"{table.path:<24} {table.title} ({table.source}; {table.metric}, {better})")
        lines.append(f"{'':<24} {', '.join(row.name for row in table.rows)}")
    if width is not None:
        lines = [part for line in lines for part in wrap(line, width, subsequent_indent=" " * 25)]
    return "\n".join(lines)


def title_of(file: Path) -> str:
    """First comment line of a YAML file, without `# @package` lines; its stem if it has none."""
    for line in file.read_text(encoding="utf-8").splitlines():
        if line.startswith("#") and not line.startswith("# @package"):
            return line.lstrip("# ").strip()
    return file.stem


def _published(file: Path) -> tuple[Published, ...]:
    if not file.exists():
        return ()
    with file.open(encoding="utf-8", newline="") as opened:
        return TypeAdapter(tuple[Published, ...]).validate_python(list(csv.DictReader(opened)))
