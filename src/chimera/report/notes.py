"""Sentences of a report that explain its numbers."""

from __future__ import annotations

from chimera.report import digits
from chimera.report.cells import metric
from chimera.report.summary import Summary


def unigram(summary: Summary) -> str:
    """Sentence on the perplexity of a unigram model (token frequencies only); empty if unknown."""
    records = (metric(run.record, "val/unigram_perplexity") for run in summary.cells)
    values = sorted({value for value in records if value is not None})
    if not values or summary.table.metric != "val/perplexity":
        return ""
    ends = dict.fromkeys(digits.number(value) for value in (values[0], values[-1]))
    return f" A unigram model has {' to '.join(ends)} on the same validation tokens."


def flops(summary: Summary) -> str:
    """Sentence on the columns of FLOPs; empty if no run has counted them."""
    if all(line.facts["flops"] is None for line in summary.lines):
        return ""
    return (
        " «FLOPs/token» are those of matrix products in a training step, «MFU» is the share of the"
        " rate of one large product on the same machine."
    )


def resolved(summary: Summary) -> str:
    """Sentence on the smallest difference that the table can show; empty without spreads."""
    smallest = summary.resolvable
    if smallest is None:
        return ""
    seeds = min(d.n for line in summary.lines if (d := line.difference) and d.std is not None)
    return (
        f"With {seeds} seeds and the spread of these differences, one below about"
        f" {digits.number(smallest, 2)} is not resolved. "
    )
