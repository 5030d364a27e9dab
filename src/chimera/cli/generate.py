"""`python generate.py run=<directory> prompt="..."`: continue a text with a trained model."""

from __future__ import annotations

from chimera.cli.command import command
from chimera.generate.settings import Generation


@command("generate", Generation)
def main(options: Generation, words: list[str]) -> int:
    """Print the continued prompts, a line each."""
    options.check()
    from chimera.generate.text import write

    return write(options)
