"""Forms of a mixer agree, and its state has the bytes that its form says."""

from __future__ import annotations

import pytest

from benchmarks import forms


@pytest.mark.slow
@pytest.mark.parametrize(("name", "grows"), [("gated_delta", False), ("attention", True)])
def test_errors_and_bytes(name: str, grows: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forms, "CONTEXTS", (64, 256))
    found = forms.measured(name)
    assert found["decoded_fp64"] < 1e-12
    assert 1e-12 < found["decoded_fp32"] < 1e-4
    short, long = found["state_bytes"].values()
    if grows:  # keys and values of a token, width 64, fp32
        assert (short, long) == (64 * 2 * 64 * 4, 256 * 2 * 64 * 4)
    else:
        assert short == long > 0


def test_an_error_is_a_share_of_the_largest_value() -> None:
    assert forms.error(forms.tokens(3) + 1, forms.tokens(3) + 1) == 0.0
