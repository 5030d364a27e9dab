"""`python eval.py run=<directory>`: repeat the final test of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from chimera.cli.errors import exit_code
from chimera.cli.flags import HELP
from chimera.errors import UserError
from chimera.program import spelt
from chimera.types import PositiveInt

USAGE = f"{spelt('eval')} run=<directory of a run> [length=<tokens>] [trust=true]"


@dataclass(frozen=True)
class Evaluation:
    """Arguments of `eval.py`.

    Args:
        run: directory of a run.
        length: tokens per sequence, for task=causal_lm; by default that of the run.
        trust: load the Hugging Face model that the run's file names, if it must be loaded.
    """

    run: Path
    length: PositiveInt | None = None
    trust: bool = False


def main(arguments: Sequence[str]) -> int:
    """Returns the exit code."""
    return exit_code(lambda: _command(list(arguments)))


def _command(arguments: list[str]) -> int:
    from chimera.config.arguments import describe, read
    from chimera.config.roots import read_folders

    if set(arguments) & HELP:
        print(describe(Evaluation, USAGE))
        return 0
    evaluation = read(Evaluation, read_folders(arguments), USAGE)
    from chimera.config.declared import recorded
    from chimera.rundir.directory import RunDir

    directory = RunDir(evaluation.run)
    recorded(directory)
    if not directory.test_data.exists():
        raise UserError(
            f"run={directory.path} has not started training, so it has no test data; train it first"
        )
    from chimera.evaluate.test import evaluate

    return evaluate(directory, evaluation.length, trust=evaluation.trust)
