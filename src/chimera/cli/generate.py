"""`python generate.py run=<directory> prompt="..."`: continue a text with a trained model."""

from __future__ import annotations

from collections.abc import Sequence

from chimera.cli.errors import exit_code
from chimera.cli.flags import HELP


def main(arguments: Sequence[str]) -> int:
    """Returns the exit code."""
    return exit_code(lambda: _command(list(arguments)))


def _command(arguments: list[str]) -> int:
    from chimera.config.arguments import describe
    from chimera.config.roots import read_folders
    from chimera.generate.settings import USAGE, Generation, parse

    if set(arguments) & HELP:
        print(describe(Generation, USAGE))
        return 0
    generation = parse(read_folders(arguments))
    generation.check()
    from chimera.generate.text import write

    return write(generation)
