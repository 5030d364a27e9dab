"""Measured figures of the README, and what was not run: `make evidence` writes, a test compares.

Text between `<!-- figures: <name> -->` and `<!-- end of figures -->` is written by the function of
that name here.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
from bootstrap import iqm, iqm_difference
from convolution import COLOURS, PAIRS
from evidence import PARTS, between, claims, not_run, report, results, table
from matplotlib.axes import Axes
from small_tasks import profiles, scores

from chimera.paths import ROOT
from chimera.report import formatting, style
from chimera.report.stats import spread

FILE = ROOT / "README.md"
PAPERS = ROOT / "docs" / "evidence" / "papers.md"
#: The notebooks, from the README.
PAGES = "notebooks/evidence"
#: What an interval says, and its colour.
VERDICTS = {"holds": "#0072B2", "does not hold": "#D55E00", "open": "0.45"}
OFFSET: dict[str, Any] = {"textcoords": "offset points", "fontsize": 9}
MARKED = re.compile(r"(<!-- figures: (\w+) -->\n).*?(<!-- end of figures -->)", re.DOTALL)
PICTURE = ROOT / "docs" / "picture.svg"
#: Claims of each verdict that are drawn.
SHOWN = 4


def claims_found() -> str:
    """How many claims hold, and one of each verdict."""
    found = claims()
    count = found["verdict"].value_counts()
    said = []
    for verdict in ("holds", "does not hold"):
        one = next(found[(found["verdict"] == verdict) & found["paper"].notna()].itertuples())
        said.append(f"{one.claim}: {one.paper:.2f} × in the paper, {one.ratio} here, **{verdict}**")
    return (
        f"Of {len(found)} claims of [five papers](docs/evidence/papers.md) that a part lowers"
        f" perplexity, {count['holds']} hold here, {count['does not hold']} do not, and"
        f" {count['open']} are open: the 95 % interval includes 1"
        f" ([all of them]({PAGES}/results.ipynb))."
        f" For example {'; '.join(said)}.\n"
    )


#: A mixer without and with a convolution of a few tokens.
def convolution() -> str:
    """What a convolution gives on small tasks."""
    by_mixer = scores(profiles())
    told = []
    for without, with_it in PAIRS:
        low, high = by_mixer[without], by_mixer[with_it]
        gained = between(*iqm_difference(high, low), "+.2f")
        told.append(f"`{without}` from {iqm(low).value:.2f} to {iqm(high).value:.2f}, by {gained}")
    return (
        f"On {len(by_mixer['delta'])} [small tasks]({PAGES}/convolution.ipynb) a causal convolution"
        f" of a few tokens lifts the score of {', and '.join(told)}. Comparing a mixer that has a"
        " convolution with one that doesn't mostly measures the convolution.\n"
    )


def parts_of_titan() -> str:
    """The parts of TITAN whose interval excludes one."""
    of = report("titan/ablations")
    assert of is not None
    said: dict[float, str] = {}
    for row, (part, instead) in PARTS.items():
        found = of.ratio("full", row)
        assert found is not None
        if found.verdict("helps", "hurts") != "open":
            said[found.value] = f"{part} in place of {instead} {found}"
    shown = "; ".join(said[value] for value in sorted(said)) or "none can be told from no change"
    return (
        "TITAN's paper plans to measure its parts and does not. Perplexity of its model over that"
        " without the part, at rates that an earlier reading of it chose, if the interval excludes"
        f" 1: {shown} ([titan]({PAGES}/titan.ipynb)).\n"
    )


def main_job() -> str:
    """What `make train` takes and gives, by make of processor."""
    told: list[str] = []
    for name, found in sorted(results("main_job")["processors"].items()):
        runs = found["runs"]
        value = spread([run["perplexity"] for run in runs])
        assert value is not None
        clock = formatting.clock(sum(run["seconds"] for run in runs) / len(runs))
        machine = f"{found['machine']['cpus']} cores of {name}"
        told.append(f"{clock} on {machine}, to perplexity {formatting.spread(value)}")
        unigram = runs[0]["unigram"]
    return f"The main job takes {'; '.join(told)} (a unigram model: {unigram:.0f}).\n"


def speed() -> str:
    """Training against Hugging Face's, the platform's overhead, packed ternary weights."""
    rows, ternary = results("train_step")["rows"], results("ternary")["decoding"]
    plain, size = rows["chimera, BERT's parts, fp32"], ternary["bytes"]
    return (
        f"On two CPU cores an encoder of {plain['parameters'] / 1e6:.1f} M parameters trains"
        f" {plain['times_theirs']:.1f} times as fast as Hugging Face's `BertForMaskedLM`. Recording"
        f" a run costs {results('overhead')['overhead']:.1%}. The body of a packed ternary decoder"
        f" takes {size['packed']['body'] / 1e6:.0f} MB in place of"
        f" {size['fp32']['body'] / 1e6:.0f} ([speed]({PAGES}/speed.ipynb)).\n"
    )


def left() -> str:
    """The list of what was not run, and its sum."""
    found = not_run()
    lines = [
        {
            "what": f"`{one.what}`" if "/" in one.what else one.what,
            "runs": str(one.runs),
            "core-hours": one.hours,
            "why": one.why,
            "command": f"`{one.command}`",
        }
        for one in found.itertuples()
    ]
    return f"{table(lines, '.1f')}\nTogether {found['hours'].sum():.0f} core-hours.\n"


WRITERS: dict[str, Callable[[], str]] = {
    "not_run": left,
    **{of.__name__: of for of in (claims_found, convolution, parts_of_titan, main_job, speed)},
}


def written(text: str) -> str:
    """A page with its figures written anew."""

    def block(found: re.Match[str]) -> str:
        return found[1] + WRITERS[found[2]]().replace("](../../", "](") + found[3]

    return MARKED.sub(block, text)


def picture(to: Path = PICTURE) -> None:
    """Draw what a convolution gives, and claims with the papers' ratios; equal bytes each time."""
    figure = style.empty(10, 4.4)
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.5))
    _scores(left)
    _forest(right)
    style.save(figure, to, ("svg",))


def _scores(axes: Axes) -> None:
    """Scores on small tasks, without and with a convolution."""
    by_mixer = scores(profiles())
    for height, pair in enumerate(reversed(PAIRS)):
        found = [iqm(by_mixer[mixer]) for mixer in pair]
        axes.plot([one.value for one in found], [height, height], color="0.8", lw=6, zorder=1)
        for one, colour, words in zip(found, COLOURS, ("without", "with convolution"), strict=True):
            assert one.low is not None
            assert one.high is not None
            axes.hlines(height, one.low, one.high, color=colour, lw=2)
            axes.plot(one.value, height, "o", color=colour, ms=8)
            axes.annotate(words, (one.value, height), (8, 10), ha="right", color=colour, **OFFSET)
    axes.set(xlim=(0, 1), ylim=(-0.5, len(PAIRS) - 0.4), xlabel="score: 0 a guess, 1 no error")
    axes.set_yticks(range(len(PAIRS)), [pair[0] for pair in reversed(PAIRS)])
    tasks = len(by_mixer["delta"])
    axes.set_title(f"A convolution of a few tokens,\n{tasks} small tasks", loc="left")


def _forest(axes: Axes) -> None:
    """Claims: our ratio with its interval, the paper's as a line, what the interval says."""
    found = claims()
    found = found[found["paper"].notna()]
    parts = [found[found["verdict"] == verdict][:SHOWN] for verdict in VERDICTS]
    drawn = pd.concat(parts).iloc[::-1]
    for height, one in enumerate(drawn.itertuples()):
        colour = VERDICTS[one.verdict]
        axes.hlines(height, one.ratio.low, one.ratio.high, color=colour, lw=2)
        axes.plot(one.ratio.value, height, "o", color=colour)
        axes.plot(one.paper, height, "|", color="black", ms=12, mew=1.5)
    axes.axvline(1, color="0.6", lw=1, ls=":")
    names = drawn["claim"].str.replace(r"\(([A-Z]+) .*\)$", r"(\1)", regex=True)
    axes.set_yticks(range(len(drawn)), [textwrap.fill(name, 44) for name in names])
    axes.tick_params(axis="y", labelsize=7.5)
    axes.set_xscale("log")
    axes.set_xticks([0.25, 0.5, 1, 2, 4], ["0.25", "0.5", "1", "2", "4"])
    axes.minorticks_off()
    axes.set_xlabel("perplexity with the part / without it (| the paper's)")
    axes.set_title("Papers' claims that a part helps:\n", loc="left")
    for place, (verdict, colour) in zip((0, 0.3, 0.75), VERDICTS.items(), strict=True):
        axes.text(place, 1.02, verdict, color=colour, transform=axes.transAxes)


if __name__ == "__main__":
    picture()
    for page in (FILE, PAPERS):
        page.write_text(written(page.read_text(encoding="utf-8")), encoding="utf-8")
