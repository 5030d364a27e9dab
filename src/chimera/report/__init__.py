"""Tables made of finished runs: ours beside the paper's, with what a reader must know to trust it.

cells.py    every (row, seed) of a table: its run directory, state, value
summary.py  lines of the table: mean and spread, difference to the reference, order of rows
text.py     report.md; export.py report.csv and report.tex; figures.py report.png and curves.png
"""

from chimera.report.summary import Summary, summarise
from chimera.report.write import report_folder, show, write

__all__ = ["Summary", "report_folder", "show", "summarise", "write"]
