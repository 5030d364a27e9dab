"""The sentence on runs of the same seeds on a processor and a GPU."""

from __future__ import annotations

from benchmarks.two_machines import Key, page


def test_pairs_have_row_seed_and_rate_in_common() -> None:
    here: dict[Key, float] = {("a", 0, 0.1): 4.0, ("a", 1, 0.1): 4.1, ("b", 0, 0.1): 5.0}
    there: dict[Key, float] = {("a", 0, 0.1): 4.01, ("a", 1, 0.1): 4.08, ("b", 0, 0.2): 6.0}
    text = page(here, there)
    assert "`a` +0.0100, -0.0200; in the mean -0.005 ± 0.021." in text
    assert "`b`" not in text
    assert page(here, {}) == "No runs yet.\n"
