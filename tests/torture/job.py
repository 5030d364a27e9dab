"""A tiny run that has all that can be interrupted: accumulation, epochs, validation, checkpoints.

Fourteen steps of two micro-batches; an epoch has seven, so that its last step has one only.
Each run is a process of its own, forked from one that has imported everything.
"""

from __future__ import annotations

import csv
import json
import os
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


def words(folder: Path, to: Path, *more: str) -> list[str]:
    """The command line of the job; its text is made in `folder`."""
    text = folder / "text.txt"
    if not text.exists():
        folder.mkdir(parents=True, exist_ok=True)
        text.write_text("\n".join(_sentences()))
    data = ["data=text", f"data.path={text}", f"data.cache_dir={folder / 'cache'}"]
    data += ["data.batch_size=15", "data.seq_len=32", "tokenizer.vocab_size=300"]
    return [*MODEL, *RUN, *data, f"run_dir={to}", *more]


def _sentences() -> list[str]:
    things, does = ("cat", "dog", "bird", "child"), ("sees", "likes", "follows", "hears")
    triples = ((a, b, c) for a in things for b in does for c in things)
    return [f"The {a} {b} the {c} near house {i}.\n" for i, (a, b, c) in enumerate(triples)] * 2


def train(command: list[str], log: Path, before: Callable[[], None] | None = None) -> int:
    """Run in a child process; returns its exit code, or minus the signal that ended it.

    Args:
        command: of `train.py`.
        log: gets what it prints.
        before: called in the child first; plants what will go wrong.
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
        except BaseException:  # noqa: BLE001 - as the interpreter would at its top level
            traceback.print_exc()
            code = 1
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    status = os.waitpid(child, 0)[1]
    return os.waitstatus_to_exitcode(status)


def rows(run: Path) -> list[dict[str, str]]:
    """The step log without what the clock decides."""
    with (run / "steps.csv").open(newline="") as file:
        return [{k: v for k, v in r.items() if k != "timestamp"} for r in csv.DictReader(file)]


def differences(run: Path, whole: Path) -> list[str]:
    """In what a run differs from the uninterrupted one: losses, validations, weights, optimiser."""
    found = []
    if rows(run) != rows(whole):
        found.append("steps.csv")
    mine, theirs = (json.loads((d / "run.json").read_text()) for d in (run, whole))
    found += [key for key in ("metrics", "validations", "steps") if mine[key] != theirs[key]]
    first, second = (
        torch.load(d / "checkpoints" / "last.ckpt", weights_only=True) for d in (run, whole)
    )
    for key in ("state_dict", "optimizer_states", "lr_schedulers"):
        if not equal(first[key], second[key]):
            found.append(key)
    return found


def equal(a: Any, b: Any) -> bool:
    """Bitwise, all the way down."""
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(equal, a, b))
    return bool(a == b)
