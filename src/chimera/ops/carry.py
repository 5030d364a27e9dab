"""States before each of n chunks, from what each chunk adds and how much it forgets.

    S_{c+1} = exp(t_c) S_c + s_c,    c = 0 … n − 1,    t ≤ 0

By matrix products over groups of chunks, without a loop over chunks. The weights between chunks are
those of `ops.pairs`, or in few kernels of `decay.differences`: none is the difference of two large
sums, so also in float32, a chunk that forgets everything costs its neighbours no digits.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from chimera.ops.decay import differences
from chimera.ops.pairs import Pairs, pairs
from chimera.ops.together import few_kernels

#: Number of chunks whose states one matrix product combines; longer sequences recurse on groups.
GROUP = 32


def carry(
    sums: Float[Tensor, "x n v"], total: Float[Tensor, "x n"], first: Float[Tensor, "x v"] | None
) -> tuple[Float[Tensor, "x n v"], Float[Tensor, "x v"]]:
    """States before each chunk, and after the last.

    Args:
        sums: s, numbers that each chunk adds.
        total: t, log-decay of the state over each chunk.
        first: state before the first chunk; None for zeros.
    """
    x, n, v = sums.shape
    size = min(GROUP, 1 << (n - 1).bit_length())
    if missing := -n % size:  # chunks that add nothing and forget nothing
        sums, total = F.pad(sums, (0, 0, 0, missing)), F.pad(total, (0, missing))
    groups = sums.shape[1] // size
    sums, total = sums.reshape(x * groups, size, v), total.reshape(x * groups, size)
    w = between(total)
    before, after = w.products[0, 0] @ sums, (w.after.exp().mT @ sums)[:, 0]
    kept = w.before.exp()
    if groups == 1:
        if first is not None:
            before = torch.addcmul(before, kept, first[:, None])
            after = torch.addcmul(after, w.whole.exp(), first)
        return before[:, :n], after
    outer, last = carry(after.view(x, groups, v), w.whole.view(x, groups), first)
    before = torch.addcmul(before, kept, outer.reshape(x * groups, 1, v))
    return before.view(x, groups * size, v)[:, :n], last


def between(g: Float[Tensor, "n c"]) -> Pairs:
    """Weights exp(Σ_{r<i<s} g_i) between tokens r < s of a chunk, and sums to its ends."""
    if few_kernels(g):  # the levels of `pairs` are a dozen kernels each
        total = F.pad(g.cumsum(-1), (1, 0))
        apart = differences(g, total)
        later = torch.ones(g.shape[-1], g.shape[-1], dtype=torch.bool, device=g.device).tril(-1)
        weights = apart[:, :-1].masked_fill(~later, float("-inf")).exp()
        after = apart[:, -1:]
        return Pairs(weights[None, None], total[:, :-1, None], after.mT, total[:, -1:])
    ones = torch.ones_like(g)[..., None, None]
    return pairs(ones, ones, g[..., None])
