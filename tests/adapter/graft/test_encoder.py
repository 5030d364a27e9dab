"""LiZAttention in encoders, which the paper does not specify (SPEC M12)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

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


def test_an_encoder_learns_to_look_ahead() -> None:
    """Predict the next token: impossible for a decoder's memory, easy for an encoder's."""
    found = {}
    for causal in (True, False):
        torch.manual_seed(0)
        said: dict[str, Any] = {"mag_weight": 1.0, "order": 2}
        mixer = LiZAttention(site(causal=causal), parts(), **said)
        table, head = nn.Embedding(16, 32), nn.Linear(32, 16)
        trained = [*mixer.parameters(), *table.parameters(), *head.parameters()]
        optimiser = torch.optim.Adam(trained, lr=1e-2)
        for _ in range(60):
            ids = torch.randint(16, (16, 12))
            y = head(mixer(table(ids), ctx(tokens=12)).y)[:, :-1]
            loss = nn.functional.cross_entropy(y.flatten(0, 1), ids[:, 1:].flatten())
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        found[causal] = float(loss.detach())
    assert found[True] > 2.6  # log 16 = 2.77
    assert found[False] < 2.0


def test_both_bring_their_schedule_along() -> None:
    for words in (["mixer=liza"], ["adapter=liza", "task=causal_lm"]):
        group = words[0].partition("=")[0]
        node = plain(compose(words))[group]
        assert node["callbacks"]["mag"]["_target_"] == "chimera.callback.part.liza.MagSchedule"
