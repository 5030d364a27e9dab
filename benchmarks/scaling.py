"""Scaling of five mixers: `python -m benchmarks scaling` fits the finished runs of `ours/scaling`.

    log loss = log a − b · log FLOPs        least squares, for each mixer and seed over its sizes

FLOPs are those of a run: `flops.training` per token times the tokens of all its steps. The loss has
no irreducible part here, so b holds for these sizes only. b is the mean over seeds, with the
interval of Student's distribution. A seed is fitted over the sizes that all of its mixer's seeds
have. The largest size is predicted from the smaller ones, too: a law that only describes the points
it was fitted to says nothing.

The runs are those of `SCALE` (default medium) and SEEDS. docs/results.md has the same fits from the
records in `store/` (`law`). The picture stands beside the table's report.
"""

from __future__ import annotations

import math
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, geometric_mean
from typing import Any

import numpy as np

from benchmarks.markdown import table
from benchmarks.stored import records
from chimera.config.rates import chosen, lines_at
from chimera.paths import EXPERIMENTS
from chimera.report import digits, style
from chimera.report.budget import tokens_per_step
from chimera.report.canvas import empty, save
from chimera.report.stats import Difference, corrected, paired, spread
from chimera.report.summary import summarise

TABLE, SCALE, SEEDS = "ours/scaling", "medium", (0, 1, 2)
#: The mixer that the others' exponents are compared with.
REFERENCE = "attention"
#: Start of the names of the table's records.
RECORDS = "causal_lm-"


@dataclass(frozen=True)
class Run:
    """A finished run.

    Args:
        mixer, size: of its row, `<mixer>_<size>`.
        seed: of the run.
        flops: of all its steps.
        loss: of validation.
        unigram: loss of a unigram model on the same tokens.
    """

    mixer: str
    size: int
    seed: int
    flops: float
    loss: float
    unigram: float


@dataclass(frozen=True)
class Law:
    """What the runs of a mixer say.

    Args:
        sizes: over which each seed was fitted.
        fits: a and b of each seed.
        losses: of the runs by size and seed.
        flops: of a run by size.
    """

    sizes: tuple[int, ...]
    fits: Mapping[int, tuple[float, float]]
    losses: Mapping[int, Mapping[int, float]]
    flops: Mapping[int, float]

    @property
    def b(self) -> dict[int, float]:
        """Exponents by seed."""
        return {seed: b for seed, (_, b) in self.fits.items()}

    def at(self, flops: float) -> float:
        """Loss by the law: the geometric mean of the seeds'."""
        return math.exp(fmean(math.log(a) - b * math.log(flops) for a, b in self.fits.values()))


def main() -> dict[str, Any]:
    """Print the fits of the finished runs, draw them; return the results, empty without runs."""
    scale = os.environ.get("SCALE", SCALE)
    cells = summarise(TABLE, [f"scale={scale}"], list(SEEDS)).cells
    runs = [run(cell.config, cell.record) for cell in cells if cell.value is not None]
    laws = fitted(runs)
    if not laws:
        paper, _, name = TABLE.partition("/")
        print(f"no seed has two sizes; run: python train.py -m +{paper}={name} scale={scale}")
        return {}
    print(page(runs))
    draw(laws, scale)
    return {"scale": scale, "runs": [asdict(one) for one in runs]}


def law() -> str:
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


def fit(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Least squares of log loss on log FLOPs.

    Args:
        points: (FLOPs, loss), at least two.

    Returns:
        a and b of loss = a · FLOPs^(−b).
    """
    flops, losses = np.log(np.array(points)).T
    slope, offset = np.polyfit(flops, losses, 1)
    return float(np.exp(offset)), float(-slope)


def fitted(runs: Iterable[Run], most: int | None = None) -> dict[str, Law]:
    """The law of each mixer whose seeds have two sizes in common.

    Args:
        runs: in any order.
        most: largest size to fit; None: all.
    """
    by_mixer: dict[str, dict[int, dict[int, Run]]] = defaultdict(lambda: defaultdict(dict))
    for one in runs:
        by_mixer[one.mixer][one.seed][one.size] = one
    found = {}
    for mixer, seeds in by_mixer.items():
        shared = set[int].intersection(*(set(of) for of in seeds.values()))
        sizes = tuple(sorted(size for size in shared if most is None or size <= most))
        if len(sizes) < 2:
            continue
        fits = {
            seed: fit([(of[size].flops, of[size].loss) for size in sizes])
            for seed, of in sorted(seeds.items())
        }
        losses: dict[int, dict[int, float]] = defaultdict(dict)
        flops = {}
        for seed, of in sorted(seeds.items()):
            for size, one in sorted(of.items()):
                losses[size][seed], flops[size] = one.loss, one.flops
        found[mixer] = Law(sizes, fits, dict(sorted(losses.items())), dict(sorted(flops.items())))
    return found


def page(runs: Sequence[Run]) -> str:
    """A line for each mixer, the largest exponent first; «No runs yet.» without two seeds."""
    laws = {mixer: of for mixer, of in fitted(runs).items() if len(of.fits) > 1}
    if REFERENCE not in laws:
        return "No runs yet.\n"
    sizes = sorted({one.size for one in runs})
    smaller = fitted(runs, most=sizes[-1] - 1)
    order = sorted(laws, key=lambda mixer: -fmean(laws[mixer].b.values()))
    others = [mixer for mixer in order if mixer != REFERENCE]
    gaps = corrected([paired(laws[mixer].b, laws[REFERENCE].b) for mixer in others])
    less = dict(zip(others, gaps, strict=True))
    lines = []
    for mixer in order:
        of, before = laws[mixer], smaller[mixer]
        flops, last = of.flops.get(sizes[-1]), of.losses.get(sizes[-1], {})
        there = ["", ""]
        if flops is not None:
            by_law, here = before.at(flops), geometric_mean(last.values())
            there = [f"{by_law:.3f}", f"{here / by_law - 1:+.1%}"]
        lines.append([
            f"`{mixer}`", _exponent(of.b), _gap(less.get(mixer)),
            *(digits.values(of.losses.get(size, {}).values()) for size in sizes), *there,
        ])  # fmt: skip
    head = ["mixer", "b (95 % interval)", f"less that of `{REFERENCE}`; p after Holm"]
    head += [*(f"loss at size {size}" for size in sizes), f"size {sizes[-1]} by the smaller ones"]
    head += ["measured less that"]
    return f"{table(head, lines)}\n{_sentence(runs, laws, sizes)}"


def _sentence(runs: Sequence[Run], laws: Mapping[str, Law], sizes: Sequence[int]) -> str:
    over = {of.sizes for of in laws.values()}
    assert len(over) == 1, "the mixers were fitted over other sizes"
    seeds = {
        size: {len({r.seed for r in runs if (r.mixer, r.size) == (m, size)}) for m in laws}
        for size in sizes
    }
    counts = ", ".join(
        f"{'to '.join(f'{n} ' for n in sorted(of)).strip()} at size {size}"
        for size, of in seeds.items()
    )
    first, last = (
        digits.count(fmean(of.flops[size] for of in laws.values() if size in of.flops))
        for size in (sizes[0], sizes[-1])
    )
    unigram = " to ".join(
        dict.fromkeys(f"{choose(r.unigram for r in runs):.2f}" for choose in (min, max))
    )
    return (
        f"b is fitted over sizes {', '.join(map(str, next(iter(over))))}. Seeds: {counts}."
        f" A run takes {first}FLOPs at size {sizes[0]} and {last}FLOPs at size {sizes[-1]}, in the"
        f" mean of the mixers. A unigram model has a loss of {unigram}.\n"
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


def draw(laws: Mapping[str, Law], scale: str) -> None:
    """Losses against FLOPs with the fitted laws, beside the table's report."""
    figure = empty(8, 5)
    axis = figure.subplots()
    for number, (mixer, of) in enumerate(sorted(laws.items())):
        look = style.line(number)
        ends = [min(of.flops.values()), max(of.flops.values())]
        axis.plot(ends, [of.at(one) for one in ends], color=look["color"], linewidth=1)
        points = [(of.flops[size], loss) for size in of.losses for loss in of.losses[size].values()]
        label = f"{mixer}: b = {fmean(of.b.values()):.4f}"
        axis.plot(
            *zip(*points, strict=True), look["marker"], color=look["color"], label=label,
            markersize=5, markeredgecolor="white", markeredgewidth=0.6,
        )  # fmt: skip
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlabel("training FLOPs (matrix products)")
    axis.set_ylabel("validation loss, nats per token")
    axis.yaxis.set_major_formatter("{x:.1f}")
    axis.yaxis.set_minor_formatter("{x:.1f}")
    over = sorted({size for of in laws.values() for size in of.sizes})
    axis.set_title(
        f"Points: a run each; lines: fits over sizes {over[0]} to {over[-1]}", fontsize=10
    )
    style.tidy(axis)
    style.legend(figure, axis)
    folder = EXPERIMENTS / TABLE / "results" / scale
    folder.mkdir(parents=True, exist_ok=True)
    save(figure, folder / "scaling.png", ("png", "pdf"))
