"""Callbacks of adapters in Lightning's loop: order, learning rates, resume, logged values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from hydra.utils import instantiate
from lightning.pytorch.callbacks import Callback
from omegaconf import OmegaConf
from torch import Tensor
from torch.utils.data import DataLoader

from chimera.adapter.adalora import adalora
from chimera.adapter.shared.files import load
from chimera.adapter.sora import sora
from chimera.callback.part.adalora import RankBudget
from chimera.callback.part.adapter import AdapterLog, ranks
from chimera.callback.part.sora import GateUpdate
from chimera.ops.low_rank import soft_threshold
from chimera.paths import CONF
from tests.adapter.kit import batches, bert, stir, updates
from tests.kit import QUIET, close


class Module(pl.LightningModule):
    """Classifier with an adapter, and a learning rate that halves at each step."""

    def __init__(self, adapter: Any, **options: Any) -> None:
        super().__init__()
        self.model = adapter(bert(), r=4, **options)

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> dict[str, Any]:
        return {"loss": self.model(**batch).loss, "stats": {}}

    def validation_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        self.log("val/loss", self.model(**batch).loss)

    def test_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        self.log("test/loss", self.model(**batch).loss)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD([p for p in self.parameters() if p.requires_grad], lr=0.4)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class Watch(Callback):
    """Record gates and their gradient before each step, and gates after it."""

    def __init__(self) -> None:
        self.before: list[list[tuple[Tensor, Tensor]]] = []
        self.after: list[list[Tensor]] = []

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        gates = [u.gate.g for u in updates(pl_module.model).values()]
        self.before.append([(g.detach().clone(), g.grad.clone()) for g in gates])

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, *rest: Any) -> None:
        gates = [u.gate.g for u in updates(pl_module.model).values()]
        self.after.append([g.detach().clone() for g in gates])


def trainer(path: Path, steps: int, callbacks: list[Callback], **options: Any) -> pl.Trainer:
    return pl.Trainer(
        max_steps=steps,
        callbacks=callbacks,
        default_root_dir=path,
        num_sanity_val_steps=0,
        **QUIET,
        **options,
    )


def loader(count: int) -> DataLoader[Any]:
    return DataLoader(list(batches(count)), batch_size=None)


def test_gates_are_thresholded_by_the_rate_of_their_own_step(tmp_path: Path) -> None:
    module, watch = Module(sora, l1=0.3), Watch()
    trainer(tmp_path, 4, [GateUpdate(), watch]).fit(module, loader(4))
    for step, (before, after) in enumerate(zip(watch.before, watch.after, strict=True)):
        lr = 0.4 * 0.5**step
        for (g, grad), got in zip(before, after, strict=True):
            close(got, soft_threshold(g - lr * grad, lr * 0.3), 1e-12)


def test_one_threshold_per_step_however_many_batches_it_has(tmp_path: Path) -> None:
    module, watch = Module(sora, threshold="xi", xi=0.05, gates="ones"), Watch()
    options = {"accumulate_grad_batches": 3}
    trainer(tmp_path, 2, [GateUpdate(), watch], **options).fit(module, loader(6))
    assert len(watch.before) == 2
    for step, at in ((0, 2), (1, 5)):
        for (g, grad), got in zip(watch.before[step], watch.after[at], strict=True):
            close(got, soft_threshold(g - 0.4 * 0.5**step * grad, 0.05), 1e-12)
    close(watch.after[0], watch.after[1], 0.0)


def test_xi_reaches_sparsity_where_lr_lambda_does_not(tmp_path: Path) -> None:
    """SPEC E5: no gate becomes zero with the paper's λ; gates do with the authors' threshold."""
    alive = {}
    for threshold in ("lr_lambda", "xi"):
        module, gates = Module(sora, threshold=threshold, l1=0.01, xi=0.05), GateUpdate()
        trainer(tmp_path, 40, [gates]).fit(module, loader(40))
        alive[threshold] = gates.chart()["stats/gates_alive"]
        assert gates.chart()["stats/gate_sparsity"] == pytest.approx(1 - alive[threshold] / 4)
    assert alive["lr_lambda"] == 4.0
    assert alive["xi"] < 2.0


def test_the_budget_counts_steps_and_is_reached(tmp_path: Path) -> None:
    module, callback = Module(adalora), RankBudget(target_r=2, initial=0.2, final=0.25)
    options = {"accumulate_grad_batches": 2}
    trainer(tmp_path, 10, [callback], **options).fit(module, loader(20))
    assert (callback.start, callback.stop) == (2, 8)
    assert sum(int(u.nonzero_directions().sum()) for u in updates(module.model).values()) == 8


def test_a_resumed_budget_goes_on_with_the_same_numbers(tmp_path: Path) -> None:
    def module() -> Module:
        torch.manual_seed(3)
        return Module(adalora)

    # Equal batches, so that the position in the data after a resume has no effect.
    data: Any = DataLoader(list(batches(1)) * 12, batch_size=None)
    whole, half, again = module(), module(), module()
    trainer(tmp_path, 24, [RankBudget(target_r=2)]).fit(whole, data)
    first = trainer(tmp_path, 24, [RankBudget(target_r=2)], max_epochs=1)
    first.fit(half, data)
    first.save_checkpoint(tmp_path / "half.ckpt")
    second = trainer(tmp_path, 24, [RankBudget(target_r=2)])
    second.fit(again, data, ckpt_path=tmp_path / "half.ckpt")
    assert (first.global_step, second.global_step) == (12, 24)
    assert any(bool(buffer.any()) for name, buffer in half.named_buffers() if "mean_" in name)
    close(list(again.state_dict().values()), list(whole.state_dict().values()), 0.0)


def test_ranks_are_logged_and_the_tested_adapter_is_saved(tmp_path: Path) -> None:
    module = Module(sora)
    stir(module.model)
    with torch.no_grad():
        next(iter(updates(module.model).values())).gate.g[1:] = 0.0
    runner = trainer(tmp_path, 1, [AdapterLog()])
    measured = runner.validate(module, loader(1), verbose=False)[0]
    name = "bert.encoder.layer.0.attention.self.query"
    assert measured[f"alive/{name}"] == 1.0
    assert measured[f"rank/{name}"] == pytest.approx(1.0)
    assert measured["val/rank"] == pytest.approx((1 + 4 + 4 + 4) / 4)
    each = [float(u.effective_rank()) for u in updates(module.model).values()]
    assert measured["val/entropy_rank"] == pytest.approx(sum(each) / 4)
    assert measured["rank/layer_1"] == pytest.approx((each[2] + each[3]) / 2)
    assert 1.0 < each[1] <= 4.0
    runner.test(module, loader(1), verbose=False)
    assert json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())["r"] == 4
    batch = next(batches(1))
    again = load(bert(), tmp_path / "adapter").eval()
    close(again(**batch).logits, module.model.eval()(**batch).logits, 1e-12)


def test_a_model_without_an_adapter_has_no_ranks() -> None:
    assert ranks(bert()) == {}


@pytest.mark.parametrize("name", ["lora", "adalora", "sora"])
def test_its_yaml_brings_its_callbacks(name: str) -> None:
    node = OmegaConf.load(CONF / "adapter" / f"{name}.yaml").callbacks
    found = {type(instantiate(callback)) for callback in node.values()}
    own = {"lora": set(), "adalora": {RankBudget}, "sora": {GateUpdate}}[name]
    assert found == {AdapterLog} | own
