"""Markdown tables of the pages that benchmarks write."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def grid(lines: Iterable[Sequence[str]]) -> str:
    """Lines of cells, the head and its rule among them, as they are: nothing is escaped."""
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table whose columns are numbers, but the first."""
    return grid([head, ["---", *["---:"] * (len(head) - 1)], *rows])
