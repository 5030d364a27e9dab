"""Make reports of a table from its finished runs: measured values beside the published ones.

cells     run directory, state and value of every (row, seed) of a table
summary   lines of the table: mean and spread, difference to the reference, order of rows
text      writes report.md
export    writes report.csv and report.tex
bars      draws published and measured values
figures   draws the losses, and metrics by length
budget    draws loss against FLOPs and time
baselines trivial predictors, the last rows of a table
escape    escapes text from outside for each of these formats
"""

from importlib import import_module
from typing import Any

#: Imported when they are asked for: SciPy and Matplotlib take a second.
_FROM = {"Summary": "chimera.report.summary", "summarise": "chimera.report.summary"}


def __getattr__(name: str) -> Any:
    if name in _FROM:
        return getattr(import_module(_FROM[name]), name)
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
