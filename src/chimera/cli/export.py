"""`python export.py run=<directory> to=<folder>`: export weights, tokenizer and model card."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from chimera.cli.errors import exit_code
from chimera.cli.train import HELP

USAGE = (
    "python export.py run=<directory of a run> to=<folder>"
    " [packed=true|false] [adapter=merge|keep|alone]"
)


@dataclass(frozen=True)
class Export:
    """Arguments of `export.py`.

    Args:
        run: directory of a finished run.
        to: a new or empty folder, or the folder of an earlier export.
        packed: store ternary weights in 1.6 bits each.
        adapter: `merge` adds it to the weights where that is exact; `keep` writes it beside them;
            `alone` writes only the adapter.
    """

    run: Path
    to: Path
    packed: bool = False
    adapter: Literal["merge", "keep", "alone"] = "merge"


def main(arguments: Sequence[str]) -> int:
    """Returns the exit code."""
    return exit_code(lambda: _command(list(arguments)))


def _command(arguments: list[str]) -> int:
    from chimera.config.arguments import describe, read

    if set(arguments) & HELP:
        print(describe(Export, USAGE))
        return 0
    options = read(Export, arguments, USAGE)
    from chimera.rundir.directory import RunDir

    run = RunDir(options.run)
    run.config()
    from chimera.export import export

    about = export(run, options.to, pack=options.packed, adapter=options.adapter)
    print(f"{options.to}: adapter: {about['adapter']}, packed: {str(options.packed).lower()}")
    return 0
