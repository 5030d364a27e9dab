"""What the evidence notebooks share: records as one frame, committed reports, paired ratios."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import pandas as pd
from IPython.display import Markdown, display

from chimera.config import row_learning_rates as rates
from chimera.config.tables import Table, load
from chimera.paths import EXPERIMENTS, ROOT
from chimera.report import formatting
from chimera.report.stats import Difference, corrected, paired
from chimera.rundir.records import frame

#: Values of one row by seed.
Seeds = Mapping[int, float]
RESULTS = ROOT / "benchmarks" / "results"
#: Scales of committed reports; the first that a table has is shown.
SCALES = ("paper", "medium", "small")


def runs(*tables: str, **chosen: object) -> pd.DataFrame:
    """The kept runs, one row each: flat settings (`optim.lr`), metrics (`val/loss`), costs.

    Args:
        tables: whose runs.
        chosen: values of columns; `__` stands for a point, as in `choices__scale="medium"`.
    """
    found = _records(tables)
    for column, value in chosen.items():
        found = found[found[column.replace("__", ".")] == value]
    return found


@cache
def _records(tables: tuple[str, ...]) -> pd.DataFrame:
    return frame(*tables)


def at_own_rate(found: pd.DataFrame, table: str, scale: str = "medium") -> pd.DataFrame:
    """Runs of a table at each row's chosen learning rate, without the seeds that chose it."""
    choosing = {line.seed for line in rates.lines_at(table, scale)}
    own = {row: rates.chosen(table, row, scale) for row in found["row"].unique()}
    kept = found["optim.lr"].astype(float) == found["row"].map(own).astype(float)
    return found[kept & ~found["seed"].isin(choosing)]


def by_seed(found: pd.DataFrame, column: str) -> dict[int, float]:
    """Values of one row by seed.

    Raises:
        ValueError: two runs have the same seed, so that a filter is missing.
    """
    if found["seed"].duplicated().any():
        raise ValueError(f"two runs of one seed: {sorted(found['name'])}")
    pairs = found.sort_values("seed")[["seed", column]].itertuples(index=False)
    return {int(seed): float(value) for seed, value in pairs}


def by_row(found: pd.DataFrame, column: str) -> dict[str, dict[int, float]]:
    """Values by row and seed."""
    return {str(row): by_seed(part, column) for row, part in found.groupby("row", sort=False)}


def results(name: str) -> dict[str, Any]:
    """Contents of a results file of `benchmarks/`."""
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return found


def source(name: str) -> str:
    """Which command measured a results file, and where."""
    found = results(name)
    machine, commit = found["machine"], found["machine"]["git"]
    features = "".join(f", {feature}" for feature in found.get("features", []))
    threads = (
        f", {found['threads']} thread{'s' * (found['threads'] != 1)}" if "threads" in found else ""
    )
    state = " with changes" * bool(commit["changed"])
    return (
        f"`python -m benchmarks {name}`, commit `{commit['commit'][:7]}`{state}:"
        f" {machine['processor']}, {machine['cpus']} cores{features}{threads}."
    )


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table as text."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)


def show(head: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Display a table."""
    display(Markdown(table(head, rows)))


def show_frame(frame: pd.DataFrame, spec: str | Mapping[str, str] = "", index: str = "") -> None:
    """Display a frame, with a dash where a number is missing.

    Args:
        frame: its columns are the head.
        spec: format of numbers, of all columns or of each.
        index: head of the first column.
    """
    specs = spec if isinstance(spec, Mapping) else dict.fromkeys(frame.columns, spec)

    def cell(column: str, value: Any) -> str:
        return value if isinstance(value, str) else f"{value:{specs.get(column, '')}}"

    rows = [
        [name, *("–" if pd.isna(v) else cell(c, v) for c, v in zip(frame, values, strict=True))]
        for name, *values in frame.itertuples()
    ]
    show([index, *frame], rows)


def say(text: str) -> None:
    """Display a paragraph."""
    display(Markdown(text))


@dataclass(frozen=True)
class Report:
    """A committed report.

    Args:
        table: what it is of.
        scale: of its runs.
        rows: lines of report.csv by row, the best first; rows without a result are left out.
        baselines: trivial predictors, by name.
    """

    table: Table
    scale: str
    rows: pd.DataFrame
    baselines: dict[str, float]

    def values(self, row: str) -> dict[int, float]:
        """Values of a row by seed; empty without the row."""
        return dict(self.rows["by_seed"].get(row, {}))

    def shown(self, row: str) -> str:
        """Mean and standard deviation of a row."""
        return formatting.values(self.values(row).values())

    def link(self, text: str) -> str:
        """A link to report.md."""
        return f"[{text}](../../experiments/{self.table.path}/results/{self.scale}/report.md)"

    @property
    def own_rates(self) -> set[str]:
        """Rows with a learning rate that was chosen for them on another seed."""
        chosen = {line.row for line in rates.lines_at(self.table.path, self.scale)}
        return chosen & set(self.rows.index) & {row.name for row in self.table.rows}


@cache
def report(path: str, folder: Path = EXPERIMENTS) -> Report | None:
    """The committed report of a table; None without one."""
    for scale in SCALES:
        file = folder / path / "results" / scale / "report.csv"
        if file.is_file():
            loaded = load(path)
            lines = pd.read_csv(file, dtype={"seeds": str, "values": str}).set_index("row")
            done = lines[lines["values"].notna()].copy()
            done["by_seed"] = [
                dict(zip(map(int, s.split(";")), map(float, v.split(";")), strict=True))
                for s, v in zip(done["seeds"], done["values"], strict=True)
            ]
            done = done.sort_values("mean", ascending=loaded.better == "lower", kind="stable")
            rest = lines[lines["values"].isna() & lines["mean"].notna()]
            return Report(loaded, scale, done, dict(rest["mean"]))
    return None


@dataclass(frozen=True)
class Ratio:
    """One row divided by another: geometric mean over seeds, 95 % interval, number of seeds."""

    value: float
    low: float
    high: float
    seeds: int

    def __str__(self) -> str:
        return f"{self.value:.2f} × ({self.low:.2f} to {self.high:.2f})"

    def verdict(self, below: str, above: str, between: str = "open") -> str:
        """What the interval says: it lies below one, above one, or has it inside."""
        return below if self.high < 1 else above if self.low > 1 else between


def ratio(first: Seeds, second: Seeds, log: Callable[[float], float] = math.log) -> Ratio | None:
    """The first row divided by the second, with Student's interval of the paired logarithms.

    Args:
        first, second: values by seed.
        log: how a value becomes its logarithm; `float` for losses, which are logarithms.

    Returns:
        None without two common seeds.
    """
    gap = paired(*({seed: log(v) for seed, v in row.items()} for row in (first, second)))
    if gap is None or gap.interval is None:
        return None
    low, high = gap.interval
    return Ratio(math.exp(gap.mean), math.exp(low), math.exp(high), gap.n)


def signed(gap: Difference | None, decimals: int = 2) -> str:
    """A difference with its sign and interval, as in `+0.41 (+0.37 to +0.45)`."""
    if gap is None:
        return ""
    low, high = gap.interval or (None, None)
    ends = "" if low is None else f" ({low:+.{decimals}f} to {high:+.{decimals}f})"
    return f"{gap.mean:+.{decimals}f}{ends}"


def nats(metric: str) -> Callable[[float], float]:
    """How values of a metric become nats."""
    return math.log if metric.endswith("perplexity") else float


def claims(folder: Path = EXPERIMENTS) -> pd.DataFrame:
    """claims.csv beside the reports: the paper's ratio, ours, what the interval says, the runs.

    A claim is that `row` of a table has a lower perplexity than `than`. It holds if the whole 95 %
    interval of their ratio lies below one, does not hold if it lies above, and is open otherwise.
    """
    found = []
    for claim in pd.read_csv(
        Path(__file__).with_name("claims.csv"), keep_default_na=False
    ).itertuples():
        of = report(str(claim.table), folder)
        if of is None or not {claim.row, claim.than} <= set(of.rows.index):
            continue
        log = nats(of.table.metric)
        here = ratio(of.values(str(claim.row)), of.values(str(claim.than)), log)
        if here is None:
            continue
        printed = [
            of.rows["published"].get(p or r)
            for p, r in ((claim.row_printed, claim.row), (claim.than_printed, claim.than))
        ]
        known = [
            log(float(value)) for value in printed if value is not None and not math.isnan(value)
        ]
        own = ", own rates" * ({claim.row, claim.than} <= of.own_rates)
        found.append({
            "claim": f"{claim.claim} ({of.table.source})",
            "paper": math.exp(known[0] - known[1]) if len(known) == 2 else None,
            "ratio": here,
            "verdict": here.verdict("holds", "does not hold"),
            "runs": of.link(f"{of.scale}, {here.seeds} seeds{own}"),
        })  # fmt: skip
    return pd.DataFrame(found)


def claims_table(found: pd.DataFrame) -> str:
    """Claims as a Markdown table."""
    head = [
        "a paper says that it lowers perplexity",
        "its figure",
        "here, 95 % interval",
        "",
        "runs",
    ]
    return table(head, [
        [one.claim, f"{one.paper:.2f} ×" if one.paper == one.paper else "–", one.ratio,
         f"**{one.verdict}**", one.runs]
        for one in found.itertuples()
    ])  # fmt: skip


def order(of: Report) -> str:
    """How many pairs of rows that the paper ranks have its order here."""
    sign = -1.0 if of.table.better == "lower" else 1.0
    tested = []
    printed = of.rows[of.rows["published"].notna()]
    for a, b in combinations(printed.index, 2):
        gap = sign * (printed["published"][a] - printed["published"][b])
        first, second = (a, b) if gap > 0 else (b, a)
        if gap:
            tested.append(paired(*(
                {seed: sign * v for seed, v in of.values(row).items()} for row in (first, second)
            )))  # fmt: skip
    pairs = [pair for pair in corrected(tested, test=not of.table.counts) if pair is not None]
    agree = [pair for pair in pairs if pair.mean > 0]
    against = [pair for pair in pairs if pair.mean <= 0]
    if not pairs:
        return "no pair of rows is ranked"
    shown = f"{len(agree)} of {len(pairs)} pairs"
    if of.table.counts or all(pair.equal for pair in pairs):
        return shown
    firm = [sum(pair.significant for pair in part) for part in (agree, against)]
    return f"{shown} ({firm[0]} significantly); {len(against)} against it ({firm[1]} significantly)"


def choosing(path: str, scale: str = "medium") -> pd.DataFrame:
    """Runs that chose the rates of a table's rows: row, rate, seed, `shown` (bold: the chosen)."""
    lines = rates.lines_at(path, scale)
    chosen = rates.best(lines, load(path).better)
    found = []
    for line in sorted(lines, key=lambda line: line.seed):
        shown = "not finite" if line.value is None else f"{line.value:.4g}"
        bold = "**" * (chosen.get(line.row) == line.rate)
        shown = f"{bold}{shown}{bold}"
        found.append({"row": line.row, "rate": line.rate, "seed": line.seed, "shown": shown})
    return pd.DataFrame(found)


def edges(path: str, steps: int) -> list[list[str]]:
    """Lines of rows with report's seeds at two rates or more: row, rate, choosing seeds, others."""
    of, kept = report(path), runs(path, choices__scale="medium", trainer__max_steps=steps)
    assert of is not None
    reported = {seed for row in of.rows.index for seed in of.values(row)}
    lines = []
    for row in (row.name for row in of.table.rows):
        own = kept[kept["row"] == row]
        tried = {
            float(rate): by_seed(part, of.table.metric) for rate, part in own.groupby("optim.lr")
        }
        tried = {rate: values for rate, values in tried.items() if values.keys() & reported}
        for rate, values in tried.items() if len(tried) > 1 else ():
            shown = {seed: formatting.number(value, 4) for seed, value in values.items()}
            parts = [
                ", ".join(s for seed, s in shown.items() if (seed in reported) == side)
                for side in (False, True)
            ]
            bold = "**" * (rate == rates.chosen(path, row, "medium"))
            lines.append([f"`{row}`", f"{bold}{rate:g}{bold}", *parts])
    return lines
