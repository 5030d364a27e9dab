"""torch.compile sees one graph: no component breaks it, but `ffn=moe_shared`.

A break ends a graph: the compiler returns to Python, often for a number that it has to fetch from
the device. Counted are breaks in training with a padding mask, forward pass, of a model of one
layer whose other groups have plain choices. The backend is `eager`: only tracing costs time.
"""

from __future__ import annotations

import pytest
import torch
from torch._dynamo.utils import counters

from tests.contract.cases import Case, cases
from tests.contract.test_half_precision import name

EVERY = cases(length=16, padding="both", depth=1)
#: `liza` is for Hugging Face models, `head_only` for models with a classifier.
REFUSED = {("adapter", "liza"), ("adapter", "head_only")}
ALL = [case for case in EVERY if (case.group, case.name) not in REFUSED]
#: One of those that broke the graph.
SOME = {"hbit"}
#: The sizes of the groups of tokens are needed on the host (`ops.routing.group`).
BREAKING = {"moe_shared"}


def breaks(case: Case) -> list[str]:
    """The reason of each break, a line each.

    Raises:
        UserError: the component is refused in this model.
    """
    torch.manual_seed(0)
    model, ids, mask = case.model().train(), case.ids(), case.mask()
    torch._dynamo.reset()
    counters.clear()
    found = torch._dynamo.explain(model)(ids, mask)
    return [f"{r.reason.splitlines()[0]} ({_place(r)})" for r in found.break_reasons]


def _place(reason: object) -> str:
    stack = getattr(reason, "user_stack", None) or []
    for frame in reversed(stack):
        if "chimera" in frame.filename:
            return f"{frame.filename.rpartition('chimera/')[2]}:{frame.lineno}"
    return "elsewhere"


def check(case: Case) -> None:
    found = breaks(case)
    assert bool(found) == (case.name in BREAKING), found


@pytest.mark.parametrize("case", [c for c in ALL if c.name in SOME and c.causal], ids=name)
def test_some_break_no_graph(case: Case) -> None:
    check(case)


@pytest.mark.slow
@pytest.mark.parametrize("case", ALL, ids=name)
def test_every_component(case: Case) -> None:
    check(case)
