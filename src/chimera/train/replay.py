"""Repeat a step that was not finite: `python train.py replay=<run>/nan_report-<step>.json`.

Restores the state before the step and trains on the recorded micro-batches, under the same
randomness and precision, until the guard reports. The run's directory is only read. Does not import
torch until the report is known to be one.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chimera.config.schema import shown
from chimera.config.trusted_config import recorded
from chimera.errors import NotFiniteError, UserError
from chimera.model.compiled import compile_as
from chimera.rundir.directory import RunDir
from chimera.safe_io import expanded, read_json

if TYPE_CHECKING:
    from chimera.train.restore import Restored

#: Facts that a replay needs.
USED = ("state", "step", "absent", "batches_an_epoch")
#: Facts of two reports that are equal if the step is reproduced to the bit.
SAME = ("kind", "what", "losses", "gradients_not_finite", "weights_not_finite")


def find(name: str, *, trust: bool = False) -> Path:
    """The file of the report, checked for the files that a replay needs.

    Args:
        name: of the report.
        trust: load the teacher that the run's configuration names.

    Raises:
        UserError: a file is missing, or holds more than data.
    """
    file = expanded(name)
    if file.suffix == ".md":
        file = file.with_suffix(".json")
    if not file.is_file():
        raise UserError(f"replay={name} does not exist; name the nan_report-<step>.json of a run")
    facts = read(file)
    directory = RunDir(file.parent)
    config = recorded(directory, training=True)
    if (teacher := config["task"].get("teacher")) and not trust:
        raise UserError(
            f"replay={name}: the run names the teacher {shown(teacher)}, which is not loaded on a"
            " file's word; add trust=true if you know it"
        )
    faulty = facts["at_fault"]
    if faulty and facts["random"].get("rank") not in faulty:
        name = f"nan_report-{facts['step']}{f'-rank{faulty[0]}' * bool(faulty[0])}.json"
        raise UserError(
            f"replay={file}: the loss of process {faulty[0]} was not finite, and this is the share"
            f" of another process; use replay={file.parent / name}"
        )
    for needed in (file.with_suffix(".npz"), directory.tokenizer):
        if not needed.exists():
            raise UserError(f"replay={name} needs {needed}, which is missing")
    state = file.parent / str(facts["state"])
    inside = state.resolve().is_relative_to(file.parent.resolve())
    if not facts["state"] or not state.exists() or not inside:
        raise UserError(
            f"replay={name}: the state of before the step, {facts['state']}, is missing"
        )
    return file


def read(file: Path) -> dict[str, Any]:
    """The facts of a report.

    Raises:
        UserError: the file is no report.
    """
    facts = read_json(file)
    plain = isinstance(facts.get("at_fault"), list) and isinstance(facts.get("random"), dict)
    if not plain or not {*SAME, *USED} <= set(facts):
        raise UserError(f"replay={file} is not the report of a step that was not finite")
    return facts


class Recorded:
    """A loader of the recorded micro-batches, as long as the run's own loader."""

    def __init__(self, batches: list[dict[str, Any]], length: int) -> None:
        self.batches = batches
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[dict[str, Any]]:
        yield from self.batches

    def state_dict(self) -> dict[str, int]:
        """Empty: the checkpoint holds the state of the run's own loader."""
        return {}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Nothing to do: the recorded batches are those after that state."""


def replay(file: Path, *, trust: bool = False) -> int:
    """Repeat the step and print its report.

    Args:
        file: the report.
        trust: load the models that the run's configuration names, if they must be loaded.

    Returns:
        Exit code: 0 if the same kind of quantity is not finite again, else 1.
    """
    from chimera.callback.state.guard import shortened
    from chimera.rundir.checkpoint_io import load
    from chimera.train.console import say
    from chimera.train.restore import restore

    facts = read(file)
    state = file.parent / facts["state"]
    at = load(state)["global_step"]
    if at != facts["step"] - 1:
        raise UserError(f"replay={file}: {state} is of step {at}, a later report's; keep it aside")
    # The trainer loads the state.
    run = restore(RunDir(file.parent), None, trust=trust, training=True)
    now = _repeat(run, facts, file, state)
    if now is None:
        say(f"not reproduced: step {facts['step']} is finite this time")
        return 1
    say("\n  ".join(shortened({**now, "state": facts["state"]}, file)))
    differing = [key for key in SAME if now[key] != facts[key]]
    if now["kind"] != facts["kind"]:
        say(f"not reproduced: then {facts['what']}, now {now['what']}")
        return 1
    detail = f" (differs in {', '.join(differing)})" if differing else ", to the bit"
    say(f"reproduced: {now['what']} at step {now['step']}{detail}")
    return 0


def _repeat(run: Restored, facts: dict[str, Any], file: Path, state: Path) -> dict[str, Any] | None:
    """Train the step of a report in a folder for a while.

    Args:
        run: of the report, without weights.
        facts: of the report.
        file: of the report, beside which its batches are.
        state: the checkpoint of before the step.

    Returns:
        The facts of the new report; None if the step is finite.
    """
    from chimera.callback.state.checkpoint import Checkpoints, StepSnapshot
    from chimera.callback.state.guard import NanGuard, read_batches
    from chimera.callback.state.loop_control import Until, ValidationSchedule
    from chimera.callback.state.randomness import StatelessRandomness
    from chimera.config.settings import in_steps
    from chimera.train.callbacks import make_part_callbacks
    from chimera.train.trainer import build_trainer

    settings = in_steps(run.settings, facts["batches_an_epoch"])
    run.task.total_steps = settings.max_steps
    loader = Recorded(read_batches(file), facts["batches_an_epoch"])
    with tempfile.TemporaryDirectory() as scratch:
        again = RunDir(Path(scratch))
        again.checkpoints.mkdir()
        shutil.copy(file.parent / "config.yaml", again.path)  # for the guard's report
        callbacks = [
            StatelessRandomness(seed=run.config["seed"]),
            *make_part_callbacks(run.config),
            ValidationSchedule(),
            Checkpoints(),
            NanGuard(show=False),
            StepSnapshot(),
            Until(facts["step"]),
        ]
        trainer = build_trainer(run.config["precision"], settings, again, [], callbacks)
        compile_as(settings.compile, run.task, trainer.strategy.root_device)
        try:
            trainer.fit(run.task, loader, ckpt_path=state, weights_only=True)
        except NotFiniteError:
            return read(next(again.path.glob("nan_report-*.json")))
    return None
