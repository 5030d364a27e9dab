"""Dropout by counters: right in distribution, the same for a sample wherever it is computed."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from chimera.contract import Context
from chimera.ops.dropout import counters, draws, dropout, fork, label, sample_keys, token_keys

CALL = label("a test")


def keys(seed: int = 0, step: int = 0, samples: int = 64, tokens: int = 32) -> Tensor:
    each = sample_keys(counters(seed, step, torch.arange(samples)))
    return token_keys(each, torch.arange(tokens)[None])


@pytest.mark.parametrize("p", [0.05, 0.1, 0.5, 0.9])
def test_a_share_of_p_is_zero_and_the_mean_stays(p: float) -> None:
    x = torch.ones(64, 32, 250)
    y = dropout(x, p, True, keys(), CALL)
    zeros, error = (y == 0).float(), (p * (1 - p)) ** 0.5
    assert abs(float(zeros.mean()) - p) < 4 * error / x.numel() ** 0.5
    assert float((zeros.mean((1, 2)) - p).abs().max()) < 5 * error / (32 * 250) ** 0.5
    assert float((zeros.mean((0, 1)) - p).abs().max()) < 5 * error / (64 * 32) ** 0.5
    close = torch.full_like(y, 65536 / (65536 - round(p * 65536)))
    assert torch.equal(y, torch.where(y == 0, y, close))


def test_neighbours_are_independent() -> None:
    """Channels, tokens, samples, steps, seeds, calls and layers: correlations near zero."""
    ctx = Context(torch.arange(32)[None], draws=keys())

    def uniform(k: Tensor | None, call: int = CALL) -> Tensor:
        assert k is not None
        return draws(k, 128, call).float() / 18918.6  # the deviation of uniform 16 bits

    base = uniform(keys())
    assert abs(float(base.mean())) < 0.01
    assert abs(float(base.square().mean()) - 1) < 0.01
    others = {
        "channel": base.roll(1, 2), "lane": base.roll(4, 2), "token": base.roll(1, 1),
        "sample": base.roll(1, 0), "step": uniform(keys(step=1)), "seed": uniform(keys(seed=1)),
        "call": uniform(keys(), label("another")), "layer": uniform(fork(ctx, 1).draws),
        "layer and expert": uniform(fork(fork(ctx, 0), 1).draws),
        "expert and layer": uniform(fork(fork(ctx, 1), 0).draws),
    }  # fmt: skip
    bound = 5 / base.numel() ** 0.5
    both = 0.25 * (1 - 0.5 * 18918.6 / 32768) ** 2  # share in which two of them are above 0.5
    for name, other in others.items():
        assert abs(float((base * other).mean())) < bound, name
        assert abs(float(((base > 0.5) & (other > 0.5)).float().mean()) - both) < 0.003, name
    names = list(others)
    for a in names[4:]:
        for b in names[4:]:
            assert a == b or abs(float((others[a] * others[b]).mean())) < bound, (a, b)


def test_the_draws_are_those_of_splitmix() -> None:
    """Losses of a run depend on them, so a change of them raises `numerics`."""
    mask = (1 << 64) - 1

    def mix(z: int) -> int:
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        return z ^ (z >> 31)

    golden, step, position = 0x9E3779B97F4A7C15, 0xD1342543DE82EF95, 0xAF251AF3B0F025B5
    sample = mix((mix((3 * golden + 2 * step) & mask) + 5 * golden) & mask)
    token = mix((sample + 6 * position) & mask)
    hashes = [mix((token + CALL + group * golden) & mask) for group in range(2)]
    wanted = [(z >> 16 * lane) & 0xFFFF for z in hashes for lane in range(4)][:6]
    keys = token_keys(sample_keys(counters(3, 2, torch.tensor([5]))), torch.tensor([[6]]))
    found = draws(keys, 6, CALL).flatten().tolist()
    assert [value & 0xFFFF for value in found] == wanted


def test_a_compiled_graph_drops_the_same() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(dropout, backend="aot_eager", fullgraph=True)
    x = torch.randn(64, 32, 250)
    assert torch.equal(compiled(x, 0.3, True, keys(), CALL), dropout(x, 0.3, True, keys(), CALL))


def test_nothing_is_drawn_in_evaluation_or_at_zero() -> None:
    x = torch.ones(2, 3, 4)
    assert dropout(x, 0.5, False, keys(), CALL) is x
    assert dropout(x, 0.0, True, keys(), CALL) is x
    before = torch.random.get_rng_state()
    dropout(torch.ones(64, 32, 4), 0.5, True, keys(), CALL)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_without_keys_torch_draws() -> None:
    x = torch.ones(2, 3, 40)
    torch.manual_seed(0)
    ours = dropout(x, 0.5, True, None, CALL)
    torch.manual_seed(0)
    assert torch.equal(ours, torch.nn.functional.dropout(x, 0.5))


def test_the_gradient_has_the_mask_of_the_value() -> None:
    x = torch.randn(64, 32, 7, dtype=torch.float64, requires_grad=True)
    y = dropout(x, 0.3, True, keys(), CALL)
    (slope,) = torch.autograd.grad(y.sum(), x)
    assert torch.allclose(slope * x, y)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_stays_and_drops_the_same(dtype: torch.dtype) -> None:
    x = torch.ones(64, 32, 8, dtype=dtype)
    y = dropout(x, 0.1, True, keys(), CALL)
    assert y.dtype == dtype
    assert torch.equal(y == 0, dropout(x.float(), 0.1, True, keys(), CALL) == 0)
