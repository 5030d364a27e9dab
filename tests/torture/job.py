"""Train a tiny run with accumulation, epochs, validation and checkpoints in a forked process.

It has fourteen steps of two micro-batches. An epoch has seven micro-batches, so that its last step
has only one. Processes are forked, because importing everything takes longer than the run.
"""

from __future__ import annotations

import csv
import json
import os
import shutil
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from chimera.cli.train import main as train_command

MODEL = ["mixer=retnet", "quant=bitnet158", "norm=qdyt", "model.dim=32", "model.depth=2"]
MODEL += ["model.heads=4", "model.max_len=32", "model.dropout=0.1"]
RUN = ["trainer.max_steps=14", "trainer.accumulate_grad_batches=2", "trainer.val_check_interval=5"]
RUN += ["trainer.limit_val_batches=2", "trainer.limit_test_batches=2", "trainer.threads=1"]
RUN += ["trainer.checkpoint_every_n_steps=3", "trainer.log_every_n_steps=1", "logger=none"]
#: Plants a fault into the process that trains.
Plant = Callable[[], None] | None


def arguments(folder: Path, to: Path, *overrides: str) -> list[str]:
    """Arguments of train.py for the run.

    Args:
        folder: for the text and the cache; the text is written at the first call.
        to: directory of the run.
        overrides: further ones.
    """
    text = folder / "text.txt"
    if not text.exists():
        folder.mkdir(parents=True, exist_ok=True)
        things, does = ("cat", "dog", "bird", "child"), ("sees", "likes", "follows", "hears")
        triples = ((a, b, c) for a in things for b in does for c in things)
        lines = [f"The {a} {b} the {c} near house {i}.\n" for i, (a, b, c) in enumerate(triples)]
        text.write_text("\n".join(lines * 2))
    data = ["data=text", f"data.path={text}", f"data.cache_dir={folder / 'cache'}"]
    data += ["data.batch_size=15", "data.seq_len=32", "tokenizer.vocab_size=300"]
    return [*MODEL, *RUN, *data, f"run_dir={to}", *overrides]


def train(command: list[str], log: Path, before: Plant = None) -> int:
    """Run train.py in a child process; return its exit code, or minus the signal that ended it.

    Args:
        command: arguments of `train.py`.
        log: file to which the output is appended.
        before: called first in the child; plants a fault.
    """
    sys.stdout.flush()
    child = os.fork()
    if not child:
        code = 70
        try:
            with log.open("ab") as file:
                os.dup2(file.fileno(), 1)
                os.dup2(file.fileno(), 2)
            if before:
                before()
            code = train_command(command)
        except BaseException:  # noqa: BLE001 - as the interpreter does at its top level
            traceback.print_exc()
            code = 1
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    status = os.waitpid(child, 0)[1]
    return os.waitstatus_to_exitcode(status)


def attempt(command: list[str], before: Plant = None) -> tuple[int, str]:
    """The exit code and output of a command that has a `run_dir`, or replays a report of one."""
    place = next(w.partition("=")[2] for w in command if w.startswith(("run_dir=", "replay=")))
    log = Path(place).parent / f"{Path(place).name}.log"
    log.unlink(missing_ok=True)
    return train(command, log, before), log.read_text()


def new(folder: Path, name: str, *overrides: str) -> list[str]:
    """Arguments of a run that starts anew."""
    shutil.rmtree(folder / name, ignore_errors=True)
    return arguments(folder, folder / name, *overrides)


def whole(folder: Path, name: str = "whole", *overrides: str) -> Path:
    """Directory of the uninterrupted run, which is trained at the first call."""
    if not (folder / name / "run.json").exists():
        code, said = attempt(new(folder, name, *overrides))
        assert code == 0, said
    return folder / name


def resumed(command: list[str], reference: Path | None, says: str = "") -> list[str]:
    """Resume a run to its end; what is missing in its output, or differs from the reference."""
    code, said = attempt(command)
    if code or says not in said:
        return [f"did not resume {says}: exit code {code}: {said[-300:]}"]
    run = next(Path(w.partition("=")[2]) for w in command if w.startswith("run_dir="))
    return differences(run, reference) if reference else []


def rows(run: Path) -> list[dict[str, str]]:
    """Rows of the step log without the column of the time."""
    with (run / "steps.csv").open(newline="") as file:
        return [{k: v for k, v in r.items() if k != "timestamp"} for r in csv.DictReader(file)]


def differences(run: Path, reference: Path) -> list[str]:
    """Parts in which a run differs from the uninterrupted one: losses, metrics, weights, optimiser.

    Empty if the runs are equal, bit by bit.
    """
    differing = [] if rows(run) == rows(reference) else ["steps.csv"]
    a, b = (json.loads((d / "run.json").read_text()) for d in (run, reference))
    differing += [key for key in ("metrics", "validations", "steps") if a[key] != b[key]]
    first, second = (load(d, "last") for d in (run, reference))
    keys = ("state_dict", "optimizer_states", "lr_schedulers")
    return differing + [key for key in keys if not equal(first[key], second[key])]


def load(run: Path, name: str) -> dict[str, Any]:
    """A checkpoint of a run."""
    found: dict[str, Any] = torch.load(run / f"checkpoints/{name}.ckpt", weights_only=True)
    return found


def equal(a: Any, b: Any) -> bool:
    """Whether nested tensors and values are bitwise equal."""
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(equal, a, b))
    return bool(a == b)
