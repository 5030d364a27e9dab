"""docs/results.md: perplexity on longer sequences than those of training, from committed records.

SAIDL's Figure 3 has curves without numbers; its caption says by how much perplexity rises.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from benchmarks.markdown import table
from benchmarks.stored import Pair, records
from chimera.config.tables import load
from chimera.report import digits
from chimera.report.stats import Difference, paired

#: The table, and of which of its runs: a seed's runs at other rates would count twice.
TABLE, SCALE, RATE = "saidl/attention_length", "medium", 2e-3
#: Start of the names of the table's records.
RECORDS = "causal_lm-"
#: By what perplexity rises from one to eight trained lengths, by the paper's caption.
PAPER = (1.15, 1.17)
#: Perplexities of a run, by tokens of a sequence.
Lengths = dict[int, float]


def rise() -> str:
    """The table of rows and lengths."""
    return page(records(RECORDS))


def page(pairs: Iterable[Pair]) -> str:
    """A line for each row; «No runs yet.» without two seeds of a row.

    Args:
        pairs: configuration and run.json of runs; those of other tables are left out.
    """
    found: dict[str, dict[int, Lengths]] = defaultdict(dict)
    unigrams = set[str]()
    for config, record in pairs:
        if _counts(config):
            found[config["table"]["row"]][config["seed"]] = _lengths(config, record)
            unigrams.add(digits.number(float(record["metrics"]["val/unigram_perplexity"])))
    rises = {row: gap for row, seeds in found.items() if (gap := _rise(seeds)).interval}
    if not rises:
        return "No runs yet.\n"
    order = sorted(rises, key=lambda row: rises[row].mean)
    first, *_, last = lengths = list(next(iter(found[order[0]].values())))
    head = ["row", *(f"{tokens} tokens" for tokens in lengths)]
    head.append(f"{last} ÷ {first} tokens, 95 % interval")
    lines = [
        [f"`{row}`", *(_mean(found[row], tokens) for tokens in lengths), _shown(rises[row])]
        for row in order
    ]
    low, high = (f"{100 * (times - 1):.0f}" for times in PAPER)
    printed = {one.row for one in load(TABLE).published}  # further rows are ours
    theirs = [_ends(rises[row]) for row in order if row in printed]
    less = sum(end < PAPER[0] for _, end in theirs)
    more = sum(start > PAPER[1] for start, _ in theirs)
    seeds = min(rises[row].n for row in order)
    return (
        f"{table(head, lines)}\n"
        f"By the caption of the paper's figure perplexity rises by {low} to {high} % over the same"
        f" factor. Of its {len(theirs)} variants {less} rise here by less, with the whole interval,"
        f" and {more} by more ({seeds} seeds). A unigram model has"
        f" {' or '.join(sorted(unigrams))} at {first} tokens.\n"
    )


def _counts(config: Mapping[str, Any]) -> bool:
    named = config.get("table") or {}
    if named.get("name") != TABLE or config["choices"]["scale"] != SCALE:
        return False
    return float(config["optim"]["lr"]) == RATE


def _lengths(config: Mapping[str, Any], record: Mapping[str, Any]) -> Lengths:
    trained, metrics = int(config["data"]["seq_len"]), record["metrics"]
    longer = {trained * n: metrics[f"val/perplexity_{n}x"] for n in config["task"]["longer"]}
    return {trained: metrics["val/perplexity"], **longer}


def _rise(seeds: Mapping[int, Lengths]) -> Difference:
    """Of the logarithms of the perplexities at the longest and at the trained length, by seed."""
    first, last = (
        {seed: math.log(one[choose(one)]) for seed, one in seeds.items()} for choose in (min, max)
    )
    gap = paired(last, first)
    assert gap is not None
    return gap


def _mean(seeds: Mapping[int, Lengths], tokens: int) -> str:
    return digits.values(one[tokens] for one in seeds.values())


def _shown(gap: Difference) -> str:
    low, high = _ends(gap)
    return f"{math.exp(gap.mean):.3f} × ({low:.3f} to {high:.3f})"


def _ends(gap: Difference) -> tuple[float, float]:
    assert gap.interval is not None
    low, high = gap.interval
    return math.exp(low), math.exp(high)
