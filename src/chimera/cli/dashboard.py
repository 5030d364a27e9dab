"""`chimera dashboard <paper>/<table>`: build a W&B workspace and report of a table."""

from __future__ import annotations

from chimera.cli.command import command
from chimera.cli.report import WORDS, Runs, chosen
from chimera.errors import library


@command("dashboard", Runs, WORDS, overrides=True)
def main(options: Runs, words: list[str]) -> int:
    """Save both to W&B."""
    table, overrides, seeds = chosen(options, words)  # a mistake is told before W&B is imported
    dashboard = library("chimera.report.dashboard", "dashboard", "dashboard")
    from chimera.report.table_results import read_results

    dashboard.save(read_results(table, overrides, seeds))
    return 0
