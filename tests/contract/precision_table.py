"""The table docs/measured/half_precision.csv, from rows that `tests.contract.precision` wrote."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def table(rows: Iterable[dict[str, Any]]) -> str:
    """CSV: a line per component, a column per padding, length and dtype, worst pass each."""
    worst: dict[str, dict[str, dict[str, Any]]] = {}
    for row in rows:
        case = row["case"]
        kind = "" if case["group"] != "mixer" else " decoder" if case["causal"] else " encoder"
        column = f"{row['half']} {case['padding']} {case['length']}"
        between = "." if case["group"] == "model" else "="
        cells = worst.setdefault(f"{case['group']}{between}{case['name']}{kind}", {})
        old = cells.get(column)
        if old is None or row["error"] / row["bound"] > old["error"] / old["bound"]:
            cells[column] = row
    columns = sorted(
        {c for cells in worst.values() for c in cells}, key=lambda c: (c[:4], len(c), c)
    )
    lines = [["component", *columns]]
    for name, cells in worst.items():
        shown = (cells.get(c) for c in columns)
        lines.append([name, *(f"{r['error']:.0e} / {r['bound']:.0e}" if r else "" for r in shown)])
    return "\n".join(",".join(line) for line in lines)
