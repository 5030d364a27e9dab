"""Read the tables of `experiments/` and list the jobs that fill a table.

experiments/<paper>/<table>.yaml         a table: title, source, metric, reference, number of rows
experiments/<paper>/<table>/<row>.yaml   a row: overrides only; its first comment is its title
experiments/<paper>/<table>.csv          numbers printed in the paper
experiments/<paper>/<table>.rates.csv    what each row reached at several learning rates, by scale

A table without rows is computed by a module that it names, without runs (`chimera.tables`).

`chimera rates` writes the last from finished runs, on seeds of their own; a row trains at the rate
that is best there. Does not import torch.
"""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, fields, replace
from io import StringIO
from math import isfinite, nan
from pathlib import Path
from statistics import fmean
from textwrap import wrap
from typing import Any, Literal, TypeVar, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError

from chimera.config.groups import contents, find, groups, is_part, roots
from chimera.config.schema import check_value
from chimera.errors import UserError, nearest, one_line, unknown
from chimera.program import command_name
from chimera.safe_io import read_text

#: Prefix of a reference to a row of a table.
ROW = "row:"
#: End of the name of a table's file of learning rates.
RATES = ".rates.csv"
FINITE = ConfigDict(allow_inf_nan=False)
Line = TypeVar("Line")

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
    source: str
    unit: str = ""
    note: str = ""


@dataclass(frozen=True)
class Tried:
    """A run that chooses a learning rate.

    Args:
        scale, row: of the table.
        rate: learning rate.
        seed: of the run; no seed of the table's report.
        value: of the table's metric; None if the run's numbers did not stay finite.
        steps: of the run; None if the file, of an older version, does not say.
    """

    scale: str
    row: str
    rate: float
    seed: int
    value: float | None = None
    steps: int | None = None


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
class Computed:
    """A table of a paper that a program computes, without runs.

    Args:
        table: `<paper>/<table>`.
        title, source, note: as of a table of runs.
        computed: module whose function `main(arguments)` prints and writes it.
    """

    table: str
    title: str
    source: str
    computed: str
    note: str = ""


@dataclass(frozen=True)
class RowRun:
    """One run of a table: its row, its seed, its overrides."""

    row: str
    seed: int
    overrides: list[str]


def tables() -> list[str]:
    """Names of all tables of runs, as `<paper>/<table>`, sorted."""
    return [name for name in _named() if name in groups()]


def computed_tables() -> list[str]:
    """Names of all tables that are computed without runs, sorted."""
    return [name for name in _named() if name not in groups()]


def _named() -> list[str]:
    papers = [group for group in groups() if "/" not in group and not is_part(group)]
    return sorted(f"{paper}/{table}" for paper in papers for table in groups()[paper])


def load_computed(name: str) -> Computed:
    """Read the computed table `<paper>/<table>`.

    Raises:
        UserError: there is none, or its file is wrong.
    """
    file = find(name)
    node = _node(file)
    if "computed" not in node:
        raise UserError(f"{file} has neither rows in {file.with_suffix('')}/ nor table.computed")
    hints = get_type_hints(Computed)
    del hints["table"]
    _check(file, node, hints, Computed)
    if not re.fullmatch(r"chimera\.tables\.\w+", node["computed"]):  # a file is data, no program
        raise UserError(f"{file}: table.computed={node['computed']} is no module of chimera.tables")
    return Computed(name, **node)


def load(name: str) -> Table:
    """Read the table `<paper>/<table>`.

    Raises:
        UserError: no such table, the message names the nearest; or not as many rows as it says.
    """
    if name in computed_tables():
        load_computed(name)
        raise UserError(f"{name} is computed, without runs: {command_name('table')} {name}")
    if name not in tables():
        raise unknown("table", name, [*tables(), *computed_tables()])
    paper, _, table = name.partition("/")
    file = find(name)
    names = groups().get(name, [])
    node = _settings(file, names)
    published = read_csv(file.with_suffix(".csv"), Published)
    for line in published:
        if line.row not in names:
            raise unknown(f"{file.with_suffix('.csv')}: row", line.row, names)
    order = list(dict.fromkeys(p.row for p in published))
    if node["reference"] not in order:
        order.insert(0, node["reference"])
    names = sorted(names, key=lambda row: order.index(row) if row in order else len(order))
    rows = tuple(Row(row, title_of(file.with_suffix("") / f"{row}.yaml")) for row in names)
    return Table(paper, table, **node, rows=rows, published=tuple(published))


def _settings(file: Path, names: Sequence[str]) -> dict[str, Any]:
    """The arguments of a table in its file, checked as those of a class are.

    Args:
        file: of the table.
        names: of its rows.
    """
    node = _node(file)
    hints = get_type_hints(Table) | {"also": list[str], "rows": int}
    for key in ("paper", "name", "published", "whole"):
        del hints[key]
    _check(file, node, hints, Table)
    if node["reference"] not in names:
        raise unknown(f"{file}: table.reference", node["reference"], names)
    if (count := node.pop("rows", len(names))) != len(names):
        raise UserError(f"{file} says rows: {count}, and {file.with_suffix('')} has {len(names)}")
    return node | {"also": tuple(node.get("also", ()))}


def _node(file: Path) -> dict[str, Any]:
    """The mapping `table` of a file."""
    node = contents(file).get("table")
    if not isinstance(node, dict):
        raise UserError(f"{file} holds no mapping table:")
    return node


def _check(file: Path, node: dict[str, Any], hints: dict[str, Any], kind: type) -> None:
    """Check that a mapping has the keys of a dataclass that `hints` names, and no others."""
    check_value(f"{file}: table", node, hints)
    for field in fields(kind):
        if field.name in hints and field.name not in (*node, "rows") and field.default is MISSING:
            raise UserError(f"{file}: table.{field.name} is missing")


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
    if "/" not in table:
        raise UserError(
            f"{where}={reference} names no row; write {where}=row:<paper>/<table>/<row>"
        )
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
    for one in map(load_computed, computed_tables()):
        lines.append(f"{one.table:<24} {one.title} ({one.source}; computed without runs)")
    if width is not None:
        lines = [part for line in lines for part in wrap(line, width, subsequent_indent=" " * 25)]
    return "\n".join(lines)


def title_of(file: Path) -> str:
    """First comment line of a YAML file, without `# @package` lines; its stem if it has none."""
    for line in file.read_text(encoding="utf-8").splitlines():
        if line.startswith("#") and not line.startswith("# @package"):
            return line.lstrip("# ").strip()
    return file.stem


def read_csv(file: Path, kind: type[Line]) -> list[Line]:
    """The lines of a CSV file, each an instance of a dataclass; empty without the file.

    Args:
        file: its columns are fields of the class; an empty cell leaves a field at its default.
        kind: the class.

    Raises:
        UserError: naming the line, and the column.
    """
    if not file.exists():
        return []
    columns = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    found = list[dict[str, str]]()
    try:
        lines = csv.DictReader(StringIO(read_text(file)), restkey="one too many")
        for line in [dict.fromkeys(lines.fieldnames or (), ""), *lines]:
            if wrong := [key for key in line if key not in columns]:
                near = nearest(wrong[0], columns)
                raise UserError(f"{file}: {wrong[0]} is no column{near} ({', '.join(columns)})")
            found.append({key: cell for key, cell in line.items() if cell})
        del found[0]  # of the names of columns
        return TypeAdapter(list[kind], config=FINITE).validate_python(found)  # type: ignore[valid-type]
    except ValidationError as error:
        (number, *column), said = error.errors()[0]["loc"], error.errors()[0]["msg"]
        where = f"line {int(number) + 2}, {'.'.join(map(str, column))}"
        raise UserError(f"{file}: {where}: {said[0].lower()}{said[1:]}") from error
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{file} cannot be read: {one_line(error)}") from error


def tried(table: str, scale: str | None = None) -> list[Tried]:
    """All lines of the files of rates of `<paper>/<table>`; empty without one.

    What a user's folder says of a row at a scale replaces what Chimera's says of it.

    Args:
        table: its name.
        scale: of the lines; None for all.

    Raises:
        UserError: a line that cannot be read.
    """
    lines: list[Tried] = []
    for file in (root / f"{table}{RATES}" for root in roots()):
        found = read_csv(file, Tried)
        for line in found:
            for column, names in (("row", groups()[table]), ("scale", groups()["scale"])):
                if getattr(line, column) not in names:
                    raise unknown(f"{file}: {column}", getattr(line, column), names)
        replaced = {(line.scale, line.row) for line in found}
        lines = [line for line in lines if (line.scale, line.row) not in replaced] + found
    return [line for line in lines if scale in (None, line.scale)]


def best_rates(lines: Sequence[Tried], better: Literal["lower", "higher"]) -> dict[str, float]:
    """The rate of each row whose mean over seeds is best; of equal means the lowest rate.

    Only rates with all seeds of their row are compared: of a rate that is good on one seed and
    falls apart on another, the first alone knows nothing.

    Args:
        lines: of one scale.
        better: whether a lower or a higher value is better.
    """
    sign = 1 if better == "lower" else -1
    values = defaultdict[str, dict[float, list[float]]](lambda: defaultdict(list))
    for line in lines:
        values[line.row][line.rate].append(nan if line.value is None else line.value)
    chosen: dict[str, float] = {}
    for row, by_rate in values.items():
        seeds = max(map(len, by_rate.values()))
        means = {rate: sign * fmean(v) for rate, v in by_rate.items() if len(v) == seeds}
        if ranked := sorted((mean, rate) for rate, mean in means.items() if isfinite(mean)):
            chosen[row] = ranked[0][1]
    return chosen


def chosen_rate(table: str, row: str, scale: str) -> float | None:
    """The rate of a row at a scale; None if none was chosen.

    Raises:
        UserError: the file cannot be read.
    """
    lines = [line for line in tried(table, scale) if line.row == row]
    return best_rates(lines, load(table).better).get(row) if lines else None
