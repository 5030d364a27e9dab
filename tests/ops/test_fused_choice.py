"""Which inputs go to flash-linear-attention's kernels, with the library or without it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from chimera.ops import fused

GPU = torch.device("cuda", 0)


@pytest.fixture(autouse=True)
def afresh() -> Iterator[None]:
    fused.wrong.cache_clear()
    yield
    fused.wrong.cache_clear()


@pytest.mark.parametrize(
    ("capability", "triton", "wrong"),
    [((9, 0), "3.6.0", True), ((9, 0), "3.7.1", False), ((9, 0), "3.3.1", False),
     ((9, 0), "3.10.0", False), ((8, 0), "3.6.0", False), ((10, 0), "3.6.0", False)],
)  # fmt: skip
def test_where_triton_errs(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], triton: str, wrong: bool
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(fused, "version", {"triton": triton}.__getitem__)
    assert fused.wrong(GPU) is wrong
    assert not fused.wrong(torch.device("cpu"))


@pytest.mark.parametrize("wrong", [True, False])
def test_decays_of_tokens_stay_with_torch_there(
    monkeypatch: pytest.MonkeyPatch, wrong: bool
) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(fused, "_installed", lambda: True)
    monkeypatch.setattr(fused, "wrong", lambda device: wrong)
    half = torch.zeros(1, 2, 8, fused.NARROWEST).half()
    heads = torch.zeros(2)
    assert fused.suits(half, half, torch.zeros(1, 2, 8)) is not wrong
    assert fused.suits(half, half, heads.clone().requires_grad_()) is not wrong  # as of tokens
    assert fused.suits(half, half, heads)
    assert fused.suits(half, half, None)
