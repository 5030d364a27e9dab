"""Fit loss against compute of five mixers, from the finished runs of `ours/scaling`.

    python -m benchmarks scaling
    python -m benchmarks scaling scale=medium seed=0,1,2 out=<folder>

    log loss = log a − b · log FLOPs        least squares, for each mixer and seed over its sizes

FLOPs are those of a run: `flops.training` per token times the tokens of all its steps. The loss has
no irreducible part here, so b holds for these sizes only. b is the mean over seeds, with the
interval of Student's distribution. A seed is fitted over the sizes that all of its mixer's seeds
have. The largest size is predicted from the smaller ones, too: a law that only describes the points
it was fitted to says nothing.

docs/results.md has the same fits from the records in `store/` (`scaling_law`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, geometric_mean
from typing import Any

from benchmarks.laws import Law, Run, draw, fitted
from benchmarks.markdown import table
from benchmarks.stored import Pair, records
from chimera.config.arguments import read
from chimera.config.row_learning_rates import chosen, lines_at
from chimera.report import digits
from chimera.report.curves import tokens_per_step
from chimera.report.stats import Difference, corrected, paired, spread
from chimera.report.summary import summarise
from chimera.report.write import report_folder
from chimera.rundir.safe_io import make_folder
from chimera.types import NonNegativeInt

USAGE = "python -m benchmarks scaling [scale=medium] [seed=0,1,2] [out=<folder>] [key=value …]"
TABLE, SCALE = "ours/scaling", "medium"
#: The mixer that the others' exponents are compared with.
REFERENCE = "attention"


@dataclass(frozen=True)
class Options:
    """Which runs are fitted.

    Args:
        scale: of the runs.
        seed: seeds of the runs.
        out: folder of the picture; None: that of the user's report of the table.
    """

    scale: str = SCALE
    seed: list[NonNegativeInt] = field(default_factory=lambda: [0, 1, 2])
    out: Path | None = None


def main(words: Sequence[str] = ()) -> dict[str, Any]:
    """Print the fits of the finished runs and draw them; no results file is written.

    Raises:
        UserError: an unknown key or scale.
    """
    overrides: list[str] = []
    options = read(Options, words, USAGE, unread=overrides)
    overrides = [f"scale={options.scale}", *overrides]
    summary = summarise(TABLE, overrides, options.seed)
    runs = [run(cell.config, cell.record) for cell in summary.cells if cell.value is not None]
    laws = fitted(runs)
    if not laws:
        paper, _, name = TABLE.partition("/")
        print(f"no seed has two sizes; run: python train.py -m +{paper}={name} {overrides[0]}")
        return {}
    print(page(runs))
    out = options.out or report_folder(summary)
    make_folder(out, of=out, key="out")
    draw(laws, out / "scaling.png")
    print(out / "scaling.png")
    return {}


def stored() -> Iterator[Pair]:
    """The records of the table's runs at its scale."""
    for config, record in records("causal_lm-"):
        named = config.get("table") or {}
        if named.get("name") == TABLE and config["choices"]["scale"] == SCALE:
            yield config, record


def scaling_law() -> str:
    """The block of docs/results.md."""
    choosing = {line.seed for line in lines_at(TABLE, SCALE)}
    found = dict[tuple[str, int], Run]()
    for config, record in stored():
        if config["data"].get("documents") is not None:  # see benchmarks.two_machines
            continue
        row = config["table"]["row"]
        own = float(config["optim"]["lr"]) == chosen(TABLE, row, SCALE)
        if own and config["seed"] not in choosing:
            key = (row, config["seed"])
            assert key not in found, f"two runs of {key}"
            found[key] = run(config, record)
    return page(list(found.values()))


def run(config: Mapping[str, Any], record: Mapping[str, Any]) -> Run:
    """Of a run's configuration and run.json."""
    mixer, _, size = config["table"]["row"].rpartition("_")
    metrics = record["metrics"]
    return Run(
        mixer, int(size), config["seed"],
        flops=record["flops"]["training"] * record["steps"] * tokens_per_step(dict(config)),
        loss=metrics["val/loss"],
        unigram=math.log(metrics["val/unigram_perplexity"]),
    )  # fmt: skip


def page(runs: Sequence[Run]) -> str:
    """Losses by size, and laws, a line for each mixer; «No runs yet.» without two sizes.

    The laws are compared with the reference's if they are over the same sizes: exponents, and
    losses at FLOPs in the middle of all runs.
    """
    laws = fitted(runs)
    if not laws:
        return "No runs yet.\n"
    sizes = sorted({one.size for one in runs})
    smaller = fitted(runs, most=sizes[-1] - 1)
    middle = geometric_mean(of.flops[size] for of in laws.values() for size in of.sizes)
    losses = [
        [
            f"`{mixer}`",
            *(digits.values(of.losses.get(size, {}).values()) for size in sizes),
            *_predicted(of, smaller.get(mixer), sizes[-1]),
        ]
        for mixer, of in sorted(laws.items(), key=lambda item: item[1].at(middle))
    ]
    head = ["mixer", *(f"loss at size {size}" for size in sizes)]
    head += [f"size {sizes[-1]} by the smaller ones", "measured less that"]
    corrections = f"\np is after Holm for {len(laws) - 1} mixers.\n" if len(laws) > 1 else ""
    return f"{table(head, losses)}\n{_costs(runs, sizes)}\n{_exponents(laws, middle)}{corrections}"


def _exponents(laws: Mapping[str, Law], flops: float) -> str:
    """b and the loss at these FLOPs, the largest b first, beside the reference's."""
    order = sorted(laws, key=lambda mixer: -fmean(laws[mixer].b.values()))
    reference = laws.get(REFERENCE)
    compared = [
        mixer
        for mixer in order
        if reference and mixer != REFERENCE and laws[mixer].sizes == reference.sizes
    ]
    columns = []
    for values in (lambda of: of.b, lambda of: of.by_seed(flops)):
        gaps = [paired(values(laws[mixer]), values(laws[REFERENCE])) for mixer in compared]
        less = dict(zip(compared, corrected(gaps), strict=True))
        columns += [
            {mixer: _interval(values(of)) for mixer, of in laws.items()},
            {mixer: _gap(less.get(mixer)) for mixer in laws},
        ]
    lines = [
        [
            f"`{mixer}`",
            str(len(laws[mixer].fits)),
            ", ".join(map(str, laws[mixer].sizes)),
            *(column[mixer] for column in columns),
        ]
        for mixer in order
    ]
    gap = f"less that of `{REFERENCE}`"
    head = ["mixer", "seeds", "sizes", "b (95 % interval)", gap]
    head += [f"loss at {digits.count(flops)}FLOPs by the law", gap]
    return table(head, lines)


def _predicted(of: Law, smaller: Law | None, size: int) -> list[str]:
    """Loss of a size by the law of the smaller ones, and how far the measured one is from it."""
    if smaller is None or size not in of.losses:
        return ["", ""]
    by_law, measured = smaller.by_seed(of.flops[size]), of.losses[size]
    gap = paired(
        {seed: math.log(loss) for seed, loss in measured.items()},
        {seed: math.log(loss) for seed, loss in by_law.items()},
    )
    assert gap is not None  # a seed with a size is fitted
    ends = gap.interval and " to ".join(f"{math.expm1(end):+.1%}" for end in gap.interval)
    shown = f"{math.expm1(gap.mean):+.1%}" + (f" ({ends})" if ends else "")
    return [f"{geometric_mean(by_law[seed] for seed in measured):.3f}", shown]


def _costs(runs: Sequence[Run], sizes: Sequence[int]) -> str:
    costs = [
        " to ".join(
            dict.fromkeys(
                f"{digits.count(choose(one.flops for one in runs if one.size == size))}FLOPs"
                for choose in (min, max)
            )
        )
        for size in (sizes[0], sizes[-1])
    ]
    unigram = " to ".join(
        dict.fromkeys(f"{choose(one.unigram for one in runs):.2f}" for choose in (min, max))
    )
    return (
        f"By the mixer, a run takes {costs[0]} at size {sizes[0]} and {costs[1]} at size"
        f" {sizes[-1]}. A unigram model has a loss of {unigram}.\n"
    )


def _interval(values: Mapping[int, float]) -> str:
    value = spread(list(values.values()))
    assert value is not None
    ends = Difference(value.mean, value.std, value.n, None).interval
    return f"{value.mean:.4f}" + (f" ({ends[0]:.4f} to {ends[1]:.4f})" if ends else "")


def _gap(gap: Difference | None) -> str:
    if gap is None or gap.interval is None:
        return ""
    low, high = gap.interval
    return f"{gap.mean:+.4f} ({low:+.4f} to {high:+.4f}); {digits.p_equals(gap)}"
