"""A run of a few steps on a few invented sentences, trained in the process of the test."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback

from chimera.cli.train import main
from tests.data.kit import sentences

#: Overrides; paths are relative to the folder that `write` fills.
LINE = [
    *("mixer=retnet", "model.dim=16", "model.depth=1", "model.heads=2", "model.max_len=16"),
    *("model.dropout=0.1", "data=text", "data.path=text.txt", "data.cache_dir=cache"),
    *("data.batch_size=4", "tokenizer=word", "logger=none", "trainer.accelerator=cpu"),
    *("trainer.val_check_interval=4", "trainer.limit_val_batches=1", "trainer.progress=none"),
    *("trainer.limit_test_batches=1", "trainer.checkpoint_every_n_steps=2"),
    *("trainer.checkpoint_keep=9", "trainer.accumulate_grad_batches=2", "optim.warmup=0"),
]
#: With these rates a run is the beginning of any longer one.
CONSTANT = "optim.schedule._target_=chimera.optim.schedule.warmup_constant"


class Counter(Callback):
    """A callback as somebody writes it who knows Lightning alone: writes the number of batches."""

    def __init__(self, every: int, name: str = "counted") -> None:
        self.every = every
        self.name = name
        self.seen = 0

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        self.seen += 1

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        order = [type(callback).__name__ for callback in trainer.callbacks]
        text = f"{self.seen // self.every} {' '.join(order)}"
        (Path(trainer.default_root_dir) / self.name).write_text(text)


def write(folder: Path) -> None:
    """Write the text that the run trains on."""
    (folder / "text.txt").write_text("\n\n".join(sentences(60)))


def trained(folder: Path, **steps: int) -> Path:
    """The folder, with the text and runs of so many steps at constant rates."""
    write(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name, count in steps.items():
            line = [*LINE, CONSTANT, f"trainer.max_steps={count}", f"run_dir={name}"]
            assert main(line) == 0
    return folder


def losses(run: Path) -> list[dict[str, str]]:
    """Rows of the step log without their times."""
    with (run / "steps.csv").open(newline="") as file:
        return [{k: v for k, v in row.items() if k != "timestamp"} for row in csv.DictReader(file)]


def weights(run: Path) -> dict[str, torch.Tensor]:
    """Weights of the last checkpoint."""
    last = torch.load(run / "checkpoints/last.ckpt", weights_only=True)
    state: dict[str, torch.Tensor] = last["state_dict"]
    return state


def same(a: Path, b: Path) -> bool:
    """Whether two runs logged the same numbers and have the same weights, bit for bit."""
    first, second = weights(a), weights(b)
    return losses(a) == losses(b) and all(torch.equal(first[key], second[key]) for key in first)


def record(run: Path) -> dict[str, Any]:
    """Contents of run.json."""
    contents: dict[str, Any] = json.loads((run / "run.json").read_text())
    return contents


def state(run: Path) -> str:
    """State in status.json."""
    return str(json.loads((run / "status.json").read_text())["state"])
