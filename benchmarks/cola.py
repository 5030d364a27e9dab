"""docs/results.md: what the numbers on CoLA mean, and what the start model and the rate do to them.

From the committed reports of SAIDL's fine-tuning tables, and from records of single runs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.results_page import report
from benchmarks.stored import Pair, records
from chimera.paths import EXPERIMENTS
from chimera.report import digits
from chimera.report.stats import spread
from chimera.report.text import grid

#: Sentences of CoLA's validation part, and the expected largest of five standard normal draws.
COLA, BEST_OF_FIVE = 1043, 1.16296
#: Start of the names of records of runs on CoLA, and the rows that are compared over rates.
RECORDS, ROWS = "cola-attention-", ("full", "head_only")
METRIC, SEED = "val/mcc", 0


def cola() -> str:
    """What the numbers on CoLA mean."""
    return page(EXPERIMENTS) + start_models(list(records(RECORDS)))


def page(folder: Path) -> str:
    """Sentences from the report below a folder; none without it."""
    adapters = report("saidl/adapters", folder)
    if adapters is None:
        return ""
    rows = {row["row"]: row for row in adapters.done}
    scores = [
        f"{words} an MCC of {digits.spread(value)} ({', '.join(f'{one:.3f}' for one in values)})"
        for name, words in (("full", "Full fine-tuning has"), ("head_only", "a head alone"))
        if name in rows
        and (values := list(adapters.values(rows[name]).values()))
        and (value := spread(values))
    ]
    chance = 1 / math.sqrt(COLA)
    return (
        f"{', '.join(scores)} over {COLA} sentences at `{adapters.scale}`;"
        f" the standard deviation of chance is {chance:.3f} (1/√{COLA}), and the expected best of"
        f" five epochs of chance, chosen on the same sentences, {BEST_OF_FIVE * chance:.3f}."
        " A model that always says «acceptable», the majority class, has an MCC of 0.\n"
    )


def start_models(runs: Sequence[Pair], root: Path | None = None) -> str:
    """A line for each start model and row, a column for each learning rate; one seed.

    Args:
        runs: on CoLA.
        root: of the store that has the records of their start models; None: that of the repo.
    """
    starts = {str(config["init_run"]) for config, _ in runs}
    names = {
        start: _text(config) for start in starts for config, _ in records(root=root, end=start)
    }
    scores: dict[tuple[str, str], dict[float, float]] = {}
    for config, record in runs:
        row = config["table"]["row"]
        if row in ROWS and config["seed"] == SEED:
            line = scores.setdefault((row, names[str(config["init_run"])]), {})
            line[float(config["optim"]["lr"])] = float(record["metrics"][METRIC])
    if not scores:
        return ""
    rates = sorted({rate for line in scores.values() for rate in line})
    head = ["row", "start model, trained on", *(f"rate {rate:g}" for rate in rates)]
    body = [
        [row, text, *(f"{line[rate]:.3f}" if rate in line else "–" for rate in rates)]
        for (row, text), line in sorted(scores.items())
    ]
    return f"\nMCC of one seed, by learning rate:\n\n{grid(head, body)}\n"


def _text(config: Mapping[str, Any]) -> str:
    """What a start model was trained on, in words."""
    sources = config["data"].get("sources")
    if not sources:
        return "Python's documentation"
    return "English: " + ", ".join(Path(source["path"]).name for source in sources)
