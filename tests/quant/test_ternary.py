"""Weight rules: values, scales, gradients (SPEC Q2-Q5, E7)."""

import pytest
import torch

from chimera.ops.ternary import BINARY, LearnedStep, Rule, absmean, integer, ternary, threshold, twn
from chimera.quant.shared.rows import RULE
from tests.kit import close, grads
from tests.reference.quantisation import lsq

TERNARY = {
    "absmean": ternary(absmean),
    "threshold": ternary(threshold),
    "twn": ternary(twn),
    "twn rows": ternary(twn, rows=True),
    "hbit": RULE,
}


def weight(rows: int = 30, columns: int = 65) -> torch.Tensor:
    return torch.randn(rows, columns, dtype=torch.float64) * 0.02


@pytest.mark.parametrize("rule", TERNARY.values(), ids=TERNARY.keys())
def test_exactly_three_values_per_scale(rule: Rule) -> None:
    w = weight()
    values, (codes, scale) = rule.quantised(w), rule.codes(w)
    assert set(codes.unique().tolist()) == {-1.0, 0.0, 1.0}
    close(values, codes * scale, 0.0)
    per_scale = values if rule.rows else [values.flatten()]
    assert all(len(row.unique()) == 3 for row in per_scale)


def test_absmean_rounds_at_half_of_the_mean_and_threshold_at_the_mean() -> None:
    w = weight()
    gamma = w.abs().mean()
    for rule, tau in ((TERNARY["absmean"], gamma / 2), (TERNARY["threshold"], gamma)):
        close(rule.quantised(w), w.sign() * (w.abs() > tau) * gamma, 1e-12)


def test_twn_scale_is_the_best_one_for_its_codes() -> None:
    w = weight()
    codes, scale = TERNARY["twn"].codes(w)
    close(codes, w.sign() * (w.abs() > 0.7 * w.abs().mean()), 0.0)
    close(scale, (w * codes).sum() / codes.abs().sum(), 1e-12)  # α minimises the squared error


def test_hbit_has_a_scale_per_output_channel() -> None:
    w = weight()
    _, scale = RULE.codes(w)
    close(scale, w.abs().mean(1, keepdim=True) + 1e-5, 1e-12)


def test_binary_has_two_values_and_no_zero() -> None:
    w = weight()
    codes, scale = BINARY.codes(w)
    close(codes, torch.where(w > w.mean(), 1.0, -1.0).double(), 0.0)
    close(scale, w.abs().mean(), 1e-12)
    assert (BINARY.codes(torch.zeros(3, 4))[0] == -1).all()


def test_integer_grid() -> None:
    w = weight()
    codes, scale = integer(8).codes(w)
    assert codes.abs().max() == 127
    close(codes, codes.round(), 0.0)
    assert ((codes * scale - w).abs() <= scale / 2 + 1e-12).all()


@pytest.mark.parametrize("rule", [*TERNARY.values(), BINARY, integer(8)])
def test_some_rows_are_coded_as_in_the_whole(rule: Rule) -> None:
    w = weight()
    picked = torch.tensor([[3, 7], [7, 0]])
    close(rule.quantised(w[picked], w), rule.quantised(w)[picked], 0.0)


@pytest.mark.parametrize("rule", [*TERNARY.values(), BINARY, integer(8)])
def test_weights_of_zero_and_bfloat16(rule: Rule) -> None:
    assert rule.quantised(torch.zeros(4, 8)).isfinite().all()
    assert rule.quantised(weight().bfloat16()).dtype == torch.bfloat16


def test_learned_step_is_lsq() -> None:
    w, step = weight(4, 9).requires_grad_(), torch.rand(4, 1, dtype=torch.float64) * 0.03 + 0.005
    step.requires_grad_()
    g = torch.randn(4, 9, dtype=torch.float64)
    value = LearnedStep.apply(w, step)
    got_w, got_step = grads((value * g).sum(), [w, step])
    one = [
        [lsq(w[i, j].item(), step[i].item(), g[i, j].item(), per_step=9) for j in range(9)]
        for i in range(4)
    ]
    expected = torch.tensor(one, dtype=torch.float64)
    close(value, expected[..., 0], 1e-12)
    close(got_w, expected[..., 1], 1e-12)
    close(got_step, expected[..., 2].sum(1, keepdim=True), 1e-12)
    assert (got_w == 0).any()  # some weights lie outside the grid
    assert (got_w != 0).any()
