"""Parts take no number from an optimiser step that changed no weight."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.plugins.precision import MixedPrecision
from torch import Tensor
from torch.utils.data import DataLoader

from chimera.adapter.adalora import adalora
from chimera.adapter.sora import sora
from chimera.callback.part.adalora import RankBudget
from chimera.callback.part.qdyt import QDyTSchedule
from chimera.callback.part.sora import GateUpdate
from chimera.callback.part.update import OnUpdate
from chimera.norm.qdyt import QDyT
from chimera.quant.shared.inputs import PerChannel
from tests.adapter.kit import batches, bert, stir, updates
from tests.kit import QUIET

SKIPPED = 5


class Module(pl.LightningModule):
    """Classifier with an adapter."""

    def __init__(self, adapter: Any, **options: Any) -> None:
        super().__init__()
        self.model = adapter(bert().float(), r=4, **options)
        stir(self.model)

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> dict[str, Any]:
        return {"loss": self.model(**batch).loss, "stats": {}}

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW([p for p in self.parameters() if p.requires_grad], lr=0.01)


class Overflow(Callback):
    """Make the gradients of the first `SKIPPED` steps infinite or, as the guard does, absent."""

    def __init__(self, *, absent: bool) -> None:
        self.absent = absent

    def on_after_backward(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.global_step < SKIPPED and not self.absent:
            for p in pl_module.parameters():
                if p.grad is not None:
                    p.grad.fill_(torch.inf)

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        if trainer.global_step < SKIPPED and self.absent:
            for p in pl_module.parameters():
                p.grad = None


class Counts(OnUpdate):
    """Record the steps whose updates happened, and a part's state after each batch."""

    def __init__(self, state: Any) -> None:
        self.state, self.steps, self.states = state, [], []

    def on_update(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any) -> None:
        self.steps.append(trainer.global_step)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *rest: Any) -> None:
        super().on_train_batch_end(trainer, pl_module, *rest)
        self.states.append([x.detach().clone() for x in self.state(pl_module)])


def fit(module: Any, callbacks: list[Callback], steps: int, path: Path, data: Any = None) -> None:
    scaler = torch.amp.GradScaler("cpu")
    data = list(batches(steps)) if data is None else data
    trainer = pl.Trainer(
        max_steps=steps,
        callbacks=callbacks,
        default_root_dir=path,
        plugins=[MixedPrecision("16-mixed", "cpu", scaler)],
        **QUIET,
    )
    trainer.fit(module, DataLoader(data, batch_size=None))
    assert trainer.global_step == steps  # Lightning counts the steps that were left out


@pytest.mark.parametrize("absent", [False, True], ids=["scaler", "guard"])
def test_sora_is_alive_after_five_skipped_steps(absent: bool, tmp_path: Path) -> None:
    module = Module(sora, threshold="xi", xi=0.02, gates="ones")
    counts = Counts(lambda m: [u.gate.g for u in updates(m.model).values()])
    start = [g.detach().clone() for g in counts.state(module)]
    fit(module, [Overflow(absent=absent), GateUpdate(), counts], 12, tmp_path)
    assert counts.steps == list(range(SKIPPED + 1, 13))
    assert all(torch.equal(a, b) for a, b in zip(counts.states[SKIPPED - 1], start, strict=True))
    assert all(bool(g.isfinite().all()) and bool((g > 0).all()) for g in counts.states[-1])
    assert not torch.equal(counts.states[-1][0], start[0])


@pytest.mark.parametrize("absent", [False, True], ids=["scaler", "guard"])
def test_adalora_is_alive_after_five_skipped_steps(absent: bool, tmp_path: Path) -> None:
    module = Module(adalora)
    budget = RankBudget(target_r=2, initial=0.1, final=0.3)
    names = [f"{kind}_{part}" for kind in ("mean", "spread") for part in "ABE"]
    counts = Counts(lambda m: [getattr(u, n) for u in updates(m.model).values() for n in names])
    fit(module, [Overflow(absent=absent), budget, counts], 20, tmp_path)
    assert not any(bool(x.any()) for x in counts.states[SKIPPED - 1])
    assert any(bool(x.any()) for x in counts.states[SKIPPED])
    assert all(bool(x.isfinite().all()) for state in counts.states for x in state)
    left = [int(u.nonzero_directions().sum()) for u in updates(module.model).values()]
    assert sum(left) == 8


def test_the_last_choice_is_made_later_if_its_step_is_skipped(tmp_path: Path) -> None:
    module = Module(adalora)
    budget = RankBudget(target_r=2, initial=0.0, final=0.75, every=50)
    fit(module, [Overflow(absent=False), budget], 12, tmp_path)
    assert budget.stop < SKIPPED
    assert sum(int(u.nonzero_directions().sum()) for u in updates(module.model).values()) == 8


class Normed(pl.LightningModule):
    """A QDyT norm between two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.norm = torch.nn.Embedding(20, 8), QDyT(8)

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        return self.norm(self.embedding(batch["ids"])).square().mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=0.01)


def test_qdyt_is_calibrated_by_the_first_step_that_happens(tmp_path: Path) -> None:
    module, data = Normed(), [{"ids": torch.randint(20, (8, 6))} for _ in range(8)]
    schedule = QDyTSchedule(sequences=16, warmup_steps=1)
    counts = Counts(lambda m: [m.norm.calibrated, m.norm.weight])
    fit(module, [Overflow(absent=False), schedule, counts], 8, tmp_path, data)
    assert [bool(s[0]) for s in counts.states] == [False] * SKIPPED + [True] * 3
    assert bool(module.norm.weight.isfinite().all())


def test_statistics_of_a_batch_that_overflowed_are_left_out() -> None:
    norm, grid, x = QDyT(4), PerChannel(4, 8, 0.1), torch.randn(2, 3, 4)
    norm.begin_calibration(0.5)
    for part in (norm, grid):
        part.train()(x)
        before = {k: v.clone() for k, v in part.state_dict().items()}
        part(torch.full_like(x, torch.inf))
        for key, value in part.state_dict().items():
            assert torch.equal(value, before[key]), key
