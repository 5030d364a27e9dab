"""trainer.compile=graphs: a pass overwrites what the last one returned; a run keeps nothing of it.

No GPU is here: what a CUDA graph does to its results is done to them by hand.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor
from torch.utils._pytree import tree_leaves

from chimera.cli.train import main
from tests.train import tiny


class Replayed:
    """A task's outputs; each pass leaves NaN in the results and gradients of the pass before."""

    def __init__(self, task: Any) -> None:
        self.task = task
        self.outputs = task.outputs
        self.made: list[Tensor] = []
        own = [*task.parameters(), *task.buffers()]
        self.stay = {x.untyped_storage().data_ptr() for x in own}
        for parameter in task.parameters():
            parameter.register_post_accumulate_grad_hook(lambda p: self.made.append(p.grad))

    def __call__(self, batch: Any, **more: Any) -> Any:
        if not torch.is_grad_enabled():  # Lightning moves gradients that are there at the end
            assert all(p.grad is None for p in self.task.parameters())
        with torch.inference_mode():
            for x in self.made:
                x.fill_(float("nan"))
        out = self.outputs(batch, **more)
        found = [x for x in tree_leaves(vars(out)) if isinstance(x, Tensor)]
        self.made = [x for x in found if x.untyped_storage().data_ptr() not in self.stay]
        return out


class Kept(Callback):
    """Keeps the numbers of all steps, as somebody's callback may."""

    numbers: ClassVar[list[Tensor]] = []

    def on_train_batch_end(self, trainer: Any, task: Any, outputs: Any, *_: Any) -> None:
        self.numbers += [x for x in tree_leaves(outputs) if isinstance(x, Tensor)]


@pytest.fixture
def line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.chdir(tmp_path)
    tiny.write(tmp_path)
    few = ["trainer.accumulate_grad_batches=1", "trainer.max_steps=6"]
    return [*tiny.LINE, *few, "ffn=moe", "+callbacks.kept._target_=tests.task.test_graphs.Kept"]


def replayed(setting: Any, task: Any, *_: Any) -> None:
    """In place of `compile_as`."""
    task.graphs, task.outputs = True, Replayed(task)


@pytest.mark.parametrize("task", ["mlm", "causal_lm"])
def test_a_run_keeps_nothing_of_a_pass(
    task: str, line: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line += [f"task={task}"]
    assert main([*line, "run_dir=plain"]) == 0
    monkeypatch.setattr("chimera.train.trainer.compile_as", replayed)
    monkeypatch.setattr(Kept, "numbers", [])
    assert main([*line, "run_dir=graphs"]) == 0
    assert tiny.same(tmp_path / "plain", tmp_path / "graphs")
    plain, graphs = (tiny.record(tmp_path / name)["metrics"] for name in ("plain", "graphs"))
    same = [key for key in plain if key.startswith(("val/", "test/"))]
    assert {key: plain[key] for key in same} == {key: graphs[key] for key in same} != {}
    assert torch.stack(Kept.numbers).isfinite().all()


def test_gradients_that_a_callback_sums_are_refused(
    line: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("chimera.train.trainer.compile_as", replayed)
    scheduler = "lightning.pytorch.callbacks.GradientAccumulationScheduler"
    line += [f"+callbacks.sums._target_={scheduler}", "+callbacks.sums.scheduling={0: 2}"]
    assert main([*line, "run_dir=sums"]) == 2
    assert "trainer.compile=graphs sums no gradients" in capsys.readouterr().err
