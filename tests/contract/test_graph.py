"""torch.compile sees one graph: no component breaks it, but the mixtures of experts."""

from __future__ import annotations

import pytest

from tests.contract.cases import Case, cases
from tests.contract.graph import breaks
from tests.contract.test_half_precision import name

EVERY = cases(length=16, padding="both", depth=1)
#: `liza` is for Hugging Face models, `head_only` for models with a classifier.
REFUSED = {("adapter", "liza"), ("adapter", "head_only")}
ALL = [case for case in EVERY if (case.group, case.name) not in REFUSED]
#: One of those that broke the graph.
SOME = {"hbit"}
#: The sizes of the groups of tokens are needed on the host (`ops.routing.group`).
BREAKING = {"moe", "moe_shared"}


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
