"""`python eval.py run=<directory>`: repeat the final test of a run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from chimera.cli.command import command
from chimera.errors import UserError
from chimera.types import PositiveInt


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


@command("eval", Evaluation)
def main(options: Evaluation, words: list[str]) -> int:
    """Test the run again, print each metric beside the recorded one."""
    from chimera.config.trusted_config import recorded
    from chimera.rundir.directory import RunDir

    directory = RunDir(options.run)
    recorded(directory)
    if not directory.test_data.exists():
        raise UserError(
            f"run={directory.path} has not started training, so it has no test data; train it first"
        )
    from chimera.evaluate import evaluate

    return evaluate(directory, options.length, trust=options.trust)
