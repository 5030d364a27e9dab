"""Sliding window and sparse block against a reference with one query at a time (SPEC M3, M4)."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from chimera.contract import Position
from chimera.mixer.sliding_window import SlidingWindow
from chimera.mixer.sparse_block import SparseBlock
from chimera.ops import local
from tests.kit import close, ctx
from tests.mixer import forms
from tests.mixer.forms import join, split
from tests.reference.attention import local_attention


class Sloped(Position):
    """Position with rotation and a learned bias, both dependent on position."""

    provides = frozenset({"rotate", "bias"})

    def __init__(self, site: Any, heads: int, head_dim: int) -> None:
        super().__init__(site, heads, head_dim)
        self.slope = nn.Parameter(torch.linspace(-0.5, 0.5, heads))

    def rotate(self, q: Tensor, k: Tensor, pos: Tensor) -> tuple[Tensor, Tensor]:
        turn = (0.1 * pos).cos()[:, None, :, None]
        return q * turn, k * turn

    def bias(self, pos_q: Tensor, pos_k: Tensor) -> Tensor:
        apart = (pos_q[:, None, :, None] - pos_k[:, None, None, :]).abs()
        return -self.slope[None, :, None, None] * apart


class TestWindow(forms.Forms):
    mixer, given = SlidingWindow, {"window": 5}
    options: ClassVar = [
        *({"position": Sloped, "form": form} for form in ("banded", "dense", "scores")),
        {"kv_heads": 2},
        {"window": 1},
    ]
    encoders, wide, tokens, tol = True, False, (23,), 1e-9

    @staticmethod
    def near(m: Any, i: int, j: int) -> bool:
        return (0 if m.causal else 1 - m.window) <= i - j < m.window

    @classmethod
    def oracle(cls, m: Any, x: Tensor) -> Tensor:
        """Each text by the reference, with the mixer's projections."""
        q, k, v = (split(p(x), p.out_features // 8) for p in (m.q_proj, m.k_proj, m.v_proj))
        q, k = m.position.rotate(q, k, torch.arange(x.shape[1])[None])
        k, v = (y.repeat_interleave(4 // y.shape[1], 1) for y in (k, v))

        def bias(i: int, j: int) -> Tensor:
            return -m.position.slope * abs(i - j)

        own = bias if isinstance(m.position, Sloped) else None
        y = [
            local_attention(*text, lambda i, j: cls.near(m, i, j), own)
            for text in zip(q, k, v, strict=True)
        ]
        return m.o_proj(join(torch.stack(y)))


class TestBlock(TestWindow):
    mixer, given = SparseBlock, {"block": 5}
    options: ClassVar = [{"position": Sloped}, {"kv_heads": 2}]

    @staticmethod
    def near(m: Any, i: int, j: int) -> bool:
        return i // m.block == j // m.block and (j <= i or not m.causal)


class TestLongWindow(TestWindow):
    """A window that is no multiple of a block of queries, and longer texts than one."""

    options: ClassVar = [{"window": 100}]
    tokens = (150,)


class TestLongBlock(TestBlock):
    options: ClassVar = [{"block": 64}]
    tokens = (150,)


@pytest.mark.parametrize("kind", [TestWindow, TestBlock])
def test_padding_in_the_middle_changes_nothing(kind: Any) -> None:
    mixer, mask = kind.build(), torch.rand(3, 30) < 0.6
    x = torch.randn(3, 30, 32, dtype=torch.float64)
    y = mixer(x, ctx(mask)).y
    for row, got, real in zip(x, y, mask, strict=True):
        close(got[real], mixer(row[real][None], ctx(tokens=int(real.sum()))).y[0])


@pytest.mark.parametrize(
    ("kind", "size"), [(TestWindow, {"window": 64}), (TestBlock, {"block": 64})]
)
def test_memory_is_linear(kind: Any, size: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of computed scores grows with t, not with t²."""
    asked = []
    fused = local.sdpa

    def count(q: Tensor, k: Tensor, *rest: Any, **more: Any) -> Tensor:
        asked.append(q.shape[0] * q.shape[2] * k.shape[2])
        return fused(q, k, *rest, **more)

    monkeypatch.setattr(local, "sdpa", count)
    mixer = kind.build(**size)
    for t in (512, 1024):
        mixer(torch.randn(1, t, 32, dtype=torch.float64), ctx(tokens=t))
    assert asked[1] == 2 * asked[0]
    assert asked[1] <= 2 * 64 * 1024
