"""Tables made of finished runs: ours beside the paper's, with what a reader must know to trust it.

cells     every (row, seed) of a table: its run directory, state, value
summary   lines of the table: mean and spread, difference to the reference, order of rows
text      report.md; export report.csv and report.tex; figures the pictures
escape    text from outside, made harmless in each of these formats
"""

from chimera.report.summary import Summary, summarise
from chimera.report.write import report_folder, show, write

__all__ = ["Summary", "report_folder", "show", "summarise", "write"]
