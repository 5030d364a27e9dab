"""Every pair of choices of the six groups trains, or raises an error with their names.

Each pair takes one step. A pair with a quantiser or a norm also takes twenty steps of AdamW, in
which the loss on one batch has to fall.
"""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from chimera.contract_tests import zoo
from chimera.errors import UserError
from chimera.model.language import LanguageModel

#: Steps of a pair with a choice of the groups in TRAINED, and the rate.
STEPS, RATE = 20, 3e-3
TRAINED = {"quant", "norm"}
#: Share of its first value that the loss falls below.
FALLS = 0.9


def pairs() -> list[Any]:
    """All pairs; those in which each choice meets each other group at least once are fast."""
    found = []
    for a, b in combinations(zoo.ZOO, 2):
        fewer = min(len(zoo.names(a)), len(zoo.names(b)))
        for i, one in enumerate(zoo.names(a)):
            for j, other in enumerate(zoo.names(b)):
                marks = [pytest.mark.slow] * bool((i + j) % fewer)
                found.append(pytest.param(a, one, b, other, marks=marks))
    return found


def trained() -> list[Any]:
    """The pairs with a quantiser or a norm; all are slow."""
    marks = [pytest.mark.slow]
    return [
        pytest.param(*pair.values, marks=marks)
        for pair in pairs()
        if TRAINED & {pair.values[0], pair.values[2]}
    ]


def build(a: str, one: str, b: str, other: str) -> LanguageModel | None:
    """A tiny model in training; None if the pair is refused in one line with both names."""
    try:
        return zoo.build(zoo.TINY, {a: one, b: other}).train()
    except UserError as refusal:
        line = str(refusal)
        assert "\n" not in line
        # An adapter that rejects Chimera's models raises an error with its name.
        named = [(b, other)] if b == "adapter" else [(a, one), (b, other)]
        assert all(f"{group}={name}" in line for group, name in named)
        return None


@pytest.mark.parametrize(("a", "one", "b", "other"), pairs())
def test_pair_trains_a_step_or_is_refused(a: str, one: str, b: str, other: str) -> None:
    model = build(a, one, b, other)
    if model is None:
        return
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    out = model(zoo.tokens(), index=torch.tensor([3, 5, 20]))
    targets = torch.tensor([1, 2, 3])
    loss = F.cross_entropy(out.logits, targets) + sum(out.aux.values())
    loss.backward()
    before = [p.detach().clone() for p in model.parameters()]
    optimizer.step()
    assert torch.isfinite(loss)
    assert any(not torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))


@pytest.mark.parametrize(("a", "one", "b", "other"), trained())
def test_pair_with_a_quantiser_or_norm_trains_twenty_steps(
    a: str, one: str, b: str, other: str
) -> None:
    """It learns to name the tokens of one batch."""
    model = build(a, one, b, other)
    if model is None:
        return
    learned = [p for p in model.parameters() if p.requires_grad]
    optimizer, ids, losses = torch.optim.AdamW(learned, lr=RATE), zoo.tokens(), []
    for _ in range(STEPS):
        out = model(ids)
        loss = F.cross_entropy(out.logits.flatten(0, 1), ids.flatten())
        optimizer.zero_grad()
        (loss + sum(out.aux.values())).backward()
        optimizer.step()
        losses.append(loss.item())
    assert all(map(torch.isfinite, torch.tensor(losses)))
    assert losses[-1] < FALLS * losses[0]
    assert all(torch.isfinite(p).all() for p in model.parameters())
