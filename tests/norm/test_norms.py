"""Norms against their equations: LayerNorm, RMSNorm, DyT, static tanh, QDyT (SPEC N1 to N4)."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from chimera.errors import UserError
from chimera.norm.dyt import DyT
from chimera.norm.none import NoNorm
from chimera.norm.qdyt import QDyT
from chimera.norm.standard import LayerNorm, RMSNorm
from chimera.norm.static_tanh import StaticTanh
from tests.kit import close, grads, ragged, randn


@pytest.mark.parametrize("scale", [1.0, 1e-3])
def test_layernorm_and_rmsnorm_are_their_equations(scale: float) -> None:
    """Inputs of scale 1e-3 have a variance near ε."""
    x = scale * (torch.randn(2, 3, 8).double() + 1)
    for norm in (layer := LayerNorm(8).double(), rms := RMSNorm(8).double()):
        torch.nn.init.normal_(norm.weight)
    torch.nn.init.normal_(layer.bias)
    centred = x - x.mean(-1, keepdim=True)
    root = (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    close(layer(x), layer.weight * centred / root + layer.bias, 1e-12)
    close(rms(x), rms.weight * x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt(), 1e-12)
    other = LayerNorm(8, eps=0.5).double()
    close(other(x), centred / (centred.square().mean(-1, keepdim=True) + 0.5).sqrt(), 1e-12)


def filled(norm: nn.Module) -> nn.Module:
    """Norm in float64 with random parameters."""
    norm = norm.double()
    for parameter in norm.parameters():
        nn.init.uniform_(parameter, 0.3, 1.2)
    return norm


@pytest.mark.parametrize("alpha", ["channel", "scalar"])
def test_dyt_is_its_equation(alpha: str) -> None:
    norm, x = filled(DyT(6, alpha=alpha)), randn(2, 3, 6)
    y = norm(x)
    for i in range(6):
        a = norm.alpha[i] if alpha == "channel" else norm.alpha
        close(y[..., i], norm.weight[i] * torch.tanh(a * x[..., i]) + norm.bias[i], 1e-12)


def test_dyt_starts_and_counts_as_in_titan() -> None:
    """Eq. 49, 50; Table 6: 3d parameters with α per channel, 2d + 1 with a scalar α."""
    assert (DyT(6).alpha == 0.5).all()
    assert (DyT(6, init=0.8).alpha == 0.8).all()
    assert [
        sum(p.numel() for p in DyT(6, alpha=a).parameters()) for a in ("channel", "scalar")
    ] == [
        18,
        13,
    ]


@pytest.mark.parametrize("alpha", ["channel", "scalar"])
def test_dyt_slope_is_bounded_and_its_gradient_right(alpha: str) -> None:
    norm, x = filled(DyT(6, alpha=alpha)), randn(2, 3, 6).requires_grad_()
    slope = grads(norm(x).sum(), [x])[0]
    assert (slope.abs() <= (norm.weight * norm.alpha).abs() + 1e-12).all()  # TITAN eq. 48
    assert torch.autograd.gradcheck(norm, (x,))


def test_static_tanh_learns_no_alpha() -> None:
    norm, x = filled(StaticTanh(6, alpha=0.7)), randn(2, 3, 6)
    assert {name for name, _ in norm.named_parameters()} == {"weight", "bias"}
    close(norm(x), norm.weight * torch.tanh(0.7 * x) + norm.bias, 1e-12)


@pytest.mark.parametrize("norm", [DyT(6), StaticTanh(6)], ids=["dyt", "static"])
def test_no_token_sees_another(norm: nn.Module) -> None:
    norm, x = norm.double(), randn(3, 4, 6)
    close(norm(x)[1:2, 2:3], norm(x[1:2, 2:3]), 0.0)
    assert norm(x.bfloat16()).dtype == torch.bfloat16


def test_none_is_the_identity() -> None:
    x = randn(2, 3, 6)
    assert NoNorm(6)(x) is x
    assert not list(NoNorm(6).parameters())


def make(**change: object) -> QDyT:
    return QDyT(8, **change).double()


def test_training_centres_each_token() -> None:
    norm, x = make(), randn(2, 5, 8) + 3
    norm.weight.data.uniform_(0.5, 2)
    norm.bias.data.uniform_(-1, 1)
    z = x - x.mean(-1, keepdim=True)
    close(norm(x), norm.weight * torch.tanh(0.5 * z) + norm.bias, 1e-12)
    assert torch.autograd.gradcheck(norm, (x.requires_grad_(),))


@pytest.mark.parametrize("reading", ["running", "channel"])
def test_evaluation_centres_by_the_running_mean(reading: str) -> None:
    norm = make(momentum=0.25, inference_mean=reading)
    first, second = randn(2, 5, 8) + 1, randn(3, 5, 8) - 1
    norm(first)
    close(norm.running_mean, first.mean((0, 1)), 1e-12)
    norm(second)
    mean = 0.75 * first.mean((0, 1)) + 0.25 * second.mean((0, 1))
    close(norm.running_mean, mean, 1e-12)
    mu = mean if reading == "channel" else mean.mean()  # a scalar: the mean over (B, L) of μ
    close(norm.eval()(first), torch.tanh(0.5 * (first - mu)), 1e-12)


def test_train_test_mismatch_and_its_cure() -> None:
    """`running` (the paper) evaluates another function than the trained one; `token` does not."""
    tokens_differ = randn(64, 5, 8) + torch.linspace(-2, 2, 5)[:, None]
    channels_differ = randn(64, 5, 8) + torch.linspace(-2, 2, 8)
    for x, worst in ((tokens_differ, "running"), (channels_differ, "channel")):
        found = {}
        for reading in ("running", "channel", "token"):
            norm = make(inference_mean=reading)
            trained = norm(x)
            found[reading] = (norm.eval()(x) - trained).abs().mean()
        assert found["token"] == 0.0
        assert found[worst] > 0.2
    assert found["running"] < found["channel"] / 2  # `channel` evaluates another function


@pytest.mark.parametrize("reading", ["running", "channel"])
def test_a_settled_norm_trains_with_the_mean_of_its_evaluation(reading: str) -> None:
    norm, x = make(inference_mean=reading, running_from=0.8), randn(3, 5, 8) + 1
    norm(randn(3, 5, 8) - 1)
    own = norm.train()(x)
    norm.settled = True
    evaluated = norm.eval()(x)
    before = norm.running_mean.clone()
    assert torch.equal(norm.train()(x), evaluated)
    assert (own - evaluated).abs().mean() > 0.1
    assert not torch.equal(norm.running_mean, before)  # goes on being averaged


def test_a_norm_with_the_tokens_own_mean_has_nothing_to_settle_to() -> None:
    with pytest.raises(UserError, match=r"norm\.running_from needs norm\.inference_mean=running"):
        make(inference_mean="token", running_from=0.8)


def test_both_rules_evaluate_the_same_weights() -> None:
    chosen, other = make(), make(inference_mean="token")
    x = randn(3, 4, 8) + torch.linspace(-2, 2, 4)[:, None]
    for norm in (chosen, other):
        norm(x)
        norm.eval()
    assert chosen.other_rules() == ("token_mean", "channel_mean")
    assert other.other_rules() == ("running_mean", "channel_mean")
    before = chosen(x)
    chosen.evaluate_by("token_mean")
    close(chosen(x), other(x), 0.0)
    chosen.evaluate_by("channel_mean")
    centred = x - chosen.running_mean
    close(chosen(x), torch.tanh(chosen.alpha * centred), 1e-12)
    chosen.evaluate_by(None)
    close(chosen(x), before, 0.0)


def test_alpha_of_each_channel_starts_as_one_alpha() -> None:
    one, each = make(), make(alpha_per="channel")
    x = randn(3, 4, 8)
    close(each(x), one(x), 0.0)
    assert each.alpha.shape == (8,)
    each.set_alpha(0.05)
    assert (each.alpha == 0.05).all()
    each(x).square().sum().backward()
    assert each.alpha.grad.unique().numel() == 8


def test_evaluation_of_a_token_does_not_depend_on_the_batch() -> None:
    for norm in (make(), make(inference_mean="token")):
        x = randn(3, 4, 8)
        norm(x)
        norm.eval()
        before = {name: value.clone() for name, value in norm.state_dict().items()}
        close(norm(x)[1:2, 2:3], norm(x[1:2, 2:3]), 0.0)
        assert all(torch.equal(value, before[name]) for name, value in norm.state_dict().items())


@pytest.mark.parametrize("left", [True, False])
def test_padding_enters_no_statistic(left: bool) -> None:
    mask = ragged([5, 2, 3], left=left)
    x = randn(3, 5, 8)
    norm, other = make(), make()
    for one in (norm, other):
        one.begin_calibration(0.5)
    y = norm(x, mask)
    garbage = x.masked_fill(~mask[..., None], 1e6)
    close(other(garbage, mask)[mask], y[mask], 0.0)
    for name, value in norm.state_dict().items():
        close(value, other.state_dict()[name], 0.0)
    close(norm.running_mean, x[mask].mean(0), 1e-12)
    assert norm.tokens == 10


def test_a_batch_of_padding_changes_nothing() -> None:
    norm, x = make(), randn(2, 3, 8)
    norm(x)
    before = norm.running_mean.clone()
    norm(x, torch.zeros(2, 3, dtype=torch.bool))
    norm(torch.empty(1, 0, 8, dtype=torch.float64))
    close(norm.running_mean, before, 0.0)
    assert norm.updates == 1


def test_a_batch_of_one_token_is_a_batch() -> None:
    norm, first, second = make(momentum=0.25), randn(1, 1, 8), randn(1, 1, 8)
    norm(first)
    norm(second)
    close(norm.running_mean, 0.75 * first[0, 0] + 0.25 * second[0, 0], 1e-12)
    assert norm.updates == 2


@pytest.mark.parametrize("reentrant", [True, False])
def test_recomputation_counts_once(reentrant: bool) -> None:
    plain, wrapped = make(), make()
    for norm in (plain, wrapped):
        norm.begin_calibration(0.5)
    for _ in range(2):
        x = randn(2, 3, 8).requires_grad_()
        for _loop in range(3):  # several calls per forward pass, as with loops
            plain(x).sum().backward()
            checkpoint(wrapped, x, use_reentrant=reentrant).sum().backward()
    assert plain.updates == 6
    assert plain.tokens == 36
    for name, value in plain.state_dict().items():
        close(value, wrapped.state_dict()[name], 0.0)


def test_calibrated_outputs_have_unit_second_moment() -> None:
    norm = make(alpha=0.05)
    norm.begin_calibration(0.5)
    batches = [randn(8, 5, 8) * torch.linspace(0.1, 3, 8).double() for _ in range(4)]
    for x in batches:
        norm(x)
    norm.end_calibration()
    assert bool(norm.calibrated)
    norm.set_alpha(0.5)
    y = torch.cat([norm(x) for x in batches])
    assert ((norm.weight > 0.1) & (norm.weight < 10)).all()
    close(y.square().mean((0, 1)), torch.ones(8).double(), 1e-9)


def test_gamma_of_a_dead_channel_is_bounded() -> None:
    norm = QDyT(2).double()
    norm.begin_calibration(0.5)
    norm(torch.zeros(4, 4, 2, dtype=torch.float64))
    norm.end_calibration()
    close(norm.weight.detach(), torch.full((2,), 10.0).double(), 0.0)


def test_nothing_is_collected_unless_asked_or_after_the_end() -> None:
    norm = make()
    norm(randn(2, 3, 8))
    assert norm.tokens == 0
    norm.begin_calibration(0.5)
    norm.eval()(randn(2, 3, 8))
    assert norm.tokens == 0
    norm.train()(randn(2, 3, 8))
    norm.end_calibration()
    norm(randn(2, 3, 8))
    assert norm.tokens == 0


def test_bfloat16_keeps_float32_statistics() -> None:
    norm = QDyT(8)
    x = (torch.randn(4, 50, 8) + 2).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        y = norm(x)
    assert y.dtype == torch.bfloat16
    close(norm.running_mean, x.float().mean((0, 1)), 1e-5)
    assert all(g.isfinite().all() for g in grads(y.float().sum(), norm))
