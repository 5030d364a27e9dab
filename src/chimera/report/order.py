"""Section of report.md on the order of rows, here and in the paper."""

from __future__ import annotations

from chimera.report import digits
from chimera.report.escape import code
from chimera.report.stats import LEVEL
from chimera.report.summary import Pair, Summary


def order(summary: Summary) -> str:
    """Compare the order of rows with the paper's, pair by pair, in Markdown."""
    published = [line for line in summary.lines if line.published]
    if len(published) < 2:
        return "The paper prints fewer than two values of this metric, so it ranks no rows."
    if not summary.pairs:
        return "No two of the rows that the paper ranks have a common finished seed yet."
    against = [pair for pair in summary.pairs if not pair.agrees]
    agree = [pair for pair in summary.pairs if pair.agrees]
    firm = sum(pair.difference.significant for pair in agree)
    tested = (
        f"{firm} of them with a significant difference, p < {LEVEL:g} after Holm's correction for"
        " these pairs"
    )
    if summary.table.counts:
        tested = "counts are not tested"
    text = (
        f"Pairs of rows that the paper ranks and that are done here: {len(summary.pairs)}. In the"
        f" paper's order: {len(agree)} ({tested})."
        f" Not in its order: {len(against)}."
    )
    return "\n\n".join([text, *(["\n".join(map(_against, against))] if against else [])])


def _against(pair: Pair) -> str:
    first, second = pair.first, pair.second
    assert first.published is not None
    assert second.published is not None
    assert first.ours is not None
    assert second.ours is not None
    if pair.difference.mean == 0:
        result = "both have the same value"
    else:
        worse = digits.spread(pair.difference).removeprefix("-")
        n = pair.difference.n
        result = f"{code(first.name)} is worse by {worse} over {n} common seed{'s' * (n != 1)}"
    p = digits.p_equals(pair.difference)
    values = f"{digits.spread(first.ours)} against {digits.spread(second.ours)}"
    verdict = "significant" if pair.difference.significant else "not significant"
    if not p:
        verdict = "one seed, no test" if pair.difference.std is None else "a count, no test"
    return (
        f"- In the paper {code(first.name)} ({first.published.value:g}) is better than"
        f" {code(second.name)} ({second.published.value:g}); here {result}"
        f" ({values}): {verdict}{f', {p}' if p else ''}."
    )
