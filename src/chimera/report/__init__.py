"""Make reports of a table from its finished runs, and compare any runs.

table_results   the runs of a table; for each row mean, spread, difference; trivial predictors
stats           paired tests with Holm's correction
metric_grid     grids of further metrics, by length or layer
markdown        report.md: the table, the order of rows, the sections
notes           its sentences; provenance: settings, code, machines, commands that repeat a table
figures         its pictures; style: the look that all pictures share
write           writes all files of a report, CSV and LaTeX too; dashboard: W&B
comparison      reads and groups any runs; compare_page: their page, table and picture
formatting      numbers as text; tables in a terminal; text from outside in Markdown and LaTeX
"""
