"""Rotary positions, scaled as `transformers` does, and HOPE, on a sphere (SPEC `rope`, P1)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.models.llama.modeling_llama import LlamaConfig, LlamaRotaryEmbedding

from chimera.position.hope import Hope
from chimera.position.rope import Rotary
from tests.kit import close, site

LENGTH = 64


def build(width: int = 32, **options: Any) -> Rotary:
    return Rotary(site(max_len=LENGTH), 4, width, **options)


def theirs(tokens: int, width: int = 32, **parameters: Any) -> tuple[Tensor, Tensor]:
    """cos and sin of the first `tokens` positions: [t half]."""
    config = LlamaConfig(
        hidden_size=4 * width,
        num_attention_heads=4,
        max_position_embeddings=LENGTH,
        rope_parameters={"rope_theta": 500.0, **parameters},
    )
    cos, sin = LlamaRotaryEmbedding(config)(torch.empty(1), torch.arange(tokens)[None])
    return cos[0, :, : width // 2], sin[0, :, : width // 2]


def ours(tokens: int, width: int = 32, **options: Any) -> tuple[Tensor, Tensor]:
    """cos and sin as the rotation of unit pairs (1, 0)."""
    unit = torch.zeros(1, 4, tokens, width)
    unit[..., 0::2] = 1
    turned, _ = build(width, base=500.0, **options).rotate(unit, unit, torch.arange(tokens)[None])
    return turned[0, 0, :, 0::2], turned[0, 0, :, 1::2]


@pytest.mark.parametrize(("tokens", "width"), [(1, 8), (64, 64), (200, 32)])
@pytest.mark.parametrize(
    ("options", "parameters", "tol"),
    [
        ({}, {"rope_type": "default"}, 1e-5),
        ({"scaling": "linear"}, {"rope_type": "linear", "factor": 4.0}, 1e-5),
        # x**y by two orders of float32 operations
        ({"scaling": "dynamic_ntk"}, {"rope_type": "dynamic", "factor": 4.0}, 1e-4),
        *[
            ({"scaling": "yarn", "factor": factor}, {"rope_type": "yarn", "factor": factor}, 1e-5)
            for factor in (1.0, 16.0)
        ],
    ],
)
def test_is_that_of_transformers(
    tokens: int, width: int, options: dict[str, Any], parameters: dict[str, Any], tol: float
) -> None:
    if parameters["rope_type"] == "yarn":
        parameters = {**parameters, "original_max_position_embeddings": LENGTH}
    close(ours(tokens, width, **options), theirs(tokens, width, **parameters), tol)


@pytest.mark.parametrize(("tokens", "width"), [(1, 8), (64, 64), (200, 32)])
def test_ntk_is_dynamic_at_the_stretched_length(tokens: int, width: int) -> None:
    """transformers' rule with factor 1 at 4·L tokens stretches the base by 4."""
    whole = theirs(4 * LENGTH, width, rope_type="dynamic", factor=1.0)
    want = tuple(x[:tokens] for x in whole)
    close(ours(tokens, width, scaling="ntk", factor=4.0), want, 1e-4)


@pytest.mark.parametrize(
    ("fast", "slow", "length"), [(32.0, 1.0, 4096), (8.0, 2.0, 1000), (3.0, 3.0, 32)]
)
def test_yarn_ramp_lies_where_the_turns_are(fast: float, slow: float, length: int) -> None:
    both = {"beta_fast": fast, "beta_slow": slow}
    want = theirs(99, rope_type="yarn", factor=4.0, original_max_position_embeddings=length, **both)
    got = ours(99, scaling="yarn", original_len=length, **both)
    close(got, want, 1e-5)


def test_neighbours_in_the_batch_do_not_stretch_a_sequence() -> None:
    rope = build(scaling="dynamic_ntk")
    q = torch.randn(2, 4, 5, 32).double()
    pos = torch.stack([torch.arange(5), torch.arange(300, 305)])
    both, _ = rope.rotate(q, q, pos)
    for i in range(2):
        close(both[i : i + 1], rope.rotate(q[i : i + 1], q[i : i + 1], pos[i : i + 1])[0])


def test_turns_fewer_key_heads_alike() -> None:
    rope, pos = build(), torch.arange(5)[None]
    q, k = torch.randn(2, 4, 5, 32), torch.randn(2, 2, 5, 32)
    close(rope.rotate(q, k, pos)[1], rope.rotate(k, q, pos)[0])


@pytest.mark.parametrize("fraction", [0.25, 0.5])
def test_partial_rotation_leaves_the_other_channels(fraction: float) -> None:
    whole, part = Rotary(site(), 4, int(16 * fraction)), Rotary(site(), 4, 16, fraction=fraction)
    q, k = torch.randn(2, 2, 4, 9, 16).double()
    pos, width = torch.arange(9)[None], int(16 * fraction)
    for got, x, want in zip(
        part.rotate(q, k, pos),
        (q, k),
        whole.rotate(q[..., :width], k[..., :width], pos),
        strict=True,
    ):
        close(got[..., :width], want, 1e-12)
        assert got[..., width:].equal(x[..., width:])
    for bad in (0.05, 0.2):
        with pytest.raises(ValueError, match=f"position.fraction={bad} rotates"):
            Rotary(site(), 4, 16, fraction=bad)


def test_hope_is_the_rotation_projected_on_a_sphere() -> None:
    hope, pos = Hope(site(), 4, 8).double(), torch.arange(5)[None]
    with torch.no_grad():
        hope.log_radius.copy_(torch.tensor([0.0, 1.0, 2.0, -1.0]))
    q, k = torch.randn(2, 4, 5, 8).double(), torch.randn(2, 2, 5, 8).double()
    turned = Rotary(site(), 4, 8).rotate(q, k, pos)
    radius = torch.tensor([0.0, 1.0, 2.0, -1.0]).double().exp()[:, None, None]
    got = hope.rotate(q, k, pos)
    close(got[0], turned[0] / turned[0].norm(dim=-1, keepdim=True) * radius)
    close(got[1], turned[1] / turned[1].norm(dim=-1, keepdim=True) * 8**0.5)


def test_nothing_stays_nothing_on_a_sphere() -> None:
    zero = torch.zeros(1, 4, 2, 8)
    close(Hope(site(), 4, 8).rotate(zero, zero, torch.arange(2)[None]), (zero, zero))


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="needs an even head width"):
        build(7)
    with pytest.raises(ValueError, match="needs an even head width"):
        Hope(site(), 4, 7)
    with pytest.raises(ValueError, match="scaling=ntk"):
        build(2, scaling="ntk")
