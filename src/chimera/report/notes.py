"""Sentences of a report that explain its numbers; each is empty if there is nothing to say."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import pandas as pd

from chimera.config.scale import past_bounds
from chimera.config.schema import shown
from chimera.config.tables import RATES, Tried, best_rates, tried
from chimera.report.formatting import code, codes, markdown, number, spread
from chimera.report.stats import smallest_significant
from chimera.report.table_results import TableResults
from chimera.rundir.records import portable


def resolved(results: TableResults) -> str:
    """The smallest difference that the table can distinguish from noise."""
    smallest = results.resolvable
    if smallest is None:
        return ""
    tested = {x.name: d for x in results.lines if (d := x.difference) and d.std is not None}
    seeds = min(d.n for d in tested.values())
    own = sorted(
        (limit, name)
        for name, difference in tested.items()
        if (limit := smallest_significant(difference, len(tested))) is not None
    )
    by_row = ""
    if len(own) > 1:
        ends = (f"{number(limit, 2)} for {code(name)}" for limit, name in (own[0], own[-1]))
        by_row = f" (pooled over rows; {' to '.join(ends)})"
    return (
        f" With {seeds} seeds, differences below about {number(smallest, 2)}{by_row} cannot"
        " be distinguished from noise."
    )


def beaten(results: TableResults) -> str:
    """The rows that are not better than a trivial predictor."""
    return " ".join(
        f"Not better than «{markdown(b.title)}» ({spread(b.value)}): {codes(rows)}."
        for b in results.baselines
        if (rows := results.below(b))
    )


def processors(results: TableResults) -> str:
    """Which processors trained the runs, if several did."""
    done = [cell for cell in results.cells if cell.state == "done" and cell.computed_on]
    facts = [(cell.computed_on, cell.row, cell.seed) for cell in done]
    runs = pd.DataFrame(facts, columns=["on", "row", "seed"])
    if runs["on"].nunique() < 2:
        return ""
    seeds = runs.groupby(["on", "row"])["seed"].agg(frozenset).unstack()
    alike = bool(seeds.notna().all(axis=None) and (seeds.nunique(axis=1) == 1).all())
    names = []
    for name, own in runs.groupby("on"):
        rows = own["row"].unique()
        share = f"{len(own)} run{'s' * (len(own) > 1)}"
        share += f" of {code(rows[0])}" if len(rows) == 1 else ""
        found = sorted(own["seed"].unique())
        of_seeds = f"seed{'s' * (len(found) > 1)} {', '.join(map(str, found))}"
        names.append(f"{markdown(str(name))} ({of_seeds if alike else share})")
    meaning = (
        "Each row has the same seeds on each of them, so mean times and speeds can be compared."
        if alike
        else "Rows mix them differently: do not compare times and speeds. Paired runs on different"
        " processors share the seed but not the rounding."
    )
    return f"The runs used {len(names)} processors: {'; '.join(names)}. {meaning}"


def rates(results: TableResults) -> str:
    """How the rows' learning rates were chosen."""
    rows = {cell.row for cell in results.cells}
    lines = [line for line in tried(results.table.path, results.scale) if line.row in rows]
    chosen = best_rates(lines, results.table.better)
    own = [cell for cell in results.cells if cell.row in chosen]
    if not own or any(cell.config["optim"]["lr"] != chosen[cell.row] for cell in own):
        return ""
    others = dict.fromkeys(cell.row for cell in results.cells if cell.row not in chosen)
    who = f"Each row except {codes(others)}" if others else "Each row"
    values = ", ".join(f"{rate:g}" for rate in sorted({line.rate for line in lines}))
    first, *more = sorted({line.seed for line in lines})
    said = (
        f"{who} has the learning rate with the best {code(results.table.metric)} among {values} on"
        f" seed {first}, which this report does not use (`{results.table.name}{RATES}`)."
    )
    if more:
        further = {line.row for line in lines if line.seed != first}
        whose = "" if further >= {cell.row for cell in own} else f" of {codes(sorted(further))}"
        said += (
            f" The two best rates{whose} were repeated on seed{'s' * (len(more) > 1)}"
            f" {', '.join(map(str, more))}, and the mean decides."
        )
    return said + _other_budget(results, lines)


def _other_budget(results: TableResults, lines: Sequence[Tried]) -> str:
    """Rates that were chosen at another number of steps."""
    steps = {cell.row: int(cell.config["trainer"]["max_steps"]) for cell in results.cells}
    chosen_at = {(line.row, line.steps) for line in lines if line.row in steps and line.steps}
    apart = {row for row, at in chosen_at if at != steps[row]}
    if not apart:
        return ""
    then = {at for row, at in chosen_at if row in apart}
    now = {steps[row] for row in apart}
    return (
        f" The rates were chosen at {_numbers(then)} steps, the rows take {_numbers(now)}; another"
        " rate may be best there."
    )


def trained_on(results: TableResults) -> list[str]:
    """The size of the training data by the records of the runs, other texts, half precision."""
    said = []
    for cell in results.cells:
        splits = cell.record.get("data", {}).get("splits", {})
        if train := splits.get("train"):
            said.append(f"Trained on {cell.config['choices']['data']}: {_size(train)}")
        if valid := splits.get("valid"):
            limit = cell.config["trainer"].get("limit_val_batches")
            part = "" if limit is None else f"; each validation uses {limit} batches"
            said.append(f"Validation split: {_size(valid)}{part}")
    said += [*begun_with(results), results.other_text, in_half(results)]
    return [text for text in dict.fromkeys(said) if text]


def begun_with(results: TableResults) -> list[str]:
    """The Hugging Face models that runs begin with, and the data of these runs."""
    said = []
    for cell in results.cells:
        model, data = cell.config["model"], cell.config["data"]
        if name := model.get("name"):
            weights = "its trained" if model.get("pretrained") else "random"
            source = data.get("path") or f"those of data={cell.config['choices']['data']}"
            begun = f"The runs begin with {name} and {weights} weights"
            said.append(portable(f"{begun}; their data are {source}"))
    return said


def in_half(results: TableResults) -> str:
    """What half precision adds to the errors of quantised layers."""
    errors = {"bf16": "1/256", "fp16": "1/2048"}
    used = sorted({str(cell.config.get("precision")) for cell in results.cells} & errors.keys())
    names = " and ".join(used)
    most = " or ".join(errors[name] for name in used)
    said = (
        f"Trained in {names}: quantised layers compute their grid in float32 and round products to"
        f" {names}, with a relative error of up to {most}"
    )
    return said if used else ""


def past_scale(results: TableResults) -> str:
    """Settings beyond the bounds of the scale, with their rows."""
    rows: defaultdict[str, list[str]] = defaultdict(list)
    for cell in results.cells:
        for key, at in past_bounds(cell.config).items():
            value = code(f"{key}={shown(at['value'])}")
            rows[f"{value} (bound {at['bound']:g})"].append(cell.row)
    if not rows:
        return ""
    every = {cell.row for cell in results.cells}
    settings = [
        setting if every <= set(names) else f"{setting} in {codes(dict.fromkeys(names))}"
        for setting, names in rows.items()
    ]
    how = "set by the command line or the start model"
    return f"Beyond the bounds of this scale, {how}: {'; '.join(settings)}."


def _size(split: Mapping[str, int]) -> str:
    names = ("documents", "examples", "bytes", "tokens")
    return ", ".join(f"{split[name]:,} {name}" for name in names if name in split)


def _numbers(values: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(values)))
