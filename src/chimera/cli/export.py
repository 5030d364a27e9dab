"""`python export.py run=<directory> to=<folder>`: export weights, tokenizer and model card."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from chimera.cli.errors import exit_code
from chimera.cli.flags import HELP
from chimera.program import spelt

USAGE = (
    f"{spelt('export')} run=<directory of a run> to=<folder>"
    " [packed=true|false] [adapter=merge|keep|alone] [trust=true]"
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
        trust: load the Hugging Face model that the run's file names, if it must be loaded.
    """

    run: Path
    to: Path
    packed: bool = False
    adapter: Literal["merge", "keep", "alone"] = "merge"
    trust: bool = False


def main(arguments: Sequence[str]) -> int:
    """Returns the exit code."""
    return exit_code(lambda: _command(list(arguments)))


def _command(arguments: list[str]) -> int:
    from chimera.config.arguments import describe, read
    from chimera.config.roots import read_folders

    if set(arguments) & HELP:
        print(describe(Export, USAGE))
        return 0
    options = read(Export, read_folders(arguments), USAGE)
    from chimera.config.declared import recorded
    from chimera.rundir.directory import RunDir

    run = RunDir(options.run)
    recorded(run)
    from chimera.export import export

    about = export(
        run, options.to, pack=options.packed, adapter=options.adapter, trust=options.trust
    )
    print(f"{options.to}: adapter: {about['adapter']}, packed: {str(options.packed).lower()}")
    return 0
