"""Make reports of a table from its finished runs, and compare any runs.

results         state and value of every (row, seed) of a table
summary         lines of the table: mean and spread, difference to the reference, ranked pairs
stats           paired tests with Holm's correction; bootstrap: intervals over several tasks
baselines       trivial predictors, the last rows of a table
markdown        report.md: the table, the order of rows, the sections; notes: its sentences
metric_grid     grids and the picture of metrics by length or layer
provenance      settings, code, machines, the commands that repeat a table
formatting      numbers as text; escape: text from outside in Markdown and LaTeX
bars, curves    pictures of values and of losses; style: the look that all share
write           writes all files of a report, CSV and LaTeX too; dashboard: W&B
comparison      reads and groups any runs; compare_page: their page, table and picture
"""
