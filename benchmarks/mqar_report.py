"""What `benchmarks.mqar` found: printed, and as `docs/mqar.md`."""

from __future__ import annotations

from typing import Any

from chimera.paths import ROOT
from chimera.rundir.environment import environment

TO = ROOT / "docs" / "mqar.md"
COMMAND = "python -m benchmarks mqar"
HEADS = ["mixer", "position", "accuracy", "steps", "behind conv", "steps", "state"]
OPENING = """\
# What each mixer recalls

Written by `{command}` on {processor}, one thread; do not edit.

Multi-query associative recall (MQAR, Zoology, arXiv 2312.04927). A sequence of 64 tokens is 8 pairs
of a key and a value, then 48 queries, each one of the 8 keys; the answer, among 16 values, is the
one that goes with it. There are 16 keys; all is drawn anew for each sequence, keys and values
without repetition, so knowing what stood there but not where is right one time in eight (12.5 %).

The model is two blocks of width 64 with four heads and no ffn. AdamW at {rate}, the same for all
and chosen once, at most {steps} steps of {batch} sequences, fewer where training has long been
right. One seed. The accuracy is that of {queries:,} queries in sequences not trained on.

*Behind conv* is the same mixer after the depthwise convolution of `conv_attention` (kernel 3). To
keep a value under the key one place before it, a layer must know which token that was. Softmax
attention finds it by position; a recurrence needs a convolution or a gate, and one without either
stays at the guess. So the first columns say whether the mixer does all alone, the second how well
it recalls once each token has seen its neighbours.

*State* is what one sequence leaves behind after 64 tokens to continue from, in floating-point
numbers, both layers, the mixer alone: a cache of softmax attention grows with each token, what a
recurrence or a window keeps does not. Within 64 tokens a window of 256 and a block of 64 see
everything, so those are softmax attention here. A pattern has its first two members.
"""


def write(rows: dict[str, dict[str, Any]], **facts: Any) -> dict[str, Any]:
    """Print the table, best first, and write the document; what goes into the results file."""
    lines = ["| " + " | ".join(HEADS) + " |", "|---|---|" + "---:|" * (len(HEADS) - 2)]
    for name in sorted(rows, key=lambda n: _rank(rows[n])):
        row = rows[name]
        cells = [f"`{name}`", row["position"], *_cells(row["alone"]), *_cells(row["behind"])]
        lines.append("| " + " | ".join([*cells, f"{row['alone']['state']:,}"]) + " |")
    print("\n".join(lines))
    TO.parent.mkdir(exist_ok=True)
    opening = OPENING.format(command=COMMAND, processor=environment()["processor"], **facts)
    TO.write_text("\n".join([opening, *lines, ""]), encoding="utf-8")
    return {"rows": rows, **facts}


def _rank(row: dict[str, Any]) -> tuple[float, float, int]:
    """Best alone first, then best behind the convolution, then quickest."""
    behind = row["behind"] or row["alone"]
    return -round(row["alone"]["accuracy"], 3), -behind["accuracy"], row["alone"]["steps"]


def _cells(trained: dict[str, Any] | None) -> list[str]:
    if trained is None:
        return ["–", "–"]
    return [f"{trained['accuracy']:.1%}", str(trained["steps"])]
