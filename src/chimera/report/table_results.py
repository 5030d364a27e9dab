"""The results of a table at one scale: its runs, and for each row mean, spread and difference.

The last rows are trivial predictors, whose numbers are in the records of the runs; a record without
one gives no row:

    unigram     token frequencies of train (perplexity, and its logarithm as loss)
    constant    the most frequent class of train, or the mean score of train
    overlap     the tokens that the two texts of an example have in common
    base        the start model before training, where the task measures it
    guess       the answer drawn at random from those that the data allow
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Any

from chimera.config.compose import compose, plain
from chimera.config.groups import groups
from chimera.config.start_model import applicable
from chimera.config.tables import Published, Row, RowRun, Table, jobs, load
from chimera.dotted import flatten
from chimera.errors import UserError, nearest, one_line
from chimera.report import formatting
from chimera.report.stats import Difference, Spread, corrected, finite, paired, resolvable, spread
from chimera.rundir.directory import RunDir
from chimera.rundir.environment import computed_on
from chimera.rundir.identity import NUMERICS, apart, text_of
from chimera.rundir.records import Records
from chimera.rundir.steps import losses, read
from chimera.safe_io import check_fields, read_json

#: Key of run.json with the metrics by each rule of evaluation that was not chosen.
OTHER_RULES = "other_rules"
#: Types of what a report reads of run.json, if it is there.
SHAPES: dict[str, type] = {
    **dict.fromkeys(("metrics", "data", "skipped", "epochs", OTHER_RULES), dict),
    "validations": list,
}
#: Keys of run.json with the metrics of predictions without a network, of runs that record them.
CONSTANT = "constant_prediction"
OVERLAP = "overlap_prediction"
#: Titles by name, in the order of the tables.
PREDICTORS = {
    "unigram": "Unigram model, no network",
    "constant": "Constant prediction, no network",
    "overlap": "Tokens in common, no network",
    "guess": "Guess among the possible answers, no network",
    "base": "Start model, untouched",
}
#: Resolved configurations by row and seed.
Configs = Mapping[tuple[str, int], dict[str, Any]]


@dataclass(frozen=True)
class Cell:
    """One run of a table.

    Args:
        row, seed: row of the table and seed of the run.
        state: done, running, stopped, failed or missing; `cut off` if its process is gone and
            recorded no reason.
        why: reason of a failed or stopped run; progress of a running one.
        value: value of the table's metric; None unless done.
        directory: directory of the run; it need not exist.
        config: configuration as composed now.
        record: contents of run.json; empty unless done.
        environment: contents of environment.json; empty before the run has started.
        steps: thinned columns of its step log; empty if that is in the directory.
    """

    row: str
    seed: int
    state: str
    directory: Path
    config: dict[str, Any] = field(repr=False)
    why: str = ""
    value: float | None = None
    record: dict[str, Any] = field(repr=False, default_factory=dict)
    environment: dict[str, Any] = field(repr=False, default_factory=dict)
    steps: dict[str, list[Any]] = field(repr=False, default_factory=dict)

    @property
    def computed_on(self) -> str | None:
        """Name of the GPU or processor that trained the run; None if it is not recorded."""
        return computed_on(self.environment, self.config)

    def losses(self) -> tuple[list[float], list[float]]:
        """Steps and training losses of the run; a record has those of some steps.

        There are none where its step log cannot be read.
        """
        try:
            return losses(self.steps or self.directory / "steps.csv")
        except UserError:
            return [], []


def cells(table: Table, overrides: list[str], seeds: list[int], configs: Configs) -> list[Cell]:
    """All cells of a table, row by row.

    Args:
        table: the table.
        overrides: overrides of all its jobs, such as `scale=small`.
        seeds: seeds of the runs of each row.
        configs: configurations that are composed already.

    Raises:
        UserError: a row does not compose.
    """
    records = Records()
    all_cells = []
    for job in jobs(table, overrides, seeds):
        config = configs.get((job.row, job.seed)) or plain(compose(applicable(job.overrides)))
        directory = RunDir.of(config)
        all_cells.append(_cell(table, job, config, directory, records))
    records.tell()
    return all_cells


def metric(record: dict[str, Any], key: str) -> float | None:
    """A metric of a run, such as val/loss, or another number of its record, such as steps.

    None if it is absent or not finite.
    """
    numbers = record.get("metrics") if "/" in key else flatten(record)
    return finite(numbers.get(key)) if isinstance(numbers, dict) else None


def _cell(
    table: Table, job: RowRun, config: dict[str, Any], directory: RunDir, records: Records
) -> Cell:
    known: Any = {"row": job.row, "seed": job.seed, "directory": directory.path, "config": config}
    try:
        kept = records.find(config, directory)
        known["environment"] = (
            kept.environment if kept else read_json(directory.path / "environment.json")
        )
        state, why = ("done", "") if kept else _state(directory)
        if state != "done":
            return Cell(**known, state=state, why=why)
        result = kept.result if kept else directory.record()
        check_fields({n: kind() for n, kind in SHAPES.items()} | result, SHAPES, "run.json")
        steps = kept.steps if kept else {}
        result = result | _derived(table, steps or directory.steps, known["environment"])
        if (value := metric(result, table.metric)) is None:
            there = result.get("metrics", {})
            near = "" if table.metric in there else nearest(table.metric, there)
            raise UserError(f"run.json has no finite {table.metric}{near}")
    except UserError as error:
        return Cell(**known, state="failed", why=one_line(error))
    return Cell(**known, state=state, value=value, record=result, steps=steps)


def _derived(
    table: Table, log: Path | dict[str, list[Any]], environment: dict[str, Any]
) -> dict[str, float | None]:
    """The norm of the last gradient, if the table asks for it; no memory of a run on a CPU.

    A paper's memory is that of tensors on a GPU; a CPU's record has that of the whole process.
    """
    found: dict[str, float | None] = {} if environment.get("gpu") else {"peak_memory_gb": None}
    if "grad_norm" in table.also:
        norms = (read(log) if isinstance(log, Path) else log).get("grad_norm", ())
        found["grad_norm"] = finite([*norms][-1]) if len(norms) else None
    return found


def _state(directory: RunDir) -> tuple[str, str]:
    """State of a run, and its reason or progress, from status.json."""
    status = directory.status()
    known = {"step", "max_steps"} <= status.keys() and status["max_steps"]
    progress = f"step {status['step']} of {status['max_steps']}" if known else ""
    match status.get("state"):
        case None:
            return "missing", ""
        case "DONE":
            return "done", ""
        case "FAILED":
            return "failed", one_line(status.get("why", "no reason was recorded"))
        case "STOPPED":
            return "stopped", one_line(status.get("why", progress))
        case _:
            return ("running" if directory.is_running() else "cut off"), progress


#: Facts of a row (means over its runs), and their dotted keys in run.json.
FACTS = {
    "parameters": "parameters.total",
    "bytes_packed": "bytes.total.packed",
    "bytes_fp16": "bytes.total.fp16",
    "bytes_fp32": "bytes.total.fp32",
    "flops": "flops.training",
    "mfu": "mfu",
    "tokens_per_second": "tokens_per_second",
    "seconds": "wall_seconds",
}
#: Start of the override that chooses a scale.
SCALE = "scale="


@dataclass(frozen=True)
class Line:
    """One row of the table.

    Args:
        name, title: name and title of the row.
        published: published value of the table's metric.
        also_published: published values of other columns, by column.
        cells: runs of the row, one per seed.
        difference: difference to the reference row; None for the reference itself and without
            common finished seeds.
        runs_of: row whose runs these are, evaluated by another rule; empty for a row of the table.
    """

    name: str
    title: str
    published: Published | None
    also_published: dict[str, Published]
    cells: tuple[Cell, ...]
    difference: Difference | None
    runs_of: str = ""

    @property
    def rule(self) -> str:
        """By which its runs were evaluated; empty for that of their configuration."""
        return self.name.removeprefix(self.runs_of) if self.runs_of else ""

    @property
    def values(self) -> dict[int, float]:
        """Values of the finished runs by seed."""
        return _values(self.cells)

    @property
    def ours(self) -> Spread | None:
        """Mean and spread of the finished runs."""
        return spread(list(self.values.values()))

    @property
    def facts(self) -> dict[str, float | None]:
        """Means over the finished runs, by the names in FACTS; None in a line of another rule."""
        found = {name: self.measured(key) for name, key in FACTS.items()}
        return {n: None if self.runs_of or m is None else m.mean for n, m in found.items()}

    @property
    def result(self) -> str:
        """Mean and spread with the number of unfinished seeds, or the states of its runs."""
        undone = Counter(cell.state for cell in self.cells if cell.state != "done")
        states = ", ".join(f"{n} {state}" for state, n in undone.items())
        if self.ours is None:
            return next(iter(undone)) if len(undone) == 1 else states
        text = formatting.spread(self.ours)
        return f"{text} ({self.ours.n} of {len(self.cells)} seeds; {states})" if undone else text

    def printed(self, key: str) -> float | None:
        """The published value of a column; None if the paper prints none."""
        if self.published and self.published.column == key:
            return self.published.value
        return self.also_published[key].value if key in self.also_published else None

    def measured(self, key: str) -> Spread | None:
        """Mean and spread of a metric or number in the runs' records; None if no run has it."""
        return spread([v for cell in self.cells if (v := metric(cell.record, key)) is not None])


@dataclass(frozen=True)
class Pair:
    """Two rows, `first` better in the paper; `difference` is positive if our runs agree."""

    first: Line
    second: Line
    difference: Difference

    @property
    def agrees(self) -> bool:
        return self.difference.mean > 0


@dataclass(frozen=True)
class Baseline:
    """A trivial predictor.

    Args:
        name, title: for the tables.
        value: mean and spread over the runs of the table; they differ where their data do.
    """

    name: str
    title: str
    value: Spread


@dataclass(frozen=True)
class TableResults:
    """A table at one scale: its lines in the order of the table, and the pairs the paper ranks."""

    table: Table
    overrides: list[str]
    seeds: list[int]
    numerics: int
    lines: tuple[Line, ...]
    pairs: tuple[Pair, ...]

    @property
    def scale(self) -> str:
        chosen = [text.removeprefix(SCALE) for text in self.overrides if text.startswith(SCALE)]
        return chosen[-1] if chosen else "none"

    @property
    def resolvable(self) -> float | None:
        """Smallest difference to the reference that this table would call significant, about."""
        if self.table.counts:
            return None
        return resolvable([line.difference for line in self.lines])

    @property
    def trained(self) -> list[Line]:
        """Lines of runs of their own: not those evaluated by another rule."""
        return [line for line in self.lines if not line.runs_of]

    @property
    def cells(self) -> list[Cell]:
        """Each run once."""
        return [cell for line in self.trained for cell in line.cells]

    @property
    def other_text(self) -> str:
        """A sentence if runs of the same settings were trained on different tokens; else empty."""
        return apart(text_of(cell.record) for cell in self.cells)

    @property
    def columns(self) -> list[str]:
        """Published columns besides the table's metric, in the paper's order."""
        metric = self.table.metric
        return list(dict.fromkeys(p.column for p in self.table.published if p.column != metric))

    @cached_property
    def baselines(self) -> list[Baseline]:
        """The trivial predictors that have a value of the table's metric."""
        runs = [_predictions(cell.record, self.table.metric) for cell in self.cells if cell.record]
        found = {n: spread([v for run in runs if (v := run[n]) is not None]) for n in PREDICTORS}
        return [Baseline(n, PREDICTORS[n], value) for n, value in found.items() if value]

    def below(self, baseline: Baseline) -> list[str]:
        """Rows whose mean is not better than a baseline."""
        sign = 1.0 if self.table.better == "higher" else -1.0
        means = {line.name: line.ours.mean for line in self.lines if line.ours}
        return [n for n, mean in means.items() if sign * (mean - baseline.value.mean) <= 0]

    @cached_property
    def at_paper_scale(self) -> dict[str, dict[str, Any]]:
        """Flat configuration of each row at scale=paper; empty for rows that do not compose.

        Without the overrides of these runs, whose budgets and data are not the paper's.
        """
        configs: dict[str, dict[str, Any]] = {line.name: {} for line in self.lines}
        if "paper" in groups().get("scale", []):
            for job in jobs(self.table, [f"{SCALE}paper"], self.seeds[:1]):
                with suppress(UserError):
                    configs[job.row] = flatten(plain(compose(list(job.overrides))))
        return configs


def read_results(
    table: Table | str, overrides: list[str], seeds: list[int], configs: Configs | None = None
) -> TableResults:
    """Read the runs of a table and read_results them.

    Args:
        table: the table or its name.
        overrides: overrides of all its jobs, such as `scale=small`.
        seeds: seeds of its runs.
        configs: configurations that are composed already, by row and seed.

    Raises:
        UserError: the table does not exist, or a row does not compose.
    """
    if isinstance(table, str):
        table = load(table)
    by_row: dict[str, list[Cell]] = {row.name: [] for row in table.rows}
    all_cells = cells(table, overrides, seeds, configs or {})
    for cell in all_cells:
        by_row[cell.row].append(cell)
    reference = _values(by_row.get(table.reference, []))
    lines = []
    for row in table.rows:
        lines.append(_line(table, row, by_row[row.name], reference))
        lines += _by_other_rules(table, lines[-1], reference)
    tested = corrected([line.difference for line in lines], test=not table.counts)
    lines = [replace(line, difference=d) for line, d in zip(lines, tested, strict=True)]
    pairs = _pairs(lines, table.better, test=not table.counts)
    return TableResults(table, list(overrides), list(seeds), NUMERICS, tuple(lines), pairs)


def _line(table: Table, row: Row, row_cells: list[Cell], reference: dict[int, float]) -> Line:
    published = {p.column: p for p in table.published if p.row == row.name}
    return Line(
        name=row.name,
        title=row.title,
        published=published.pop(table.metric, None),
        also_published=published,
        cells=tuple(row_cells),
        difference=None if row.name == table.reference else paired(_values(row_cells), reference),
    )


def _by_other_rules(table: Table, line: Line, reference: dict[int, float]) -> list[Line]:
    """Lines of the same runs, evaluated by rules that their configuration did not choose.

    Args:
        table: of the line.
        line: of the chosen rule. Its published value is theirs too: papers do not name a rule.
        reference: values of the reference row by seed.
    """
    lines = []
    for rule in sorted({r for cell in line.cells for r in cell.record.get(OTHER_RULES, {})}):
        judged = []
        for cell in line.cells:
            metrics = cell.record.get(OTHER_RULES, {}).get(rule, {})
            value = metric({"metrics": metrics}, table.metric)
            state = "not evaluated" if cell.state == "done" and value is None else cell.state
            record = cell.record | {"metrics": metrics}
            judged.append(replace(cell, state=state, value=value, record=record))
        words = rule.replace("_", " ")
        lines.append(
            replace(
                line,
                name=f"{line.name}_{rule}",
                title=f"{line.title}; the same runs evaluated with the {words}",
                also_published={},
                cells=tuple(judged),
                difference=paired(_values(judged), reference),
                runs_of=line.name,
            )
        )
    return lines


def _values(row_cells: Sequence[Cell]) -> dict[int, float]:
    return {cell.seed: cell.value for cell in row_cells if cell.value is not None}


def _pairs(lines: Sequence[Line], better: str, *, test: bool) -> tuple[Pair, ...]:
    """All pairs of rows that the paper ranks and that have a common finished seed.

    Of rows whose runs were evaluated by several rules, lines of the same rule make a pair.
    """
    sign = -1.0 if better == "lower" else 1.0
    pairs = []
    ruled = {line.runs_of for line in lines}
    for a, b in combinations([line for line in lines if line.published], 2):
        assert a.published is not None
        assert b.published is not None
        if a.rule != b.rule and {a.runs_of or a.name, b.runs_of or b.name} <= ruled:
            continue
        gap = sign * (a.published.value - b.published.value)
        first, second = (a, b) if gap > 0 else (b, a)
        difference = paired(
            {seed: sign * value for seed, value in first.values.items()},
            {seed: sign * value for seed, value in second.values.items()},
        )
        if gap != 0 and difference is not None:
            pairs.append(Pair(first, second, difference))
    tested = corrected([pair.difference for pair in pairs], test=test)
    return tuple(replace(p, difference=d) for p, d in zip(pairs, tested, strict=True) if d)


def _predictions(record: dict[str, Any], key: str) -> dict[str, float | None]:
    """The value that each predictor has of a metric, by the record of a run."""
    perplexity = metric(record, "val/unigram_perplexity") or 0.0
    unigram = {"val/perplexity": perplexity, "val/loss": math.log(perplexity or 1.0)}
    group, _, name = key.partition("/")
    share = metric(record, "val/majority_accuracy")
    constant = share if name == "accuracy" else 0.0 if share and key == "val/mcc" else None
    return {
        "unigram": unigram.get(key) if perplexity > 0 else None,
        "constant": _recorded(record, CONSTANT, key) if record.get(CONSTANT) else constant,
        "overlap": _recorded(record, OVERLAP, key),
        "guess": metric(record, "val/chance_accuracy") if name == "accuracy" else None,
        "base": metric(record, f"{group}_base/{name}") if name else None,
    }


def _recorded(record: dict[str, Any], predictor: str, key: str) -> float | None:
    return metric({"metrics": record.get(predictor) or {}}, key)
