"""LiZAttention in encoders, which the paper does not specify (SPEC M12)."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from chimera.config.compose import compose, plain
from chimera.mixer.liza import LiZAttention
from tests.kit import close, ctx, double, grads, parts, ragged, site
from tests.reference.liza import linear_branch


def both_ways(x: torch.Tensor, mixer: LiZAttention, **said: Any) -> torch.Tensor:
    """Naive recurrence over x [b t d] plus that over its reversal, then normalised."""
    q, k, v = (
        p(x).unflatten(-1, (4, 8)).transpose(1, 2)
        for p in (mixer.q_proj, mixer.k_proj, mixer.v_proj)
    )
    there, _ = linear_branch(q, k, v, **said)
    back, _ = linear_branch(q.flip(2), k.flip(2), v.flip(2), **said)
    y = there + back.flip(2)
    y = y / (y.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    return mixer.o_proj(y.transpose(1, 2).flatten(2))


@pytest.mark.parametrize(
    ("order", "trick", "gate"),
    [(1, "none", "k"), (2, "derivative", "v"), (2, "rotary", "kv"), (3, "both", "k")],
)
def test_linear_attention_alone_is_two_naive_passes(order: int, trick: str, gate: str) -> None:
    said: dict[str, Any] = {"order": order, "trick": trick, "gate": gate}
    mixer: Any = double(lambda: LiZAttention(site(causal=False), parts(), mag_weight=1.0, **said))
    x = torch.randn(2, 27, 32, dtype=torch.float64, requires_grad=True)
    got = mixer(x, ctx(tokens=27)).y
    want = both_ways(x, mixer, **said, phi=lambda h: h, chunk=64)
    close(got, want)
    weight = torch.randn_like(want)
    close(grads((got * weight).sum(), [x]), grads((want * weight).sum(), [x]))
    mask = ragged((27, 11), left=True)
    padded = mixer(x, ctx(mask)).y
    alone = x[1:, mask[1]]
    close(padded[1:, mask[1]], both_ways(alone, mixer, **said, phi=lambda h: h, chunk=64))


def test_both_bring_their_schedule_along() -> None:
    for words in (["mixer=liza"], ["adapter=liza", "task=causal_lm"]):
        group = words[0].partition("=")[0]
        node = plain(compose(words))[group]
        assert node["callbacks"]["mag"]["_target_"] == "chimera.callback.part.liza.MagSchedule"
