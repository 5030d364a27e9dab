"""Callback in QDyT's YAML: warm-up of α, calibration of γ, resume (SPEC N3, T7)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from hydra.utils import instantiate
from lightning.pytorch.callbacks import Callback
from omegaconf import OmegaConf
from torch import Tensor, nn

from chimera.callback.part.qdyt import QDyTSchedule
from chimera.norm.qdyt import QDyT
from tests.kit import QUIET, close

YAML = Path(__file__).parents[2] / "conf" / "norm" / "qdyt.yaml"


class Module(pl.LightningModule):
    """Embedding and a norm that runs `loops` times."""

    def __init__(self, loops: int = 1, **norm: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.norm, self.loops = nn.Embedding(20, 8), QDyT(8, **norm), loops
        self.out = nn.Linear(8, 20)

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        x = self.embedding(batch["ids"])
        for _ in range(self.loops):
            x = x + self.norm(x, batch["mask"])
        return nn.functional.cross_entropy(self.out(x).flatten(0, 1), batch["ids"].flatten())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=0.02)


class Trace(Callback):
    """Record α, γ and the optimiser's state of α at each step."""

    def __init__(self) -> None:
        self.alpha: list[float] = []
        self.gamma: list[Tensor] = []
        self.held: list[bool] = []
        self.settled: list[bool] = []

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, idx: int
    ) -> None:
        self.alpha.append(float(pl_module.norm.alpha.detach()))
        self.gamma.append(pl_module.norm.weight.detach().clone())
        self.held.append(pl_module.norm.alpha in trainer.optimizers[0].state)
        self.settled.append(pl_module.norm.settled)


def batches(count: int, size: int = 8) -> list[dict[str, Tensor]]:
    torch.manual_seed(1)
    mask = torch.arange(6)[None] < torch.randint(3, 7, (size,))[:, None]
    return [{"ids": torch.randint(20, (size, 6)), "mask": mask} for _ in range(count)]


def fit(
    module: Module,
    schedule: QDyTSchedule,
    data: list[dict[str, Tensor]],
    *,
    max_steps: int = -1,
    accumulate: int = 1,
    resume: str | None = None,
    extra: Sequence[Callback] = (),
) -> tuple[pl.Trainer, Trace]:
    trace = Trace()
    trainer = pl.Trainer(
        max_steps=max_steps,
        max_epochs=1 if max_steps < 0 else -1,
        accumulate_grad_batches=accumulate,
        callbacks=[schedule, trace, *extra],
        **QUIET,
    )
    loader = torch.utils.data.DataLoader(data, batch_size=None)
    trainer.fit(module, loader, ckpt_path=resume, weights_only=True if resume else None)
    return trainer, trace


def schedule(**change: Any) -> QDyTSchedule:
    return QDyTSchedule(**{"warmup_steps": 4, "sequences": 32, **change})


def test_yaml_brings_the_callback_with_all_of_its_keys() -> None:
    node = OmegaConf.to_container(OmegaConf.load(YAML))
    made = instantiate(node["callbacks"])["qdyt"]
    assert (made.warmup_steps, made.start, made.end, made.sequences) == (2000, 0.05, 0.5, 32)
    assert isinstance(made, Callback)


def test_alpha_warms_up_without_the_optimiser_then_is_learned() -> None:
    module = Module()
    _, trace = fit(module, schedule(), batches(8), max_steps=8)
    line = torch.tensor([0.05 + 0.45 * step / 4 for step in range(4)])
    close(torch.tensor(trace.alpha[:4]), line, 1e-6)
    assert trace.held == [False] * 4 + [True] * 4
    assert abs(trace.alpha[4] - 0.5) > 1e-3  # α starts from 0.5 and has changed already
    assert abs(trace.alpha[4] - 0.5) < 0.05
    assert bool(module.norm.warm)


@pytest.mark.parametrize("max_steps", [2, 7, -1])
def test_a_short_run_gets_through_its_warm_up(max_steps: int) -> None:
    module = Module()
    trainer, trace = fit(module, schedule(warmup_steps=2000), batches(7), max_steps=max_steps)
    half = trainer.global_step // 2
    close(torch.tensor(trace.alpha[:half]), 0.05 + 0.45 * torch.arange(half) / half, 1e-6)
    assert bool(module.norm.warm)


def test_the_last_steps_settle_and_a_resumed_run_settles_at_the_same_step(tmp_path: Path) -> None:
    _, trace = fit(Module(running_from=0.75), schedule(), batches(8), max_steps=8)
    assert trace.settled == [False] * 6 + [True] * 2
    _, trace = fit(Module(), schedule(), batches(8), max_steps=8)
    assert trace.settled == [False] * 8
    half, file = fit(Module(running_from=0.75), schedule(), batches(7), max_steps=7)[0], "x.ckpt"
    half.save_checkpoint(tmp_path / file)
    again = Module(running_from=0.75)
    _, trace = fit(again, schedule(), batches(8), max_steps=8, resume=str(tmp_path / file))
    assert trace.settled == [True]


def test_calibration_uses_the_alpha_at_which_the_warm_up_ends() -> None:
    """α is 0.05 at the first step; γ gives outputs with second moment 1 at α = 0.5."""
    (batch,) = batches(1, size=32)
    x = Module().embedding(batch["ids"]).detach()
    y = torch.tanh(0.5 * (x - x.mean(-1, keepdim=True)))[batch["mask"]]
    _, trace = fit(Module(), schedule(start=0.05, end=0.5), [batch] * 2, max_steps=2)
    close(trace.gamma[0], y.square().mean(0).rsqrt(), 1e-5)


def test_accumulation_counts_micro_batches_and_waits_for_the_step() -> None:
    """32 sequences are complete after 4 micro-batches of 8; the window of 6 ends two later."""
    module = Module()
    trainer, trace = fit(module, schedule(), batches(12), accumulate=6)
    assert trainer.global_step == 2
    assert all((gamma == 1).all() for gamma in trace.gamma[:5])
    assert not bool((trace.gamma[5] == 1).any())
    assert trace.alpha[:6] == [trace.alpha[0]] * 6


def test_calibration_uses_all_micro_batches_of_its_window() -> None:
    """48 sequences give equal γ in one batch or in six batches."""
    data = batches(6)
    whole = {key: torch.cat([batch[key] for batch in data]) for key in data[0]}
    # γ is set after the last step of the window, before any step uses it.
    (_, one), (_, six) = (
        fit(Module(), schedule(), d, accumulate=a) for d, a in (([whole], 1), (data, 6))
    )
    close(one.gamma[-1], six.gamma[-1], 1e-5)


def test_once_only() -> None:
    module = Module()
    fit(module, schedule(), batches(4), max_steps=4)
    assert bool(module.norm.calibrated)
    module.norm.weight.data.fill_(3.0)
    module.norm.alpha.data.fill_(0.7)
    _, trace = fit(module, schedule(), batches(8), max_steps=8)  # fine-tuning
    assert all((gamma - 3).abs().max() < 0.3 for gamma in trace.gamma)
    assert abs(trace.alpha[0] - 0.7) < 0.05


def test_loops_do_not_count_sequences_twice() -> None:
    module = Module(loops=3)
    _, trace = fit(module, schedule(), batches(8), max_steps=8)
    calibrated = [not torch.allclose(g, torch.ones(8), atol=0.2) for g in trace.gamma]
    assert calibrated.index(True) == 3  # 4 batches of 8


def test_resume_gives_the_same_numbers(tmp_path: Path) -> None:
    """Stop after 2 steps: during warm-up (4 steps) and calibration (32 sequences, 8 per step)."""

    class Save(Callback):
        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            trainer.save_checkpoint(tmp_path / f"{trainer.global_step}.ckpt")

    data = (
        batches(1) * 2
    )  # equal batches, so that the position in the data after a resume has no effect
    module, resumed = Module(), Module()
    _, straight = fit(module, schedule(), data, max_steps=8, extra=[Save()])
    _, after = fit(resumed, schedule(), data, max_steps=8, resume=str(tmp_path / "2.ckpt"))
    assert len(after.alpha) == 6
    assert after.alpha == straight.alpha[2:]
    close(after.gamma, straight.gamma[2:], 0.0)
    for name, value in module.state_dict().items():
        close(resumed.state_dict()[name], value, 0.0)
