"""Places of norms in a block, the norm of embeddings, and the norm of queries and keys."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from chimera.contract_tests import zoo
from chimera.contract_tests.zoo import padding_is_neutral
from chimera.errors import UserError
from chimera.model.language import LanguageModel
from tests.kit import close, ctx

PLACEMENTS = ("pre", "post", "output", "sandwich", "peri")


def build(causal: bool = False, mixer: str = "attention", **settings: object) -> LanguageModel:
    made = zoo.build(replace(zoo.TINY, **settings), {"mixer": mixer}, causal=causal)
    with torch.no_grad():
        for p in made.parameters():
            p.add_(0.1 * torch.randn_like(p))
    return made.double().eval()


def by_equation(model: LanguageModel, ids: Tensor, placement: str) -> Tensor:
    """Hidden states by the equations at the head of `model.block`."""
    body, where = model.backbone, ctx(tokens=ids.shape[1])
    x = body.scale(body.embedding(ids)) if body.scale else body.embedding(ids)
    x = body.embedding_norm(x) if placement == "peri" else x
    for block in body.blocks:
        branches = (
            (lambda z, b=block: b.mixer(z, where).y, block.mixer_norm, block.mixer_out_norm),
            (lambda z, b=block: b.ffn(z, where).y, block.ffn_norm, block.ffn_out_norm),
        )
        for f, norm, out in branches:
            match placement:
                case "pre":
                    x = x + f(norm(x))
                case "post":
                    x = norm(x + f(x))
                case "output":
                    x = x + norm(f(x))
                case _:
                    x = x + out(f(norm(x)))
    return body.norm(x)


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_blocks_are_their_equations(placement: str) -> None:
    model = build(norm_placement=placement)
    ids = zoo.tokens()
    close(model.backbone(ids).y, by_equation(model, ids, placement), 1e-10)
    norms = {"sandwich": 4, "peri": 4}.get(placement, 2) * zoo.TINY.depth + 1
    count = sum("norm" in name and name.endswith("weight") for name in model.backbone.state_dict())
    assert count == norms + (placement == "peri")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("placement", PLACEMENTS[1:])
def test_padding_changes_nothing(placement: str, left: bool) -> None:
    model = build(norm_placement=placement, qk_norm=True)
    padding_is_neutral(model, [zoo.tokens(1, n)[0] for n in (5, 9)], left=left)


def test_queries_and_keys_have_length_one_before_they_are_rotated() -> None:
    """Scaling W_q or W_k changes nothing, the weights of the norm do."""
    model = build(causal=True, qk_norm=True)
    ids = zoo.tokens()
    before = model(ids).logits
    attention = model.backbone.blocks[0].mixer
    attention.q_proj.weight.data.mul_(7)
    close(model(ids).logits, before, 1e-5)
    q, k = torch.randn(2, 1, 4, 5, 8).double()
    norm = attention.position
    got = norm.rotate(q, k, torch.arange(5)[None])
    for x, y, weight in zip((q, k), got, (norm.q_weight, norm.k_weight), strict=True):
        close(y, weight * x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt(), 1e-10)
    norm.k_weight.data.mul_(2)
    assert not torch.allclose(model(ids).logits, before, atol=1e-3)


def test_a_mixer_without_queries_and_keys_is_refused_in_one_line() -> None:
    with pytest.raises(
        UserError, match=r"model\.qk_norm=true needs queries and keys to rotate; mixer=mamba"
    ):
        build(causal=True, mixer="mamba", qk_norm=True)
