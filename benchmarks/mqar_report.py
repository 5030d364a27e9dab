"""What `benchmarks.mqar` found: printed, and as `docs/mqar.md`."""

from __future__ import annotations

from typing import Any

from chimera.compose import ROOT
from chimera.record import environment

TO = ROOT / "docs" / "mqar.md"
COMMAND = "python -m benchmarks mqar"
HEADS = ["mixer", "position", "accuracy", "steps", "s", "behind conv", "steps", "s", "state"]
OPENING = """\
# What each mixer recalls

Written by `{command}` on {processor}, one thread; do not edit.

Multi-query associative recall (MQAR, Zoology, arXiv 2312.04927): 8 pairs of a key and a value, then
48 queries, each one of the 8 keys; the answer is the value that goes with it. 64 tokens, 16 keys,
16 values, drawn anew for each sequence. Saying any value of the sequence is right one time in
eight, any value at all one in sixteen. Two blocks of width 64, four heads, no ffn; AdamW at {rate},
the same for all and chosen once, at most {steps} steps of {batch} sequences, fewer
where the answers are right before. One seed. Accuracy is over {queries:,} queries of sequences
not trained on.

*Behind conv* is the same mixer after the depthwise convolution of `conv_attention` (kernel 3). A
value must be stored under the key one token before it, and a recurrence without decay, gate or
convolution has no means to see which token that was: its own column shows that, the other how well
it then recalls. *State* is what one sequence keeps after 64 tokens, both layers, in numbers, for
the mixer alone; the cache of softmax attention grows with every token, the others' is what it is
at any length. At 64 tokens a window of 256 or a block of 64 sees everything: those are softmax attention
here.
"""


def write(rows: dict[str, dict[str, Any]], **facts: Any) -> dict[str, Any]:
    """Print the table, best first, and write the document; what goes into the results file."""
    lines = ["| " + " | ".join(HEADS) + " |", "|---|---|" + "---:|" * (len(HEADS) - 2)]
    for name in sorted(
        rows, key=lambda n: (-rows[n]["alone"]["accuracy"], rows[n]["alone"]["steps"])
    ):
        row = rows[name]
        cells = [f"`{name}`", row["position"], *_cells(row["alone"]), *_cells(row["behind"])]
        lines.append("| " + " | ".join([*cells, f"{row['alone']['state']:,}"]) + " |")
    print("\n".join(lines))
    TO.parent.mkdir(exist_ok=True)
    opening = OPENING.format(command=COMMAND, processor=environment()["processor"], **facts)
    TO.write_text("\n".join([opening, *lines, ""]), encoding="utf-8")
    return {"rows": rows, **facts}


def _cells(trained: dict[str, Any] | None) -> list[str]:
    if trained is None:
        return ["–", "–", "–"]
    return [f"{trained['accuracy']:.1%}", str(trained["steps"]), f"{trained['seconds']:.0f}"]
