"""Make reports of a table from its finished runs: measured values beside the published ones.

cells     run directory, state and value of every (row, seed) of a table
summary   lines of the table: mean and spread, difference to the reference, order of rows
text      writes report.md
export    writes report.csv and report.tex
figures   draws the PNG files
escape    escapes text from outside for each of these formats
"""

from chimera.report.summary import Summary, summarise
from chimera.report.write import report_folder, show, write

__all__ = ["Summary", "report_folder", "show", "summarise", "write"]
