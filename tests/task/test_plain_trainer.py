"""Tasks and data modules in a Lightning Trainer that knows nothing of chimera, and alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.plugins.precision import MixedPrecision
from torch import nn

from chimera.callback.log.metrics import GradientNorms
from chimera.data.batch.loader import ResumableLoader
from chimera.data.batch.module import DataModule
from chimera.data.encode.prepare import Prepared
from chimera.errors import UserError
from chimera.task.base import Guard
from chimera.train.scaler import DeviceScaled
from tests.kit import QUIET
from tests.task.kit import TASKS, Made, mlm

Make = Callable[..., Made]


@pytest.fixture(params=TASKS.values(), ids=list(TASKS))
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    return lambda *args: request.param(tmp_path, *args)


def batches(loader: ResumableLoader) -> list[dict[str, str]]:
    """Contents of all batches as text: an example without a label has NaN, which equals nothing."""
    return [{k: str(v.tolist()) for k, v in batch.items() if v is not None} for batch in loader]


def test_a_plain_trainer_trains_validates_and_tests(make: Make, tmp_path: Path) -> None:
    task, data = make(3)
    trainer = pl.Trainer(max_steps=3, accelerator="cpu", default_root_dir=tmp_path)
    before = [p.detach().clone() for p in task.model.backbone.parameters()]
    trainer.fit(task, datamodule=data)
    assert trainer.global_step == 3
    after = task.model.backbone.parameters()
    assert any(not torch.equal(a, b) for a, b in zip(before, after, strict=True))
    validated = trainer.validate(task, datamodule=data, verbose=False)[0]
    tested = trainer.test(task, datamodule=data, verbose=False)[0]
    assert task.monitor in validated
    assert tested or hasattr(task, "labels")  # MNLI's test part has no labels
    extra = {**task.baselines(data, None), **task.extra_metrics(trainer, data)}
    assert extra
    assert all(isinstance(value, float) for value in extra.values())


def test_a_batch_with_nothing_to_predict_has_no_loss_and_no_weight(tmp_path: Path) -> None:
    """Of a text whose words are all unknown, say."""
    task, data = mlm(tmp_path, 2)
    batch = next(iter(data.train_dataloader()))
    empty = {**batch, "index": batch["index"][:0], "targets": batch["targets"][:0]}
    output = task.training_step(empty, 0)
    output["loss"].backward()
    assert (float(output["loss"]), float(output["count"]), float(output["accuracy"])) == (0, 0, 0)
    assert all(bool(p.grad.isfinite().all()) for p in task.parameters() if p.grad is not None)
    task.update_metrics(batch, "val")
    expected = task.compute_metrics("val")
    for each in (batch, empty):
        task.update_metrics(each, "val")
    assert task.compute_metrics("val") == expected


class Lenient(Guard):
    """Leaves a step that overflows to the scaler, as the guard of a run does."""

    def check(self, task: Any, grad_norm: float, losses: list[float]) -> None:
        for parameter in task.parameters() if not math.isfinite(grad_norm) else ():
            parameter.grad = None


class Reader(pl.Callback):
    """Reads gradients before the update, as a user's callback may."""

    norm = 0.0

    def on_before_optimizer_step(self, trainer: Any, task: Any, optimizer: Any) -> None:
        self.norm = float(nn.utils.get_total_norm([p.grad for p in task.parameters()]))


def test_a_fused_step_in_fp16_is_the_step_by_operations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of unscaled, clipped gradients; all leave out steps that overflow, and scale alike."""
    found: list[Any] = []
    numbers: list[Any] = []
    for name, unfused, more in (
        ("apart", ("cpu",), []), ("fused", (), []), ("read", (), [Reader()]), ("plain", (), []),
    ):  # fmt: skip
        monkeypatch.setattr("chimera.task.base.UNFUSED", unfused)
        task, data = mlm(tmp_path / name, 12)
        task.guard = Lenient()
        norms = GradientNorms(every=12)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**22, growth_interval=3)
        plugin = (MixedPrecision if name == "plain" else DeviceScaled)("16-mixed", "cpu", scaler)
        trainer = pl.Trainer(
            plugins=[plugin],
            max_steps=12,
            gradient_clip_val=1e-3,
            callbacks=[norms, *more],
            **QUIET,
        )
        before = [p.detach().clone() for p in task.parameters()]
        trainer.fit(task, datamodule=data)
        assert trainer.optimizers[0].param_groups[0]["fused"] is (not unfused)
        assert (task.gradient_scale(trainer.optimizers[0]) is not None) == (name == "fused")
        after = [p.detach() for p in task.parameters()]
        assert any(not torch.equal(a, b) for a, b in zip(before, after, strict=True))
        found.append(after)
        whole = math.hypot(*norms.norms.values())  # of the last step, by component
        assert whole == pytest.approx(task.grad_norm, rel=1e-5)
        assert all(reader.norm == pytest.approx(task.grad_norm, rel=1e-5) for reader in more)
        numbers.append((scaler.state_dict(), task.loss_scale, task.grad_norm))
    for (state, scale, norm), after in zip(numbers, found, strict=True):
        assert state == numbers[0][0]
        assert scale == numbers[0][1] < 2.0**22
        assert norm == pytest.approx(numbers[0][2], rel=1e-5)
        for a, b in zip(found[0], after, strict=True):
            assert torch.allclose(a, b, rtol=1e-5, atol=1e-7)


class Recorder(pl.Callback):
    """Keeps the losses and the numbers of the examples of each step."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx) -> None:  # type: ignore[no-untyped-def]
        self.seen.append((float(outputs["loss"]), batch["indices"].tolist()))


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_a_resumed_fit_is_the_uninterrupted_one(make: Make, workers: int, tmp_path: Path) -> None:
    """Synthetic data have five batches: it stops in epochs, at their ends, after validations."""

    def fit(steps: int, resume: Path | None = None) -> list[Any]:
        torch.manual_seed(0)
        task, data = make(13, workers)
        record = Recorder()
        trainer = pl.Trainer(
            max_steps=steps,
            default_root_dir=tmp_path,
            callbacks=[record],
            num_sanity_val_steps=0,
            limit_val_batches=1,
            val_check_interval=3,
            check_val_every_n_epoch=None,
            **QUIET,
        )
        trainer.fit(task, datamodule=data, ckpt_path=resume)
        trainer.save_checkpoint(tmp_path / f"{steps}.ckpt")
        return record.seen

    short = len(make(1)[1].train_dataloader()) == 5
    steps = 13 if short else 7
    whole = fit(steps)
    for stop in (2, 5, 7, 10) if short else (4,):
        assert fit(stop) == whole[:stop]
        assert fit(steps, tmp_path / f"{stop}.ckpt") == whole[stop:]


def test_a_module_works_without_a_trainer(make: Make) -> None:
    _, alone = make(1)
    _, set_up = make(1)
    set_up.prepare_data()
    set_up.setup()
    for name in ("train_dataloader", "val_dataloader", "test_dataloader"):
        loader = getattr(alone, name)()
        assert getattr(alone, name)() is loader
        first = batches(loader)
        assert first
        assert first == batches(getattr(set_up, name)())


def test_a_stored_test_needs_no_corpus(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, data = make(1)
    data.save_test(tmp_path / "test.npz")
    wanted = batches(data.test_dataloader())
    trainer = pl.Trainer(accelerator="cpu", logger=False, default_root_dir=tmp_path)
    numbers = trainer.test(task, datamodule=data, verbose=False)

    def never(self: DataModule) -> Prepared:
        raise AssertionError("the corpus was prepared")

    _, again = make(1)
    again = type(again)(again.corpus, again.tokenizer_settings)
    monkeypatch.setattr(type(again), "_prepare", never)
    again.load_test(tmp_path / "test.npz")
    assert trainer.test(task, datamodule=again, verbose=False) == numbers
    assert batches(again.test_dataloader()) == wanted


def test_a_classifier_without_classes_says_how_it_gets_them(tmp_path: Path) -> None:
    task, data = TASKS["classification"](tmp_path, 1)
    trainer = pl.Trainer(max_steps=1, accelerator="cpu", logger=False, default_root_dir=tmp_path)
    with pytest.raises(
        UserError, match=r"call task\.configure_head\(corpus\), or give the Trainer"
    ):
        trainer.fit(task, data.train_dataloader())


def test_two_processes_share_the_batches_of_one(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def numbers(loader: ResumableLoader) -> list[list[int]]:
        return [batch["indices"].tolist() for batch in loader]

    _, whole = make(1)
    shares = []
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "2")
        _, data = make(1)
        shares.append(numbers(data.train_dataloader()))
    monkeypatch.delenv("RANK")
    alone = numbers(whole.train_dataloader())
    assert [[*a, *b] for a, b in zip(*shares, strict=True)] == [[*i[::2], *i[1::2]] for i in alone]
