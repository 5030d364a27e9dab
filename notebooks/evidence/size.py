"""Decoders of 12 × 768 (`ours/size`) beside the law of smaller models of the same rows and text."""

from __future__ import annotations

import math

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from evidence import runs, table
from IPython.display import Image
from picture import small

from chimera.report import formatting
from chimera.report.style import COLOURS

#: Words before the records are there.
NOT_RUN = "It is not run: `python -m tools.size_queue` trains it on a GPU, in slices of minutes."


def losses() -> pd.DataFrame:
    """Runs of all sizes, seed 0: `row`, `dim`, `flops`, `bits` (a byte of text), `seconds`."""
    found = runs("ours/size")
    if not len(found):
        return found
    found = found[found["seed"] == 0]
    tokens = found["data.batch_size"] * found["data.seq_len"]
    per_byte = found["data.splits.valid.tokens"] / found["data.splits.valid.bytes"]
    return found.assign(
        dim=found["model.dim"],
        tokens=tokens * found["steps"],
        flops=(found["flops.training"] * found["steps"] * tokens).astype(float),
        seconds=tokens * found["steps"] / found["tokens_per_second"],
        bits=found["val/loss"] * per_byte / math.log(2),
    ).sort_values(["dim", "flops"])


def law(part: pd.DataFrame) -> tuple[float, float] | None:
    """Slope and offset of log bits over log FLOPs of the smaller models, if there are three."""
    smaller = part[part["dim"] < 768]
    if len(smaller) < 3:
        return None
    slope, offset = np.polyfit(np.log(smaller["flops"]), np.log(smaller["bits"]), 1)
    return float(slope), float(offset)


def compared() -> str:
    """The largest models as Markdown, beside what the law of the smaller ones gives them."""
    found = losses()
    if not len(found):
        return NOT_RUN
    lines = []
    for one in found[found["dim"] == 768].itertuples():
        fitted = law(found[found["row"] == one.row])
        line = {"row": f"`{one.row}`", "tokens": formatting.count(one.tokens)}
        line |= {"FLOPs": formatting.count(one.flops), "seconds": f"{one.seconds:.0f}"}
        line["bits a byte"] = f"{one.bits:.4f}"
        by_law = f"{math.exp(fitted[1]) * one.flops ** fitted[0]:.4f}" if fitted else "–"
        lines.append(line | {"by the law of the smaller": by_law})
    return table(lines)


def figure() -> Image | None:
    """Bits a byte over FLOPs, a line for the law of each row; None without runs."""
    found = losses()
    if not len(found):
        return None
    drawn, axes = plt.subplots(figsize=(7, 4.2), dpi=80, layout="constrained")
    for colour, (row, part) in zip(COLOURS, found.groupby("row"), strict=False):
        axes.loglog(part["flops"], part["bits"], "o", ms=4, color=colour, label=row)
        if fitted := law(part):
            ends = np.array([part["flops"].min(), part["flops"].max()])
            axes.plot(ends, np.exp(fitted[1]) * ends ** fitted[0], color=colour, lw=1)
    axes.set(xlabel="training FLOPs (matrix products)", ylabel="validation, bits a byte")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    return small(drawn)
