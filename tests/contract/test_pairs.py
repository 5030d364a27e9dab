"""Every pair with a quantiser or a norm trains twenty steps, in which the loss of one batch falls.

The contract tests train every pair one step; here are 1,314 of them, the refused ones aside. All
are slow: `python -m pytest tests/contract/test_pairs.py -m slow` takes about eight minutes.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from chimera.contract_tests import zoo
from chimera.contract_tests.test_parts import pairs
from chimera.errors import UserError

STEPS = 20
#: Rate of AdamW, and share of its first value that the loss is below at the end: of a model, and of
#: an adapter on a frozen one. The largest shares measured were 0.74 (DyT without a feed-forward
#: network) and 0.965 (VeRA).
WHOLE, ADAPTED = (3e-3, 0.8), (5e-2, 0.98)
#: Adapters that these models, which have no classifier's head and are none of transformers, refuse.
REFUSED = ("head_only", "liza")


def trained() -> list[Any]:
    """The pairs with a quantiser or a norm; which are refused is a contract test."""
    return [
        pytest.param(*pair.values, marks=pytest.mark.slow)
        for pair in pairs()
        if {"quant", "norm"} & {pair.values[0], pair.values[2]}
    ]


@pytest.mark.parametrize(("a", "one", "b", "other"), trained())
def test_the_loss_falls(a: str, one: str, b: str, other: str) -> None:
    """The model learns to name the tokens that it is given."""
    try:
        model = zoo.build(zoo.TINY, {a: one, b: other}).train()
    except UserError as refusal:
        assert other in REFUSED or one == "slstm", refusal  # noqa: PT017
        return
    rate, share = ADAPTED if b == "adapter" and other != "none" else WHOLE
    learned = [p for p in model.parameters() if p.requires_grad]
    optimizer, ids, losses = torch.optim.AdamW(learned, lr=rate), zoo.tokens(), []
    for _ in range(STEPS):
        out = model(ids)
        loss = F.cross_entropy(out.logits.flatten(0, 1), ids.flatten())
        optimizer.zero_grad()
        (loss + sum(out.aux.values())).backward()
        optimizer.step()
        losses.append(loss.item())
    assert all(map(math.isfinite, losses))
    assert losses[-1] < share * losses[0]
    assert all(p.isfinite().all() for p in model.parameters())
