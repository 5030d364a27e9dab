"""Repeat a step that was not finite: `python train.py replay=<run>/nan_report-<step>.json`.

The run goes on from the state of before the step with the recorded micro-batches in place of the
loader's, under the same randomness and precision, as far as the verdict. The run's own directory
is only read. Free of torch until the report is found to be one.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from chimera.errors import NotFiniteError, UserError
from chimera.rundir.directory import RunDir

#: What has to be the same for the step to count as reproduced.
SAME = ("kind", "what", "losses", "gradients_not_finite", "weights_not_finite")


def find(name: str) -> Path:
    """The report of this name, with all that a replay needs beside it.

    Raises:
        UserError: what is missing.
    """
    file = Path(name)
    if file.suffix == ".md":
        file = file.with_suffix(".json")
    if not file.is_file():
        raise UserError(f"replay={name} is not there; name the nan_report-<step>.json of a run")
    facts = read(file)
    directory = RunDir(file.parent)
    directory.config()
    for needed in (file.with_suffix(".npz"), directory.tokenizer):
        if not needed.exists():
            raise UserError(f"replay={name} needs {needed}, which is missing")
    if not facts["state"] or not (file.parent / facts["state"]).exists():
        raise UserError(
            f"replay={name}: the state of before the step, {facts['state']}, is missing"
        )
    return file


def read(file: Path) -> dict[str, Any]:
    """The facts of a report.

    Raises:
        UserError: it is none.
    """
    try:
        facts = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"replay={file} is no report: {error}") from error
    if not isinstance(facts, dict) or not {*SAME, "state", "random", "step"} <= set(facts):
        raise UserError(f"replay={file} is no report of a step that was not finite")
    return facts


class Recorded:
    """Hands out the recorded micro-batches; of the length of the loader that it stands for."""

    def __init__(self, batches: list[dict[str, Any]], length: int) -> None:
        self.batches, self.length = batches, length

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[dict[str, Any]]:
        yield from self.batches

    def state_dict(self) -> dict[str, int]:
        """None: the checkpoint holds another loader's."""
        return {}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """The recorded batches are where that loader was."""


def replay(file: Path) -> int:
    """Print what the step did this time; 0 if the same quantity is not finite again, else 1."""
    import torch
    from hydra.utils import instantiate
    from rich.console import Console

    from chimera.callback.state import nan_report
    from chimera.callback.state.checkpoint import Checkpoints
    from chimera.callback.state.guard import NanGuard
    from chimera.callback.state.randomness import StatelessRandomness
    from chimera.callback.state.step_snapshot import Boundary
    from chimera.callback.state.stop import Until
    from chimera.callback.state.validation import ValidationSchedule
    from chimera.config.settings import Guard
    from chimera.data.tokenizer.base import load as load_tokenizer
    from chimera.rundir.checkpoint_io import load
    from chimera.train.build import make_task
    from chimera.train.trainer import component_callbacks, make_trainer, quiet

    quiet()
    console = Console(stderr=True)
    facts, run = read(file), RunDir(file.parent)
    config = run.config()
    state = run.path / facts["state"]
    at = load(state)["global_step"]
    if at != facts["step"] - 1:
        raise UserError(f"replay={file}: {state} is of step {at}, a later report's; keep it aside")
    settings = instantiate(config["trainer"], _convert_="all")
    if settings.threads:
        torch.set_num_threads(settings.threads)
    task = make_task(config, load_tokenizer(run.tokenizer).vocab_size)
    settings = settings.measured(facts["batches_an_epoch"])
    task.total_steps = settings.max_steps
    batches = nan_report.read_batches(file)
    with tempfile.TemporaryDirectory() as scratch:
        again = RunDir(Path(scratch))
        again.checkpoints.mkdir()
        schedule, boundary = ValidationSchedule(0), Boundary()
        checkpoints = Checkpoints(again.checkpoints, settings, schedule, boundary)
        trainer = make_trainer(
            config,
            settings,
            again,
            [],
            [
                StatelessRandomness(config["seed"]),
                *component_callbacks(config),
                schedule,
                NanGuard(again.path, Guard(), boundary, checkpoints, config, lambda _: None),
                boundary,
                Until(facts["step"]),
            ],
        )
        if settings.compile:
            task.model.compile()
        try:
            loader = Recorded(batches, facts["batches_an_epoch"])
            trainer.fit(task, loader, ckpt_path=state, weights_only=True)
        except NotFiniteError:
            now = read(again.path / file.name)
        else:
            console.print(f"not reproduced: step {facts['step']} is finite this time")
            return 1
    console.print(nan_report.shortened({**now, "state": facts["state"]}, file), highlight=False)
    differing = [key for key in SAME if now[key] != facts[key]]
    if now["kind"] != facts["kind"]:
        console.print(f"not reproduced: then {facts['what']}, now {now['what']}", highlight=False)
        return 1
    detail = f" (differs in {', '.join(differing)})" if differing else ", to the bit"
    console.print(f"reproduced: {now['what']} at step {now['step']}{detail}", highlight=False)
    return 0
