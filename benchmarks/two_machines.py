"""Runs of `ours/scaling` that were trained on a processor and on a GPU: do their losses agree?

The GPU's runs name the packed documents (`data.documents`), which are those of
the default corpus, so the two runs of a pair have the same text, seed and steps.
"""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.scaling import stored
from chimera.report import digits
from chimera.report.stats import spread

#: Row, seed and rate of a run.
Key = tuple[str, int, float]


def two_machines() -> str:
    """The sentence of docs/results.md."""
    here, there = dict[Key, float](), dict[Key, float]()
    for config, record in stored():
        key = (config["table"]["row"], config["seed"], float(config["optim"]["lr"]))
        side = here if config["data"].get("documents") is None else there
        side[key] = record["metrics"]["val/loss"]
    return page(here, there)


def page(here: Mapping[Key, float], there: Mapping[Key, float]) -> str:
    """The losses on the GPU less those on the processor, by row."""
    by_row: dict[str, list[float]] = {}
    for key in sorted(here.keys() & there.keys()):
        by_row.setdefault(key[0], []).append(there[key] - here[key])
    every = spread([gap for gaps in by_row.values() for gap in gaps])
    if every is None:
        return "No runs yet.\n"
    listed = "; ".join(
        f"`{row}` {', '.join(f'{gap:+.4f}' for gap in gaps)}" for row, gaps in by_row.items()
    )
    return (
        f"Validation losses on the GPU less those on a processor, the same seeds: {listed}; in the"
        f" mean {digits.spread(every, sign=True)}.\n"
    )
