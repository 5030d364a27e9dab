"""AdaLoRA's importance, masks and rank pattern equal peft's over 200 steps (SPEC A2, E9)."""

from __future__ import annotations

import peft
import pytest
import torch
from torch import Tensor, nn

from chimera.adapter.adalora import SVDLike, adalora
from chimera.callback.part.adalora import RankBudget
from chimera.errors import UserError
from tests.adapter.kit import TARGETS, batches, bert, of_peft, updates
from tests.kit import close, normal

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
