"""Every component in fp16 and bf16 against float32: forward, backward and decoding, padded.

`tests.contract.precision` derives the bounds; `python -m tests.contract.precision` prints all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from chimera.config.groups import pattern_depth
from chimera.errors import UserError
from tests.contract.cases import Case, Padding, cases
from tests.contract.precision import DRAWS, measure

HALVES = ("fp16", "bf16")
#: Adapters for Hugging Face models, and for classifiers, only.
REFUSED = ("liza", "head_only")
QUICK = list(cases(length=128, padding="both", depth=1))
HALVES_OF_EACH = [(case.group, case, half) for case in QUICK for half in HALVES]
LONG = [c for p in ("left", "right") for c in cases(length=2048, padding=p)]  # type: ignore[arg-type]


def name(case: Case | str) -> str:
    if isinstance(case, str):
        return case
    return f"{case.group}={case.name}-{'decoder' if case.causal else 'encoder'}-{case.padding}"


def check(case: Case, *halves: str, draws: Sequence[int] = (2, 8)) -> None:
    """Check every pass of a case, by a bound from so many draws.

    The bound is a maximum over draws, so few draws give one that is too low: a case outside of it
    is measured again with the next number. Code that leaves the bound leaves each of them.
    """
    if case.group == "adapter" and case.name in REFUSED:
        with pytest.raises(UserError, match=f"adapter={case.name}"):
            measure(case, halves)
        return
    for count in draws:
        rows = measure(case, halves, draws=count)
        assert {row.what for row in rows} >= {"forward", "backward"}
        outside = [str(row) for row in rows if row.share > 1]
        if not outside:
            return
    assert not outside


@pytest.mark.sampled(4, each=("group",))
@pytest.mark.parametrize(("group", "case", "half"), HALVES_OF_EACH, ids=name)
def test_128_tokens(group: str, case: Case, half: str) -> None:
    check(case, half)


@pytest.mark.parametrize(("mixer", "length"), [("linear", 1200), ("titan_memory", 128)])
def test_what_leaves_fp16(mixer: str, length: int) -> None:
    """Sums over 1200 tokens (linear); a padded row has norm 0 (titan_memory)."""
    check(Case("mixer", mixer, True, length, "both", depth=1), "fp16")


@pytest.mark.slow
@pytest.mark.parametrize("padding", ["left", "right"])
@pytest.mark.parametrize("case", QUICK, ids=name)
def test_128_tokens_two_layers(case: Case, padding: Padding) -> None:
    layers = pattern_depth(case.name) if case.group == "mixer" else 2
    check(replace(case, padding=padding, depth=layers), *HALVES, draws=(DRAWS, 4 * DRAWS))


@pytest.mark.slow
@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("case", LONG, ids=name)
def test_2048_tokens(case: Case, half: str) -> None:
    """Two draws at first, as at 128 tokens: each takes seconds, minutes with a bias of scores."""
    check(case, half, draws=(2, 8, 4 * DRAWS))
