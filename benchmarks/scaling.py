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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, geometric_mean
from typing import Any

from benchmarks.laws import Law, Run, draw, fitted
from benchmarks.markdown import table
from benchmarks.stored import records
from chimera.config.arguments import read
from chimera.config.rates import chosen, lines_at
from chimera.paths import EXPERIMENTS
from chimera.report import digits
from chimera.report.budget import tokens_per_step
from chimera.report.stats import Difference, corrected, paired, spread
from chimera.report.summary import summarise
from chimera.rundir.atomic import make_folder
from chimera.types import NonNegativeInt

USAGE = "python -m benchmarks scaling [scale=medium] [seed=0,1,2] [out=<folder>] [key=value …]"
TABLE, SCALE = "ours/scaling", "medium"
#: The mixer that the others' exponents are compared with.
REFERENCE = "attention"
#: Start of the names of the table's records.
RECORDS = "causal_lm-"


@dataclass(frozen=True)
class Options:
    """Which runs are fitted.

    Args:
        scale: of the runs.
        seed: seeds of the runs.
        out: folder of the picture; None: that of the table's report at this scale.
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
    cells = summarise(TABLE, overrides, options.seed).cells
    runs = [run(cell.config, cell.record) for cell in cells if cell.value is not None]
    laws = fitted(runs)
    if not laws:
        paper, _, name = TABLE.partition("/")
        print(f"no seed has two sizes; run: python train.py -m +{paper}={name} {overrides[0]}")
        return {}
    print(page(runs))
    out = options.out or EXPERIMENTS / TABLE / "results" / options.scale
    make_folder(out, of=out, key="out")
    draw(laws, out / "scaling.png")
    return {}


def scaling_law() -> str:
    """The block of docs/results.md."""
    choosing = {line.seed for line in lines_at(TABLE, SCALE)}
    found = dict[tuple[str, int], Run]()
    for config, record in records(RECORDS):
        named = config.get("table") or {}
        if named.get("name") != TABLE or config["choices"]["scale"] != SCALE:
            continue
        own = float(config["optim"]["lr"]) == chosen(TABLE, named["row"], SCALE)
        if own and config["seed"] not in choosing:
            key = (named["row"], config["seed"])
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
    """A line for each mixer, the largest exponent first; «No runs yet.» without two sizes.

    Exponents over other sizes than the reference's are not compared with it.
    """
    laws = fitted(runs)
    if not laws:
        return "No runs yet.\n"
    sizes = sorted({one.size for one in runs})
    smaller = fitted(runs, most=sizes[-1] - 1)
    order = sorted(laws, key=lambda mixer: -fmean(laws[mixer].b.values()))
    reference = laws.get(REFERENCE)
    others = [mixer for mixer in order if mixer != REFERENCE]
    gaps = corrected(
        [
            paired(laws[mixer].b, reference.b)
            if reference and laws[mixer].sizes == reference.sizes
            else None
            for mixer in others
        ]
    )
    less = dict(zip(others, gaps, strict=True))
    lines = [
        [
            f"`{mixer}`",
            str(len(laws[mixer].fits)),
            ", ".join(map(str, laws[mixer].sizes)),
            _exponent(laws[mixer].b),
            _gap(less.get(mixer)),
            *(digits.values(laws[mixer].losses.get(size, {}).values()) for size in sizes),
            *_predicted(laws[mixer], smaller.get(mixer), sizes[-1]),
        ]
        for mixer in order
    ]
    head = ["mixer", "seeds", "sizes", "b (95 % interval)", f"less that of `{REFERENCE}`"]
    head += [*(f"loss at size {size}" for size in sizes), f"size {sizes[-1]} by the smaller ones"]
    head += ["measured less that"]
    return f"{table(head, lines)}\n{_sentence(runs, sizes)}"


def _predicted(of: Law, smaller: Law | None, size: int) -> list[str]:
    """Loss of a size by the law of the smaller ones, and how far the measured one is from it."""
    if smaller is None or size not in of.losses:
        return ["", ""]
    by_law = smaller.at(of.flops[size])
    measured = geometric_mean(of.losses[size].values())
    return [f"{by_law:.3f}", f"{measured / by_law - 1:+.1%}"]


def _sentence(runs: Sequence[Run], sizes: Sequence[int]) -> str:
    costs = [
        " to ".join(
            f"{digits.count(choose(one.flops for one in runs if one.size == size))}FLOPs"
            for choose in (min, max)
        )
        for size in (sizes[0], sizes[-1])
    ]
    unigram = " to ".join(
        dict.fromkeys(f"{choose(one.unigram for one in runs):.2f}" for choose in (min, max))
    )
    return (
        f"Of the mixers, a run takes {costs[0]} at size {sizes[0]} and {costs[1]} at size"
        f" {sizes[-1]}. p is after Holm. A unigram model has a loss of {unigram}.\n"
    )


def _exponent(b: Mapping[int, float]) -> str:
    value = spread(list(b.values()))
    assert value is not None
    ends = Difference(value.mean, value.std, value.n, None).interval
    return f"{value.mean:.4f}" + (f" ({ends[0]:.4f} to {ends[1]:.4f})" if ends else "")


def _gap(gap: Difference | None) -> str:
    if gap is None or gap.interval is None:
        return ""
    low, high = gap.interval
    p = digits.p_value(gap)
    return f"{gap.mean:+.4f} ({low:+.4f} to {high:+.4f}); p {'' if p[0] == '<' else '= '}{p}"
