"""`chimera doctor`: what this machine has, what is missing, and what will be slow because of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from chimera.cli.errors import exit_code
from chimera.cli.flags import HELP

USAGE = "chimera doctor [format=json]"


@dataclass(frozen=True)
class Options:
    """Options.

    Args:
        format: text or json.
    """

    format: Literal["text", "json"] = "text"


def main(arguments: Sequence[str]) -> int:
    """Returns the exit code."""
    return exit_code(lambda: _command(list(arguments)))


def _command(arguments: list[str]) -> int:
    from chimera.config.arguments import describe, read

    if set(arguments) & HELP:
        print(describe(Options, USAGE))
        return 0
    options = read(Options, arguments, USAGE)
    from chimera.cli.examination import advice, examine

    found = examine()
    notes = advice(found)
    if options.format == "json":
        print(json.dumps({**found, "advice": notes}, indent=2))
    else:
        print(text(found, notes))
    return 0


def text(found: dict[str, dict[str, Any]], notes: Sequence[str]) -> str:
    """The findings as aligned lines by subject, then what will be slow or fail."""
    lines = []
    for subject, facts in found.items():
        lines.append(subject)
        width = max(map(len, facts))
        lines += [f"  {name:<{width}}  {_shown(subject, v)}" for name, v in facts.items()]
    lines += ["", "what will be slow, or not work" if notes else "nothing to note"]
    lines += [f"  - {note}" for note in notes]
    return "\n".join(lines)


def _shown(subject: str, value: Any) -> str:
    from rich.filesize import decimal

    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    if isinstance(value, str):
        return value
    is_size = subject == "caches" or value >= 10_000
    return decimal(round(value)) if is_size else f"{value:.3g}"
