"""docs/results.md: perplexity on longer sequences than those of training, from committed records.

SAIDL's Figure 3 has curves without numbers; its caption says by how much perplexity rises.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping

from benchmarks.markdown import table
from benchmarks.stored import Pair, records
from chimera.report import digits
from chimera.report.stats import Spread, spread

#: The table, and of which of its runs: a seed's runs at other rates would count twice.
TABLE, SCALE, RATE = "saidl/attention_length", "medium", 2e-3
#: Start of the names of the table's records.
RECORDS = "causal_lm-"
#: Trained lengths that a sequence has, with the end of their metrics' names.
FACTORS = {1: "", 2: "_2x", 4: "_4x", 8: "_8x"}
#: By what perplexity rises from one to eight trained lengths, by the paper's caption.
PAPER = (1.15, 1.17)
#: The paper's six variants; further rows are ours.
VARIANTS = ("standard", "sliding_window", "sparse_block", "linear", "gqa", "mqa")


def rise() -> str:
    """The table of rows and lengths."""
    return page(records(RECORDS))


def page(pairs: Iterable[Pair]) -> str:
    """A line for each row; «No runs yet.» without two seeds of a row.

    Args:
        pairs: configuration and run.json of runs; those of other tables are left out.
    """
    found: dict[str, dict[int, dict[int, float]]] = defaultdict(dict)
    length, unigrams = 0, set[str]()
    for config, record in pairs:
        if _counts(config):
            metrics = record["metrics"]
            found[config["table"]["row"]][config["seed"]] = {
                factor: float(metrics[f"val/perplexity{end}"]) for factor, end in FACTORS.items()
            }
            length = int(config["data"]["seq_len"])
            unigrams.add(digits.number(float(metrics["val/unigram_perplexity"])))
    rises = {row: _rise(seeds) for row, seeds in found.items()}
    rises = {row: value for row, value in rises.items() if value.interval}
    if not rises:
        return "No runs yet.\n"
    order = sorted(rises, key=lambda row: rises[row].mean)
    tokens = [f"{factor * length}" for factor in FACTORS]
    ends = f"{tokens[-1]} ÷ {tokens[0]} tokens, 95 % interval"
    lines = [
        [f"`{row}`", *(_mean(found[row], factor) for factor in FACTORS), _shown(rises[row])]
        for row in order
    ]
    low, high = (f"{100 * (times - 1):.0f}" for times in PAPER)
    theirs = [rises[row] for row in VARIANTS if row in rises]
    less, more = (sum(side(value) for value in theirs) for side in (_below, _above))
    seeds = min(len(found[row]) for row in order)
    return (
        f"{table(['row', *(f'{one} tokens' for one in tokens), ends], lines)}\n"
        f"By the caption of the paper's figure perplexity rises by {low} to {high} % over the same"
        f" factor. Of its {len(theirs)} variants {less} rise here by less, with the whole interval,"
        f" and {more} by more ({seeds} seeds). A unigram model has"
        f" {' or '.join(sorted(unigrams))} at {tokens[0]} tokens.\n"
    )


def _counts(config: Mapping[str, object]) -> bool:
    named, choices, optim = config.get("table"), config["choices"], config["optim"]
    assert isinstance(choices, dict)
    assert isinstance(optim, dict)
    return (
        isinstance(named, dict)
        and named.get("name") == TABLE
        and choices.get("scale") == SCALE
        and float(optim["lr"]) == RATE
    )


def _rise(seeds: Mapping[int, Mapping[int, float]]) -> Spread:
    """Of the logarithm of the quotient of the perplexities at the longest and trained length."""
    first, *_, last = FACTORS
    value = spread([math.log(one[last] / one[first]) for one in seeds.values()])
    assert value is not None
    return value


def _mean(seeds: Mapping[int, Mapping[int, float]], factor: int) -> str:
    value = spread([one[factor] for one in seeds.values()])
    assert value is not None
    return digits.spread(value)


def _shown(value: Spread) -> str:
    low, high = _ends(value)
    return f"{math.exp(value.mean):.3f} × ({low:.3f} to {high:.3f})"


def _below(value: Spread) -> bool:
    return _ends(value)[1] < PAPER[0]


def _above(value: Spread) -> bool:
    return _ends(value)[0] > PAPER[1]


def _ends(value: Spread) -> tuple[float, float]:
    assert value.interval is not None
    low, high = value.interval
    return math.exp(low), math.exp(high)
