"""The table of errors measures what the tests of each mixer hold, and the page has every row."""

from __future__ import annotations

import pytest

from chimera.contract_tests.zoo import names
from chimera.paths import ROOT
from tests.mixer.errors import COMPOSED, FORMS, ORACLES, errors, new_files, state


@pytest.mark.parametrize(
    "name", [n if n == "hgrn2" else pytest.param(n, marks=pytest.mark.slow) for n in ORACLES]
)
def test_each_form_is_the_oracle(name: str) -> None:
    found = errors(name)
    assert set(found) == set(FORMS)
    assert max(max(pair) for pair in found.values()) < 1e-10
    assert min(pair[1] for pair in found.values()) > 0  # something was compared


def test_the_page_has_each_newer_mixer() -> None:
    page = (ROOT / "docs" / "newer-mixers.md").read_text(encoding="utf-8")
    for name in (*ORACLES, *COMPOSED):
        assert name in names("mixer")
        assert f"\n| `{name}` |" in page, name


@pytest.mark.slow
def test_states_grow_or_not_and_files_are_those_of_no_older_mixer() -> None:
    assert state("gla") == "32,768"
    assert state("mla") == "1,152 per token"
    assert new_files("gla") == [
        "mixer/shared/gated.py", "ops/carry.py", "ops/channels.py", "ops/pairs.py",
    ]  # fmt: skip
