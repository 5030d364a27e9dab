"""SoRA's gates: update rules and the separate optimiser group (SPEC A3, E5)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from chimera.adapter.sora import SoRA, sora
from chimera.errors import UserError
from chimera.ops.low_rank import entropy_rank, singular_values, soft_threshold
from tests.adapter.kit import bert
from tests.kit import close, normal


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
