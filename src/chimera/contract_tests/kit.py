"""Helpers of the tests: masks of padded batches, comparison of nested tensors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor


def ragged(lengths: Iterable[int], *, left: bool) -> Tensor:
    """[b t] mask of sequences of these lengths, padded on the left or on the right."""
    lengths = list(lengths)
    width = max(lengths)
    rows = [[False] * (width - n) + [True] * n for n in lengths]
    return torch.tensor([row if left else row[::-1] for row in rows])


def close(a: Any, b: Any, tol: float = 1e-9) -> None:
    """Tensors or nested tuples/lists of them agree to `tol`, relative and absolute."""
    if isinstance(a, Tensor):
        torch.testing.assert_close(a, b, rtol=tol, atol=tol)
    elif isinstance(a, (tuple, list)):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            close(x, y, tol)
    else:
        assert a == b
