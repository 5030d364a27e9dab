"""`chimera dashboard <paper>/<table>`: build a W&B workspace and report of a table."""

from __future__ import annotations

from chimera.cli.command import command
from chimera.cli.report import WORDS, Options, chosen
from chimera.errors import library


@command("dashboard", Options, WORDS, overrides=True)
def main(options: Options, words: list[str]) -> int:
    """Save both to W&B, or write both to the report's folder."""
    table, overrides, seeds = chosen(options, words)  # a mistake is told before W&B is imported
    dashboard = library("chimera.report.dashboard", "dashboard", "dashboard")
    from chimera.report.summary import summarise

    dashboard.save(summarise(table, overrides, seeds), options.out)
    return 0
