"""Rotary positions and their scalings against `transformers`' formulas (SPEC `rope`)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.models.llama.modeling_llama import LlamaConfig, LlamaRotaryEmbedding

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
class TestAgainstTransformers:
    def test_default(self, tokens: int, width: int) -> None:
        close(ours(tokens, width), theirs(tokens, width, rope_type="default"), 1e-5)

    def test_linear(self, tokens: int, width: int) -> None:
        want = theirs(tokens, width, rope_type="linear", factor=4.0)
        close(ours(tokens, width, scaling="linear"), want, 1e-5)

    def test_dynamic_ntk(self, tokens: int, width: int) -> None:
        want = theirs(tokens, width, rope_type="dynamic", factor=4.0)
        close(
            ours(tokens, width, scaling="dynamic_ntk"), want, 1e-4
        )  # x**y by two orders of float32 operations

    def test_ntk_is_dynamic_at_the_stretched_length(self, tokens: int, width: int) -> None:
        """transformers' rule with factor 1 at 4·L tokens stretches the base by 4."""
        whole = theirs(4 * LENGTH, width, rope_type="dynamic", factor=1.0)
        want = tuple(x[:tokens] for x in whole)
        close(ours(tokens, width, scaling="ntk", factor=4.0), want, 1e-4)

    @pytest.mark.parametrize("factor", [1.0, 16.0])
    def test_yarn(self, tokens: int, width: int, factor: float) -> None:
        want = theirs(
            tokens, width, rope_type="yarn", factor=factor, original_max_position_embeddings=LENGTH
        )
        close(ours(tokens, width, scaling="yarn", factor=factor), want, 1e-5)


@pytest.mark.parametrize(
    ("fast", "slow", "length"), [(32.0, 1.0, 4096), (8.0, 2.0, 1000), (3.0, 3.0, 32)]
)
def test_yarn_ramp_lies_where_the_turns_are(fast: float, slow: float, length: int) -> None:
    want = theirs(
        99,
        rope_type="yarn",
        factor=4.0,
        beta_fast=fast,
        beta_slow=slow,
        original_max_position_embeddings=length,
    )
    got = ours(99, scaling="yarn", beta_fast=fast, beta_slow=slow, original_len=length)
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


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="needs an even head width"):
        build(7)
    with pytest.raises(ValueError, match="scaling=ntk"):
        build(2, scaling="ntk")
