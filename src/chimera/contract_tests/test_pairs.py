"""Every pair of choices of the six groups trains one step, or raises an error with their names."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest
import torch

from chimera.contract_tests import zoo
from chimera.errors import UserError


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


@pytest.mark.sampled(100)
@pytest.mark.parametrize(("a", "one", "b", "other"), pairs())
def test_pair_trains_a_step_or_is_refused(a: str, one: str, b: str, other: str) -> None:
    try:
        model = zoo.build(zoo.tiny(one if a == "mixer" else "attention"), {a: one, b: other})
    except UserError as refusal:
        line = str(refusal)
        assert "\n" not in line
        # An adapter that rejects Chimera's models raises an error with its name.
        named = [(b, other)] if b == "adapter" else [(a, one), (b, other)]
        assert all(f"{group}={name}" in line for group, name in named)
        return
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    out = model(zoo.tokens(), index=torch.tensor([3, 5, 20]))
    targets = torch.tensor([1, 2, 3])
    loss = torch.nn.functional.cross_entropy(out.logits, targets) + sum(out.aux.values())
    loss.backward()
    before = [p.detach().clone() for p in model.parameters()]
    optimizer.step()
    assert torch.isfinite(loss)
    assert any(not torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))
