"""Print the results of `benchmarks.mqar`, and write them to `docs/mqar.md`."""

from __future__ import annotations

from typing import Any

from chimera.paths import ROOT
from chimera.rundir.environment import environment

TO = ROOT / "docs" / "mqar.md"
COMMAND = "python -m benchmarks mqar"
HEADS = ["mixer", "position", "accuracy", "steps", "behind conv", "steps", "state"]
OPENING = """\
# Recall of each mixer

Written by `{command}` on {processor}, one thread; do not edit. `python -m benchmarks.mqar NAME …`
measures single rows anew.

Multi-query associative recall (MQAR, Zoology, arXiv 2312.04927). A sequence of 64 tokens has 8
pairs of a key and a value, then 48 queries. Each query is one of the 8 keys; the answer is its
value, one of 16. There are 16 keys. Each sequence is drawn anew, keys and values without
repetition. A model that knows which values occur, but not where, is right one time in eight
(12.5 %).

The model has two blocks of width 64 with four heads and no ffn. AdamW at {rate}, the same for all
mixers and chosen once. Training takes at most {steps} steps of {batch} sequences and ends earlier
where the answers have long been right. One seed. The accuracy is over {queries:,} queries in
sequences that were not trained on.

*Behind conv* is the same mixer after the depthwise convolution of `conv_attention` (kernel 3). To
store a value under the key one place before it, a layer must know the previous token. Softmax
attention finds it by position. A recurrence needs a convolution or a gate; without either it stays
at the guess. The first columns show whether the mixer recalls alone, the second ones how well it
recalls when each token knows its neighbours.

*State* is the size of what one sequence keeps after 64 tokens to continue from: floating-point
numbers, both layers, the mixer alone. A cache of softmax attention grows with each token; the state
of a recurrence or a window does not. Within 64 tokens all windows and a block of 64 see everything,
so `sliding_window`, `sparse_block`, `modernbert` and `gemma3` are softmax attention here. A pattern
has a layer of each of its first two kinds.
"""


def write(rows: dict[str, dict[str, Any]], **facts: Any) -> dict[str, Any]:
    """Print the table, best first, write the document; return the contents of the results file."""
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
    """Sort key: accuracy alone, then accuracy behind the convolution, then number of steps."""
    behind = row["behind"] or row["alone"]
    return -round(row["alone"]["accuracy"], 3), -behind["accuracy"], row["alone"]["steps"]


def _cells(trained: dict[str, Any] | None) -> list[str]:
    if trained is None:
        return ["–", "–"]
    return [f"{trained['accuracy']:.1%}", str(trained["steps"])]
