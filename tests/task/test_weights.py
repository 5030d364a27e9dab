"""A step's loss is the mean over its predictions, however they are divided."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor
from torch.utils.data import DataLoader

from chimera.adapter.lora import lora
from chimera.callback.log.steps import Step, Steps
from chimera.callback.state.randomness import StatelessRandomness
from chimera.config.settings import Model, Optim
from chimera.contract_tests import zoo
from chimera.task.base import Task
from chimera.task.instruct import Instruct
from tests.kit import QUIET
from tests.ops.processes import together
from tests.task import kit

STEPS = 4


class Record(Callback):
    """Loss and gradient norm of every step."""

    def __init__(self) -> None:
        self.numbers: list[float] = []

    def on_step(self, step: Step) -> None:
        self.numbers += [step.loss, step.accuracy, step.grad_norm]


def ragged(folder: Path) -> kit.Made:
    """Answers of 1 to 12 words, and dropout in the model and in an adapter."""
    answers = (" ".join(["so"] * (1 + i * i % 12)) for i in range(90))
    data = kit.instructions(folder, answers, batch_size=16, cache_dir=str(folder))
    vocab = data.prepared.tokenizer.vocab_size
    shape = Model(dim=32, depth=2, heads=4, max_len=64, dropout=0.2)
    model = zoo.model(shape, causal=True, vocab_size=vocab, mixer="retnet", position="none")
    lora(model, r=2, dropout=0.2, train=["*.ffn"])
    return Instruct(model, Optim(lr=1e-3), STEPS, vocab), data


def batches(data: Any, size: int) -> list[dict[str, Any]]:
    loader = data.train_dataloader()
    samples, collate = loader.samples, loader._loader.collate_fn
    return [
        collate([samples[0, i % len(samples)] for i in range(start, start + size)])
        for start in range(0, 16 * STEPS, size)
    ]


def train(task: Task, data: Any, parts: int, folder: Path) -> list[float]:
    record = Record()
    trainer = pl.Trainer(
        max_steps=STEPS,
        accumulate_grad_batches=parts,
        gradient_clip_val=0.5,
        default_root_dir=folder,
        callbacks=[StatelessRandomness(), Steps(), record],
        **QUIET,
    )
    trainer.fit(task, DataLoader(batches(data, 16 // parts), batch_size=None))  # type: ignore[arg-type]
    return record.numbers


@pytest.mark.parametrize("kind", ["ragged", "mlm", "classification"])
def test_sixteen_samples_at_once_are_four_times_four(kind: str, tmp_path: Path) -> None:
    found = {}
    for parts in (1, 4, 2):
        torch.manual_seed(0)
        task, data = ragged(tmp_path) if kind == "ragged" else kit.TASKS[kind](tmp_path, STEPS)
        task.configure_for(data, "fit")
        found[parts] = train(task, data, parts, tmp_path)
    assert len(found[1]) == 3 * STEPS
    assert found[4] == pytest.approx(found[1], rel=1e-6)
    assert found[2] == pytest.approx(found[1], rel=1e-6)


def test_the_losses_of_processes_are_shares_of_the_mean_over_all_predictions(
    tmp_path: Path,
) -> None:
    """And so are the gradients of activations, which fp16 must not see larger than in one."""
    task, data = ragged(tmp_path)
    task.eval()
    loader = data.train_dataloader()
    samples = [loader.samples[0, i] for i in range(16)]
    whole, *shares = (loader._loader.collate_fn(of) for of in (samples, samples[:4], samples[4:]))
    copies = [copy.deepcopy(task) for _ in shares]

    def work(of: Task, batch: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
        hidden: list[Tensor] = []
        of.model.backbone.norm.register_forward_hook(lambda *given: hidden.append(given[-1]))
        output = of.training_step(batch, 0)
        hidden[0].retain_grad()
        output["loss"].backward()
        assert hidden[0].grad is not None
        return output["loss"].detach(), output["task_loss"], hidden[0].grad

    loss, _, gradient = work(task, whole)
    found = together(2, lambda rank: work(copies[rank], shares[rank]))
    torch.testing.assert_close(sum(share for share, *_ in found), loss, rtol=1e-6, atol=0)
    own = torch.cat([grad for *_, grad in found])
    torch.testing.assert_close(own, gradient, rtol=1e-4, atol=1e-9)
    plain = torch.stack([mean for _, mean, _ in found]).mean()
    assert abs(float(plain - loss)) > 1e-4  # the mean of the means is another number
