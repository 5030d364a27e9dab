"""Measured figures of the README, and what was not run: `make evidence` writes, a test compares.

Text between `<!-- figures: <name> -->` and `<!-- end of figures -->` is written by the function of
that name here.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import pandas as pd
from bootstrap import iqm, iqm_difference
from budgets import budgets
from evidence import PARTS, between, claims, claims_table, not_run, report, results, table
from small_tasks import mean, profiles, scores

from chimera.paths import ROOT
from chimera.report import formatting
from chimera.report.stats import spread

FILE = ROOT / "README.md"
PAPERS = ROOT / "docs" / "evidence" / "papers.md"
#: The notebooks, from the README.
PAGES = "notebooks/evidence"
MARKED = re.compile(r"(<!-- figures: (\w+) -->\n).*?(<!-- end of figures -->)", re.DOTALL)
#: Claims of each verdict that are shown.
SHOWN = 3


def claim_lines() -> str:
    """The first claims that hold and that do not, with the paper's figure."""
    found = claims()
    found = found[found["paper"].notna()]
    parts = [found[found["verdict"] == verdict][:SHOWN] for verdict in ("holds", "does not hold")]
    return claims_table(pd.concat(parts))


def titan_parts() -> str:
    """TITAN's parts in one sentence, and TITAN beside a plain encoder."""
    of, at = report("titan/ablations_first"), budgets("titan/ablations_first")
    beside, others = report("titan/baselines"), budgets("titan/baselines")
    assert of is not None
    assert beside is not None
    said = {}
    for row, (part, instead) in PARTS.items():
        found, flops = of.ratio("full", row), of.rows["flops"]
        assert found is not None
        cheaper = flops["full"] / flops[row] >= 1.1
        equal = f" (at equal FLOPs {at.ratio('FLOPs', 'full', row)})" if cheaper else ""
        said[found.value] = f"{part} in place of {instead} {found}{equal}"
    pair = "titan_first", "transformer_rope"
    times = beside.rows["flops"][pair[0]] / beside.rows["flops"][pair[1]]
    equal = ", ".join(f"{others.ratio(e, *pair)} at equal {e}" for e in ("FLOPs", "seconds"))
    return (
        "TITAN's paper plans to measure its parts and does not. Here, the perplexity of its whole"
        " model divided by that without the part ([medium, 3 seeds, own rates]"
        f"({PAGES}/titan.ipynb)): {'; '.join(said[v] for v in sorted(said, reverse=True))}."
        " The whole model's divided by that of a Transformer with rotated positions:"
        f" {beside.ratio(*pair)}, for {times:.1f} times the FLOPs, {equal}.\n"
    )


def convolution() -> str:
    """What a convolution gives on small tasks."""
    by_mixer, longer = scores(profiles()), scores(profiles(3200))
    told = []
    for without, with_it in (("attention", "conv_attention"), ("delta", "delta+conv=4")):
        low, high = by_mixer[without], by_mixer[with_it]
        gained = between(*iqm_difference(high, low), "+.2f")
        rise = f"from {iqm(low).value:.2f} to {iqm(high).value:.2f}"
        told.append(f"`{without}` {rise}, by {gained}")
    task = "fuzzy_recall"
    before, after = (mean(of["attention"][task]) for of in (by_mixer, longer))
    return (
        f"On {len(by_mixer['delta'])} [small tasks]({PAGES}/small_tasks.ipynb) a causal convolution"
        f" of a few tokens lifts the score of {', and '.join(told)} (interquartile means, 95 %"
        " intervals). Comparing a mixer that has a convolution with one that doesn't mostly"
        " measures the convolution. Part of it is learning sooner: with 3,200 steps in place of 800"
        f" `attention` goes from {before:.2f} to {after:.2f} on {task}.\n"
    )


def main_job() -> str:
    """What `make train` takes and gives, by make of processor."""
    lines: list[str] = []
    for name, found in sorted(results("main_job")["processors"].items()):
        runs, machine = found["runs"], f"On {found['machine']['cpus']} cores of {name}"
        value = spread([run["perplexity"] for run in runs])
        assert value is not None
        unigram, tokens = runs[0]["unigram"], runs[0]["tokens"] / 1e6
        clock = formatting.clock(sum(run["seconds"] for run in runs) / len(runs))
        ends, times = f"{formatting.spread(value)} ({len(runs)} seeds)", unigram / value.mean
        if lines:
            lines.append(
                f"{machine} it takes {clock} and ends with {ends}, {times:.2f} times lower."
            )
            continue
        lines.append(
            f"{machine} the main job takes {clock} from a cold cache ({runs[0]['steps']:,} steps,"
            f" {tokens:.1f} million tokens). It ends with a validation perplexity of {ends}, which"
            f" is {times:.2f} times lower than the {unigram:.1f} of a unigram model on the same"
            " tokens."
        )
    return "\n".join(lines) + "\n"


def speed() -> str:
    """Training against Hugging Face's, the platform's overhead, packed ternary weights."""
    rows, ternary = results("train_step")["rows"], results("ternary")["decoding"]
    plain, main = rows["chimera, BERT's parts, fp32"], rows["chimera, main job, fp32"]
    half, size = rows["chimera, main job, bf16"], ternary["bytes"]
    return (
        f"A training step of the BERT-shaped encoder of {plain['parameters'] / 1e6:.1f} M"
        f" parameters runs at {plain['times_theirs']:.1f} times the tokens/s of Hugging Face's"
        " `BertForMaskedLM` on the same two cores in fp32, the ternary main job at"
        f" {main['times_theirs']:.1f} times (in bf16 at {half['times_theirs_in_fp32']:.1f} times"
        f" their fp32 step). All that a run records adds {results('overhead')['overhead']:.1%} to a"
        " bare loop. The body of a packed ternary decoder (dim 1024, depth 8) takes"
        f" {size['packed']['body'] / 1e6:.0f} MB in place of"
        f" {size['fp32']['body'] / 1e6:.0f} and decodes"
        f" {ternary['body, times fp32']['packed']:.1f} times as fast as in fp32"
        f" ([speed]({PAGES}/speed.ipynb), [ternary weights](docs/dev/ternary.md)).\n"
    )


def left() -> str:
    """The list of what was not run, and its sum."""
    found = not_run()
    lines = [
        {
            "what": f"`{one.what}`",
            "runs": str(one.runs),
            "core-hours": one.hours,
            "why": one.why,
            "command": f"`{one.command}`",
        }
        for one in found.itertuples()
    ]
    return f"{table(lines, '.1f')}\nTogether {found['hours'].sum():.0f} core-hours.\n"


WRITERS: dict[str, Callable[[], str]] = {
    "claims": claim_lines,
    "not_run": left,
    **{of.__name__: of for of in (titan_parts, convolution, main_job, speed)},
}


def written(text: str) -> str:
    """A page with its figures written anew."""

    def block(found: re.Match[str]) -> str:
        return found[1] + WRITERS[found[2]]().replace("](../../", "](") + found[3]

    return MARKED.sub(block, text)


if __name__ == "__main__":
    for page in (FILE, PAPERS):
        page.write_text(written(page.read_text(encoding="utf-8")), encoding="utf-8")
