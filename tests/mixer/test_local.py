"""Sliding window and sparse block against a reference with one query at a time (SPEC M3, M4)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
from einops import rearrange
from torch import Tensor, nn

from chimera.contract import Position
from chimera.mixer.sliding_window import SlidingWindow
from chimera.mixer.sparse_block import SparseBlock
from chimera.ops import local
from chimera.position.none import NoPosition
from tests.kit import close, ctx, double, parts, site
from tests.mixer import forms
from tests.reference import local as reference

WINDOW = 5


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


def window(causal: bool = True, size: int = WINDOW, position: Any = NoPosition, **more: Any) -> Any:
    chosen = parts(position=position)
    return double(lambda: SlidingWindow(site(causal=causal), chosen, window=size, **more))


def block(causal: bool = True, size: int = WINDOW, position: Any = NoPosition, **more: Any) -> Any:
    chosen = parts(position=position)
    return double(lambda: SparseBlock(site(causal=causal), chosen, block=size, **more))


def near(kind: Any, causal: bool, size: int = WINDOW) -> Callable[[int, int], bool]:
    if kind is window:
        return lambda i, j: (0 if causal else 1 - size) <= i - j < size
    return lambda i, j: i // size == j // size and (j <= i or not causal)


def expected(mixer: Any, x: Tensor) -> Tensor:
    """Texts [b t d] by the reference, with the mixer's projections."""
    return torch.stack([_one(mixer, row) for row in x])


def _one(mixer: Any, x: Tensor) -> Tensor:
    kind = window if isinstance(mixer, SlidingWindow) else block
    size = mixer.window if kind is window else mixer.block
    rule = near(kind, mixer.causal, size)
    projections = (mixer.q_proj, mixer.k_proj, mixer.v_proj)
    q, k, v = (p(x[None]).unflatten(-1, (-1, 8)).transpose(1, 2) for p in projections)
    q, k = mixer.position.rotate(q, k, torch.arange(len(x))[None])
    k, v = (y.repeat_interleave(4 // y.shape[1], 1) for y in (k, v))
    bias = None
    if isinstance(mixer.position, Sloped):

        def bias(i: int, j: int) -> Tensor:
            return -mixer.position.slope * abs(i - j)

    y = reference.attention(q[0], k[0], v[0], rule, bias)
    return mixer.o_proj(rearrange(y, "h t k -> t (h k)"))


BOTH_KINDS = pytest.mark.parametrize("kind", [window, block])


class TestWindow(forms.Forms):
    build, oracle = staticmethod(window), staticmethod(expected)
    options: ClassVar = [
        *({"position": Sloped, "form": form} for form in ("banded", "dense")),
        {"kv_heads": 2},
        {"size": 1},
    ]
    encoders, wide, tokens, tol = True, False, (23,), 1e-9


class TestBlock(TestWindow):
    build = staticmethod(block)
    options: ClassVar = [{"position": Sloped}, {"kv_heads": 2}]


class TestLong(TestWindow):
    """A window that is no multiple of a block of queries, and longer texts than one."""

    options: ClassVar = [{"size": 100}]
    tokens = (150,)


class TestLongBlock(TestLong):
    build = staticmethod(block)
    options: ClassVar = [{"size": 64}]


@BOTH_KINDS
def test_padding_in_the_middle_changes_nothing(kind: Any) -> None:
    mixer = kind(True)
    mask = torch.rand(3, 30) < 0.6
    x = torch.randn(3, 30, 32, dtype=torch.float64)
    y = mixer(x, ctx(mask)).y
    for row, got, real in zip(x, y, mask, strict=True):
        close(got[real], mixer(row[real][None], ctx(tokens=int(real.sum()))).y[0])


@pytest.mark.parametrize("kind", [window, block])
def test_memory_is_linear(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of computed scores grows with t, not with t²."""
    asked = []
    fused = local.sdpa

    def count(q: Tensor, k: Tensor, *rest: Any, **more: Any) -> Tensor:
        asked.append(q.shape[0] * q.shape[2] * k.shape[2])
        return fused(q, k, *rest, **more)

    monkeypatch.setattr(local, "sdpa", count)
    mixer = kind(True, 64)
    for t in (512, 1024):
        mixer(torch.randn(1, t, 32, dtype=torch.float64), ctx(tokens=t))
    assert asked[1] == 2 * asked[0]
    assert asked[1] <= 2 * 64 * 1024
