"""Helpers of the tests: masks of padded batches, comparison of nested tensors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

#: Tokens of the texts in a padded batch: odd, the longest, short.
LENGTHS = (11, 16, 3)


def ragged(lengths: Iterable[int], *, left: bool) -> Tensor:
    """[b t] mask of sequences of these lengths, padded on the left or on the right."""
    lengths = list(lengths)
    width = max(lengths)
    rows = [[False] * (width - n) + [True] * n for n in lengths]
    return torch.tensor([row if left else row[::-1] for row in rows])


def pad(rows: Sequence[Tensor], *, left: bool) -> tuple[Tensor, Tensor]:
    """Rows of ids in one batch [b t] with arbitrary ids at padding, and the mask [b t]."""
    mask = ragged([len(row) for row in rows], left=left)
    ids = torch.full(mask.shape, 7)
    ids[mask] = torch.cat(list(rows))
    return ids, mask


@torch.no_grad()
def padding_is_neutral(model: nn.Module, rows: Sequence[Tensor], *, left: bool) -> None:
    """A model gives the texts of a padded batch the logits of each text alone."""
    ids, mask = pad(rows, left=left)
    padded = model(ids, mask).logits
    assert torch.isfinite(padded).all()
    for row, got, real in zip(rows, padded, mask, strict=True):
        close(got[real], model(row[None]).logits[0])


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
