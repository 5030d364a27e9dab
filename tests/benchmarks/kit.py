"""A committed report, as `python -m chimera.report` writes it, with invented numbers."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

COLUMNS = ("row", "title", "published", "mean", "seeds", "values", "state", "flops")


def report(
    folder: Path, table: str, rows: Mapping[str, Sequence[float]], baselines: Mapping[str, float]
) -> Path:
    """Write a report at `medium` below `folder`, which is returned.

    Args:
        folder: in place of experiments/.
        table: its path.
        rows: results of each row, by seed from 0. Each has a FLOP more than the row before.
        baselines: trivial predictors.
    """
    place = folder / table / "results" / "medium"
    place.mkdir(parents=True)
    with (place / "report.csv").open("w", encoding="utf-8", newline="") as opened:
        writer = csv.writer(opened)
        writer.writerow(COLUMNS)
        for flops, (row, values) in enumerate(rows.items(), 1):
            seeds, states = map(str, range(len(values))), ["done"] * len(values)
            shown = [";".join(seeds), ";".join(map(str, values)), ";".join(states)]
            writer.writerow([row, row, "", sum(values) / len(values), *shown, flops])
        for row, value in baselines.items():
            writer.writerow([row, row, "", value, "", "", "baseline", ""])
    return folder
