"""Adapters that choose their ranks while they train, and their callbacks in Lightning's loop.

AdaLoRA's importance, masks and rank pattern equal peft's (SPEC A2, E9); SoRA's gates (SPEC A3, E5).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import peft
import pytest
import torch
from hydra.utils import instantiate
from lightning.pytorch.callbacks import Callback
from omegaconf import OmegaConf
from torch import Tensor, nn
from torch.utils.data import DataLoader

from chimera.adapter.adalora import SVDLike, adalora
from chimera.adapter.shared.files import load
from chimera.adapter.sora import SoRA, sora
from chimera.callback.part.adalora import RankBudget
from chimera.callback.part.adapter import AdapterLog, ranks
from chimera.callback.part.sora import GateUpdate
from chimera.errors import UserError
from chimera.ops.low_rank import entropy_rank, singular_values, soft_threshold
from chimera.paths import CONF
from tests.adapter.kit import TARGETS, batches, bert, of_peft, stir, updates
from tests.kit import QUIET, close, normal

STEPS, START, STOP, EVERY = 80, 8, 60, 3


def pair() -> tuple[nn.Module, nn.Module]:
    ours = adalora(bert(), r=6, alpha=8.0, targets=TARGETS, train=["classifier"])
    config = peft.AdaLoraConfig(
        init_r=6, target_r=3, lora_alpha=8, target_modules=["query", "value"], tinit=START,
        tfinal=STEPS - STOP, deltaT=EVERY, total_step=STEPS, orth_reg_weight=0.5,
        modules_to_save=["classifier"],
    )  # fmt: skip
    other = peft.get_peft_model(bert(), config)
    for name, update in updates(ours).items():
        for part in ("A", "B"):
            of_peft(other, name, f"lora_{part}.default").data.copy_(getattr(update, part))
    return ours.train(), other.train()


def budget(model: nn.Module) -> RankBudget:
    callback = RankBudget(
        target_r=3, initial=START / STEPS, final=(STEPS - STOP) / (STEPS - START), every=EVERY,
        penalty="norm",
    )  # fmt: skip
    callback.begin(model, STEPS)
    return callback


def adam(model: nn.Module) -> torch.optim.Optimizer:
    """Optimiser of all trained parameters but peft's `ranknum`, a constant with requires_grad."""
    trained = [p for n, p in model.named_parameters() if p.requires_grad and "ranknum" not in n]
    return torch.optim.AdamW(trained, lr=5e-3)


def test_80_steps_equal_pefts() -> None:
    ours, other = pair()
    callback = budget(ours)
    assert (callback.start, callback.stop) == (START, STOP)
    allocator = other.base_model.rankallocator
    optimizers = adam(ours), adam(other)
    budgets = []
    for step, batch in enumerate(batches(STEPS)):
        for model, optimizer in zip((ours, other), optimizers, strict=True):
            optimizer.zero_grad()
            # peft adds its penalty in the forward pass of the inner model, which it does not call
            # without a task type.
            (model if model is ours else other.base_model)(**batch).loss.backward()
            if model is ours:
                callback.penalise()
            optimizer.step()
        callback.allocate(step)
        other.base_model.update_and_allocate(step)
        assert callback.budget(step) == allocator.budget_schedule(step)[0]
        budgets.append(callback.budget(step))
        pattern = other.peft_config["default"].rank_pattern or {}
        for name, update in updates(ours).items():
            assert isinstance(update, SVDLike)
            close(update.E[:, None], of_peft(other, name, "lora_E.default").data, 1e-9)
            for part in ("A", "B", "E") if step < STOP else ():
                key = f"{name}.lora_{part}.default"
                for mine, its in (("mean", "exp_avg_ipt"), ("spread", "exp_avg_unc")):
                    got, want = getattr(update, f"{mine}_{part}"), getattr(allocator, its)[key]
                    close(got, want.view_as(got), 1e-9)
            if pattern:
                its_mask = pattern[f"{name}.lora_E.default"]
                assert update.kept.tolist() == torch.tensor(its_mask).flatten().tolist()
    ranks = [int(u.kept.sum()) for u in updates(ours).values()]
    assert sum(ranks) == 4 * 3
    assert len(set(ranks)) > 1  # ranks differ between layers
    assert budgets[START] == 24
    assert budgets[STOP] == 12
    close(ours(**batch).logits, other(**batch).logits, 1e-9)


@pytest.mark.parametrize("form", ["squared", "norm"])
def test_the_gradient_of_the_penalty(form: str) -> None:
    """Squared norm as in the paper; the authors' code uses the norm (SPEC E9)."""
    torch.manual_seed(0)
    update = SVDLike(nn.Linear(7, 5).double(), 4, 8.0, 0.0)
    nn.init.normal_(update.A)
    nn.init.normal_(update.B)
    power = 2 if form == "squared" else 1
    eye = torch.eye(4, dtype=torch.float64)

    def penalty(a: Tensor, b: Tensor) -> Tensor:
        return (a @ a.mT - eye).norm() ** power + (b.mT @ b - eye).norm() ** power

    wanted = torch.autograd.grad(0.3 * penalty(update.A, update.B), [update.A, update.B])
    for factor in (update.A, update.B):
        factor.grad = torch.zeros_like(factor)
    close(update.add_penalty(0.3, form), penalty(update.A, update.B).detach(), 1e-12)
    close([update.A.grad, update.B.grad], list(wanted), 1e-12)


def test_more_is_asked_for_than_there_is() -> None:
    model = adalora(bert(), r=6, targets=TARGETS)
    with pytest.raises(UserError, match=r"target_r=7 is above adapter.r=6"):
        RankBudget(target_r=7).begin(model, 10)


@pytest.mark.parametrize("steps", [1, 2, 3, 10])
def test_even_a_short_run_arrives_at_its_budget(steps: int) -> None:
    model = adalora(bert(), r=6, targets=TARGETS, train=["classifier"])
    callback, optimizer = RankBudget(target_r=2), adam(model)
    callback.begin(model, steps)
    for step, batch in enumerate(batches(steps)):
        optimizer.zero_grad()
        model(**batch).loss.backward()
        callback.penalise()
        optimizer.step()
        callback.allocate(step)
    if steps > 1:  # with one direction there is no choice
        assert sum(int(u.nonzero_directions().sum()) for u in updates(model).values()) == 8


def test_both_factors_start_normal_and_the_values_at_zero() -> None:
    update = SVDLike(nn.Linear(90, 80), 100, 8.0, 0.0)
    normal(update.A, std=0.02)
    normal(update.B, std=0.02)
    assert not update.E.any()
    assert (update.scale, update.alpha) == (pytest.approx(8 / 100.00001), pytest.approx(8))


@pytest.mark.parametrize("t", [0.0, 3e-4, 0.015, 2.0])
def test_the_proximal_operator_equals_numpy(t: float) -> None:
    z = np.random.default_rng(0).normal(size=1000)
    z[:3] = (0.0, t, -t)
    wanted = np.sign(z) * np.maximum(np.abs(z) - t, 0.0)
    got = soft_threshold(torch.from_numpy(z), t).numpy()
    assert np.abs(got - wanted).max() <= 1e-12
    assert ((got == 0) == (np.abs(z) <= t)).all()


def layer(**options: object) -> SoRA:
    torch.manual_seed(0)
    made = SoRA(nn.Linear(6, 5).double(), 4, 2.0, 0.0, **options)
    nn.init.normal_(made.B)
    return made


def test_forward_is_the_equation() -> None:
    made, x = layer(), torch.randn(3, 6, dtype=torch.float64)
    wanted = 2.0 * torch.stack([made.B @ (made.gate.g * (made.A @ row)) for row in x])
    close(made(x), wanted, 1e-12)
    close(made(x), x @ made.delta().T, 1e-12)


def test_gates_start_standard_normal_or_at_one() -> None:
    base = nn.Linear(1, 1)
    normal(SoRA(base, 50_000, 2.0, 0.0).gate.g, std=1.0)
    close(SoRA(base, 9, 2.0, 0.0, gates="ones").gate.g.data, torch.ones(9), 0.0)


def step(made: SoRA, lr: float = 0.1) -> tuple[Tensor, Tensor]:
    """One step of gradient descent: gates before, and gates after it without a penalty."""
    before = made.gate.g.detach().clone()
    made(torch.ones(2, 6, dtype=torch.float64)).square().sum().backward()
    smooth = before - lr * made.gate.g.grad
    made.gate.before_step(8)
    torch.optim.SGD(made.parameters(), lr=lr).step()
    made.gate.after_step(lr)
    return before, smooth


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"l1": 0.5}, lambda g, smooth: soft_threshold(smooth, 0.1 * 0.5)),
        ({"threshold": "xi", "xi": 0.2, "l1": 9.0}, lambda g, smooth: soft_threshold(smooth, 0.2)),
        # Along the subgradient; nothing is thresholded.
        ({"update": "sgd_l1", "l1": 0.5}, lambda g, smooth: smooth - 0.1 * 0.5 * g.sign()),
        # The authors' penalty is the mean over all gates.
        (
            {"threshold": "xi", "xi": 0.0, "penalty": 0.4},
            lambda g, smooth: smooth - 0.1 * 0.4 * g.sign() / 8,
        ),
    ],
)
def test_steps_are_their_equations(options: dict[str, Any], expected: Any) -> None:
    made = layer(**options)
    close(made.gate.g.data, expected(*step(made)), 1e-12)


def test_a_step_left_out_thresholds_nothing() -> None:
    made = layer(l1=0.5)
    before = made.gate.g.detach().clone()
    made.gate.before_step(8)
    made.gate.after_step(0.1)
    close(made.gate.g.data, before, 0.0)


def test_what_excludes_each_other() -> None:
    with pytest.raises(UserError, match=r"needs adapter\.update=proximal"):
        sora(bert(), update="sgd_l1", threshold="xi")


def test_entropy_rank() -> None:
    torch.manual_seed(0)
    b, a = torch.randn(9, 4, dtype=torch.float64), torch.randn(4, 7, dtype=torch.float64)
    s = torch.linalg.svdvals(b @ a)[:4]
    close(singular_values(b, a), s, 1e-10)
    p = (s / s.sum()).numpy()
    assert float(entropy_rank(b, a)) == pytest.approx(float(np.exp(-(p * np.log(p)).sum())))
    eye = torch.eye(4, 6)
    assert float(entropy_rank(torch.eye(9, 4), eye)) == pytest.approx(4.0)
    assert float(entropy_rank(torch.eye(9, 4)[:, :1], eye[:1])) == pytest.approx(1.0)
    assert float(entropy_rank(torch.zeros(9, 4), eye)) == 0.0


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


def test_ranks_of_each_validation_in_training_are_kept_and_resumed(tmp_path: Path) -> None:
    module = Module(sora, gates="ones", threshold="xi", xi=0.4)
    log = AdapterLog()
    runner = trainer(tmp_path, 4, [log, GateUpdate()], limit_val_batches=1, val_check_interval=2)
    runner.fit(module, loader(4), loader(1))
    assert list(log.history) == ["2", "4"]
    for step, rank in (("2", 4.0), ("4", 0.0)):
        found = log.history[step]
        assert found["rank"] == rank
        assert found["gate_sparsity"] == 1 - rank / 4
        assert set(found["alive"].values()) == {rank}
    runner.validate(module, loader(1), verbose=False)
    assert list(log.history) == ["2", "4"]
    again = AdapterLog()
    again.load_state_dict(log.state_dict())
    assert again.history == log.history


def test_a_model_without_an_adapter_has_no_ranks() -> None:
    assert ranks(bert()) == {}


@pytest.mark.parametrize("name", ["lora", "adalora", "sora"])
def test_its_yaml_brings_its_callbacks(name: str) -> None:
    node = OmegaConf.load(CONF / "adapter" / f"{name}.yaml").callbacks
    found = {type(instantiate(callback)) for callback in node.values()}
    own = {"lora": set(), "adalora": {RankBudget}, "sora": {GateUpdate}}[name]
    assert found == {AdapterLog} | own


@pytest.mark.parametrize(("sign", "after"), [(None, 0.0), (1, -0.05), (-1, 0.05)])
def test_e15_the_sign_at_zero_moves_a_gate_off_zero(sign: int | None, after: float) -> None:
    """Without a gradient of the task, as in SAIDL's toy; gates off zero move as before."""
    gate = layer(update="sgd_l1", l1=0.5, sign_at_zero=sign).gate
    gate.g.data.copy_(torch.tensor([0.0, 1.0, -1.0, 0.05], dtype=torch.float64))
    gate.g.grad = torch.zeros_like(gate.g)
    gate.before_step(8)
    torch.optim.SGD([gate.g], lr=0.1).step()
    close(gate.g.data, torch.tensor([after, 0.95, -0.95, 0.0], dtype=torch.float64), 1e-12)
