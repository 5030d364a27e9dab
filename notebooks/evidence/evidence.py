"""What the evidence notebooks share: records as one frame, committed reports, paired ratios."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import permutations
from pathlib import Path
from typing import Any, TypeAlias

import pandas as pd
from IPython.display import Markdown, display

from chimera.config.tables import Table, best_rates, chosen_rate, load, tables, tried
from chimera.paths import EXPERIMENTS, ROOT
from chimera.report import formatting
from chimera.report.stats import Difference, corrected, paired
from chimera.rundir.records import frame

#: Values of one row by seed.
Seeds = Mapping[int, float]
#: Rows of a table that is shown.
Lines: TypeAlias = Sequence[Mapping[str, Any]] | pd.DataFrame
RESULTS = ROOT / "benchmarks" / "results"
#: Scales of committed reports; the first that a table has is shown.
SCALES = ("paper", "medium", "small")
#: Rows of titan/ablations_first that lack a part: the part, and what they have in its place.
PARTS = {
    "dense_ffn": ("four experts (two active)", "one"),
    "single_mixer": ("six mixers of four kinds", "attention in every layer"),
    "non_recursive": ("two passes through the layers", "one"),
    "fp16": ("ternary weights", "full precision"),
}


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
    choosing = {line.seed for line in tried(table, scale)}
    own = {row: chosen_rate(table, row, scale) for row in found["row"].unique()}
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
    parts = [f"{machine['processor']}, {machine['cpus']} cores", *found.get("features", [])]
    if "threads" in found:
        parts.append(f"{found['threads']} thread{'s' * (found['threads'] != 1)}")
    state = " with changes" * bool(commit["changed"])
    told = f"`python -m benchmarks {name}`, commit `{commit['commit'][:7]}`{state}"
    return f"{told}: {', '.join(parts)}."


def table(lines: Lines, spec: str | Mapping[str, str] = "", index: str = "") -> str:
    """A Markdown table as text, with a dash where a number is missing.

    Args:
        lines: a mapping for each row, or a frame. Spaces around a head are cut, so that two columns
            can have the same one.
        spec: format of numbers, of all columns or of each.
        index: head of a frame's index.
    """
    if isinstance(lines, pd.DataFrame):
        heads = [index, *lines.columns]
        lines = [dict(zip(heads, values, strict=True)) for values in lines.itertuples()]
    specs = defaultdict(lambda: spec) if isinstance(spec, str) else defaultdict(str, spec)
    rows = [[_cell(value, specs[head]) for head, value in line.items()] for line in lines]
    head = [name.strip() for name in lines[0]]
    return "".join(f"| {' | '.join(row)} |\n" for row in [head, ["---"] * len(head), *rows])


def _cell(value: Any, spec: str) -> str:
    if isinstance(value, str):
        return value
    return "–" if pd.api.types.is_scalar(value) and pd.isna(value) else format(value, spec)


def show(lines: Lines, spec: str | Mapping[str, str] = "", index: str = "") -> None:
    """Display a table."""
    display(Markdown(table(lines, spec, index)))


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

    def ratio(self, row: str, than: str) -> Ratio | None:
        """A row's perplexity divided by another's."""
        return ratio(self.values(row), self.values(than), nats(self.table.metric))

    def less(self, reference: str) -> dict[str, Difference | None]:
        """Differences of the other rows from this one, the best first, corrected for all."""
        return less({row: self.values(row) for row in self.rows.index}, reference)

    @property
    def own_rates(self) -> set[str]:
        """Rows with a learning rate that was chosen for them on another seed."""
        chosen = {line.row for line in tried(self.table.path, self.scale)}
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
        return between(self.value, self.low, self.high).replace(" (", " × (")

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


def less(values: Mapping[str, Seeds], reference: str) -> dict[str, Difference | None]:
    """Differences of all others from the reference, with p after Holm's correction."""
    others = [row for row in values if row != reference]
    gaps = corrected([paired(values[row], values[reference]) for row in others])
    return dict(zip(others, gaps, strict=True))


def between(value: float, low: float | None, high: float | None, spec: str = ".2f") -> str:
    """A number and its interval, as in `0.41 (0.37 to 0.45)`."""
    return f"{value:{spec}} ({low:{spec}} to {high:{spec}})"


def signed(gap: Difference | None, decimals: int = 2) -> str:
    """A difference with its sign and interval, as in `+0.41 (+0.37 to +0.45)`."""
    if gap is None:
        return ""
    spec = f"+.{decimals}f"
    return between(gap.mean, *gap.interval, spec) if gap.interval else f"{gap.mean:{spec}}"


def nats(metric: str) -> Callable[[float], float]:
    """How values of a metric become logarithms; a loss is one."""
    return float if metric.endswith("loss") else math.log


def claims(folder: Path = EXPERIMENTS) -> pd.DataFrame:
    """claims.csv beside the reports: the paper's ratio, ours, what the interval says, the runs.

    A claim is that `row` of a table has a lower perplexity than `than`. It holds if the whole 95 %
    interval of their ratio lies below one, does not hold if it lies above, and is open otherwise.
    """
    found, file = [], Path(__file__).with_name("claims.csv")
    for claim in pd.read_csv(file, keep_default_na=False).itertuples():
        row, than = str(claim.row), str(claim.than)
        of = report(str(claim.table), folder)
        if of is None or not {row, than} <= set(of.rows.index):
            continue
        log, printed = nats(of.table.metric), of.rows["published"]
        here = ratio(of.values(row), of.values(than), log)
        if here is None:
            continue
        theirs = [printed.get(claim.row_printed or row), printed.get(claim.than_printed or than)]
        known = not any(map(pd.isna, theirs))
        own = ", own rates" * ({row, than} <= of.own_rates)
        found.append({
            "claim": f"{claim.claim} ({of.table.source})",
            "paper": math.exp(log(theirs[0]) - log(theirs[1])) if known else None,
            "ratio": here,
            "verdict": here.verdict("holds", "does not hold"),
            "size": size(here, math.exp(log(theirs[0]) - log(theirs[1]))) if known else "",
            "runs": of.link(f"{of.scale}, {here.seeds} seeds{own}"),
        })  # fmt: skip
    return pd.DataFrame(found)


def size(here: Ratio, paper: float) -> str:
    """Whether an effect has the size that a paper prints, or its share of it (of logarithms).

    Args:
        here: the ratio of our runs.
        paper: the printed ratio, below one.
    """
    if here.low <= paper <= here.high:
        return "as claimed"
    if here.low > 1:
        return "the other way"
    if here.high >= 1:
        return "not shown"
    share = math.log(here.value) / math.log(paper)
    return f"{share:.0%} of it" if share < 1 else f"{share:.1f} times it"


def claims_table(found: pd.DataFrame) -> str:
    """Claims as a Markdown table."""
    return table([
        {
            "a paper says that it lowers perplexity": one.claim,
            "its figure": f"{one.paper:.2f} ×" if pd.notna(one.paper) else None,
            "here, 95 % interval": one.ratio,
            "the sign": f"**{one.verdict}**",
            "the size": one.size,
            "runs": one.runs,
        }
        for one in found.itertuples()
    ])  # fmt: skip


def complete(path: str) -> bool:
    """Whether a report at `medium` has all rows of a table."""
    of = report(path)
    rows = {row.name for row in load(path).rows}
    return of is not None and of.scale == "medium" and rows <= set(of.rows.index[of.rows["n"] > 0])


def not_run() -> pd.DataFrame:
    """not_run.json without complete tables, in its order of worth: what, runs, why, command, hours.

    A job has one core, so core-hours are runs × the mean seconds of a run like it, from a committed
    report or else the table's kept runs, × how many times longer a run is. What is no table's name
    is more runs of a table, which leave the list by hand.
    """
    file = Path(__file__).with_name("not_run.json")
    entries = json.loads(file.read_text(encoding="utf-8"))
    known = {path for path in tables() if complete(path)}
    found = pd.DataFrame([entry for entry in entries if entry["what"] not in known])
    hours = [
        float(entry.runs * _seconds(entry.like) * entry.times / 3600)
        for entry in found.fillna({"times": 1}).itertuples()
    ]
    return found.assign(hours=hours)


def _seconds(like: str) -> float:
    """Mean seconds of the runs of a table, or of one of its rows."""
    paper, name, *row = like.split("/")
    of = report(f"{paper}/{name}")
    if of is None:
        return float(runs(f"{paper}/{name}")["wall_seconds"].mean())
    return float(of.rows.loc[row or [*of.rows.index], "seconds"].mean())


def order(of: Report) -> str:
    """How many pairs of rows that the paper ranks have its order here."""
    sign = -1.0 if of.table.better == "lower" else 1.0
    printed = (sign * of.rows["published"]).dropna()
    ranked = [
        pair for pair in permutations(printed.index, 2) if printed[pair[0]] > printed[pair[1]]
    ]
    tested = [paired(of.values(first), of.values(second)) for first, second in ranked]
    pairs = [pair for pair in corrected(tested, test=not of.table.counts) if pair is not None]
    if not pairs:
        return "no pair of rows is ranked"
    agree = [pair for pair in pairs if sign * pair.mean > 0]
    against = [pair for pair in pairs if sign * pair.mean <= 0]
    shown = f"{len(agree)} of {len(pairs)} pairs"
    if of.table.counts or all(pair.equal for pair in pairs):
        return shown
    firm = [sum(pair.significant for pair in part) for part in (agree, against)]
    return f"{shown} ({firm[0]} significantly); {len(against)} against it ({firm[1]} significantly)"


def at_chance(of: Report) -> str:
    """Why no row of a table shows that it learned the task; empty if one does.

    A row has to end better than every trivial predictor of the report and, where answers are
    classes, to be right more often than the majority class.
    """
    best = of.rows.index[0]
    sign = 1.0 if of.table.better == "higher" else -1.0
    for name, value in of.baselines.items():
        if sign * (of.rows["mean"][best] - value) <= 0:
            return f"the best row is not better than the baseline `{name}` ({value:.2f})"
    values = {value for row in of.rows.index for value in of.values(row).values()}
    kept = runs()  # equal rows of two tables are one run, kept with either
    kept = kept[kept[of.table.metric].isin(values)] if of.baselines else kept[:0]
    accuracy = kept.groupby("row")[["val/accuracy", "val/majority_accuracy"]].mean().dropna()
    if len(accuracy) and not (accuracy.iloc[:, 0] > accuracy.iloc[:, 1]).any():
        high, majority = accuracy.max()
        return f"no row is right as often as the majority class ({high:.2f} against {majority:.2f})"
    return ""


def on_plateau(of: Report) -> list[str]:
    """Rows of language models that hardly know more than how frequent each token is.

    Their mean perplexity is above half of the unigram model's.
    """
    log = nats(of.table.metric)
    if "unigram" not in of.baselines:
        return []
    level = log(of.baselines["unigram"]) - math.log(2)
    return [str(row) for row, mean in of.rows["mean"].items() if log(mean) > level]


def choosing(path: str, scale: str = "medium") -> pd.DataFrame:
    """Runs that chose the rates of a table's rows: row, rate, seed, `shown` (bold: the chosen)."""
    lines = tried(path, scale)
    chosen = best_rates(lines, load(path).better)
    found = []
    for line in sorted(lines, key=lambda line: line.seed):
        shown = "not finite" if line.value is None else f"{line.value:.4g}"
        shown = f"**{shown}**" if chosen.get(line.row) == line.rate else shown
        found.append({"row": line.row, "rate": line.rate, "seed": line.seed, "shown": shown})
    return pd.DataFrame(found)


def at_ends(path: str, scale: str = "medium") -> dict[str, list[str]]:
    """Rows whose chosen rate is the lowest or the highest of those that they tried."""
    lines = tried(path, scale)
    chosen = best_rates(lines, load(path).better)
    rates = {row: [line.rate for line in lines if line.row == row] for row in chosen}
    ends = {"highest": max, "lowest": min}
    return {
        end: [row for row, rate in chosen.items() if rate == of(rates[row])]
        for end, of in ends.items()
    }


def edges(path: str, steps: int) -> list[dict[str, str]]:
    """Rows with report's seeds at two rates or more: values of choosing and of report's seeds."""
    of, kept = report(path), runs(path, choices__scale="medium", trainer__max_steps=steps)
    assert of is not None
    reported = {seed for row in of.rows.index for seed in of.values(row)}
    lines = []
    for row in (row.name for row in of.table.rows):
        own = kept[kept["row"] == row].groupby("optim.lr")
        tried = {float(rate): by_seed(part, of.table.metric) for rate, part in own}
        tried = {rate: values for rate, values in tried.items() if values.keys() & reported}
        for rate, values in tried.items() if len(tried) > 1 else ():
            bold = "**" * (rate == chosen_rate(path, row, "medium"))
            shown: list[list[str]] = [[], []]
            for seed, value in values.items():
                shown[seed in reported].append(formatting.number(value, 4))
            lines.append({
                "row": f"`{row}`",
                "rate": f"{bold}{rate:g}{bold}",
                "seeds that choose it": ", ".join(shown[False]),
                "the report's seeds": ", ".join(shown[True]),
            })  # fmt: skip
    return lines
