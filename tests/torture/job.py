"""Train a tiny run with accumulation, epochs, validation and checkpoints in a process of its own.

It has fourteen steps of two micro-batches. An epoch has seven micro-batches, so that its last step
has only one.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch

from tests import forks
from tests.train import tiny

MODEL = ["mixer=retnet", "quant=bitnet158", "norm=qdyt", "model.dim=32", "model.depth=2"]
MODEL += ["model.heads=4", "model.max_len=32", "model.dropout=0.1"]
RUN = ["trainer.max_steps=14", "trainer.accumulate_grad_batches=2", "trainer.val_check_interval=5"]
RUN += ["trainer.limit_val_batches=2", "trainer.limit_test_batches=2", "trainer.threads=1"]
RUN += ["trainer.checkpoint_every_n_steps=3", "trainer.log_every_n_steps=1", "logger=none"]
PROGRAM = """
import sys
from chimera.cli.train import main
from tests.torture import faults
{plant}
sys.exit(main({command!r}))
"""


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


def train(command: list[str], plant: str = "") -> tuple[int, str]:
    """Run train.py; return its exit code, or minus the signal that ended it, and its output.

    Args:
        command: arguments of `train.py`.
        plant: Python code that plants a fault of `tests.torture.faults` first.
    """
    done = forks.run("-c", PROGRAM.format(plant=plant, command=command))
    return done.returncode, done.stdout + done.stderr


def new(folder: Path, name: str, *overrides: str) -> list[str]:
    """Arguments of a run that starts anew."""
    shutil.rmtree(folder / name, ignore_errors=True)
    return arguments(folder, folder / name, *overrides)


def whole(folder: Path, name: str = "whole", *overrides: str) -> Path:
    """Directory of the uninterrupted run, which is trained at the first call."""
    if not (folder / name / "run.json").exists():
        code, said = train(new(folder, name, *overrides))
        assert code == 0, said
    return folder / name


def resumed(command: list[str], reference: Path | None, says: str = "") -> str:
    """Resume a run to its end; what it says. It ends as the reference, bit by bit."""
    code, said = train(command)
    assert code == 0, said
    assert says in said
    run = next(Path(w.partition("=")[2]) for w in command if w.startswith("run_dir="))
    if reference:
        assert rows(run) == rows(reference)
        a, b = (json.loads((d / "run.json").read_text()) for d in (run, reference))
        assert [a[key] for key in RECORDED] == [b[key] for key in RECORDED]
        first, second = (load(d, "last") for d in (run, reference))
        for key in ("state_dict", "optimizer_states", "lr_schedulers"):
            assert equal(first[key], second[key]), key
    return said


#: Rows of the step log without the column of the time.
rows = tiny.losses
RECORDED = ("metrics", "validations", "steps")


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
