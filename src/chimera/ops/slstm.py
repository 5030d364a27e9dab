"""sLSTM cell: scalar memory with recurrent exponential gates (SPEC M13; arXiv 2405.04517).

    (ĩ, f̃, z̃, õ)_t = x_t + R h_{t−1}
    c_t = f_t c_{t−1} + i_t tanh(z̃_t),   n_t = f_t n_{t−1} + i_t       f = σ(f̃), i = exp(ĩ)
    h_t = σ(õ_t) c_t / n_t                                             (eq. 8–18)

The state is c e^{−m}, n e^{−m} with m_t = max(log f_t + m_{t−1}, ĩ_t); after the first token,
n e^{−m} ≥ 1. The gates depend nonlinearly on h_{t−1}, which is not associative: no parallel form
exists, and the code loops over tokens. Operations that are not recurrent run outside the loop, on
all tokens at once: the caller computes input projections, this module the coefficients of the
gradient and the gradient of R. h does not depend on m, so m has no gradient.
Shapes: x [b t n 4·e], gates concatenated; R [n e 4·e]; states [b n e]. Computes in ≥ float32.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from chimera.ops.precision import autocast_off, wide

#: m of an empty memory. Finite, so that differences of m are finite.
EMPTY = -1e30


class Cell(NamedTuple):
    """State: c e^{−m}, n e^{−m}, h and m."""

    c: Float[Tensor, "b n e"]
    n: Float[Tensor, "b n e"]
    h: Float[Tensor, "b n e"]
    m: Float[Tensor, "b n e"]

    @staticmethod
    def empty(batch: int, heads: int, width: int, like: Tensor) -> Cell:
        """State before the first token, on the device and in the dtype (≥ float32) of `like`."""
        c = like.new_zeros(batch, heads, width, dtype=wide(like))
        return Cell(c, c.clone(), c.clone(), torch.full_like(c, EMPTY))


def slstm(
    x: Float[Tensor, "b t n e4"],
    R: Float[Tensor, "n e e4"],
    cell: Cell,
    mask: Bool[Tensor, "b t"] | None = None,
) -> tuple[Float[Tensor, "b t n e"], Cell]:
    """Recurrence over t tokens, differentiable once.

    Args:
        x: input projections of the gates, with biases.
        R: recurrent weights of the gates, per head.
        cell: state before the first token, initially `Cell.empty`.
        mask: True for real tokens; padding does not change the state.

    Returns:
        h in float32 or wider, and the state after the last token.
    """
    dtype = wide(x)
    pre = rearrange(x.to(dtype), "b t n e -> t n b e")
    if mask is not None:
        shut = rearrange(~mask, "b t -> t 1 b 1")
        i, f, rest = pre.tensor_split([pre.shape[-1] // 4, pre.shape[-1] // 2], -1)
        # i = 0 and f = 1: padding adds nothing and forgets nothing.
        i, f = i.masked_fill(shut, float("-inf")), f.masked_fill(shut, float("inf"))
        pre = torch.cat([i, f, rest], -1)
    real = None if mask is None else rearrange(mask, "b t -> t 1 b 1")
    old = [s.to(dtype).transpose(0, 1) for s in cell]
    with autocast_off(x):
        h, c, n, m = _Scan.apply(pre, R.to(dtype), *old, real)
    y = rearrange(h, "t n b e -> b t n e")
    return y, Cell(*(s.transpose(0, 1) for s in (c, n, h[-1], m)))


class _Scan(torch.autograd.Function):
    """Loop over tokens on tensors [t n b e]; buffers are allocated before the loop."""

    @staticmethod
    def forward(
        ctx: Any,
        pre: Tensor,
        R: Tensor,
        c: Tensor,
        n: Tensor,
        h: Tensor,
        m: Tensor,
        real: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        t, heads, b, width = pre.shape
        raw = torch.empty_like(pre)
        saved, out = (pre.new_empty(k, t, heads, b, width // 4) for k in (4, 1))
        enter, forget, cs, ns, hs = (s.unbind() for s in (*saved, *out))
        initial = (c, n, h)
        for j, (from_input, gates) in enumerate(zip(pre.unbind(), raw.unbind(), strict=True)):
            torch.baddbmm(from_input, h, R, out=gates)
            i, f, z, o = gates.chunk(4, -1)
            log_f = F.logsigmoid(f).add_(m)
            m = torch.maximum(log_f, i)
            torch.sub(i, m, out=enter[j]).exp_()
            torch.sub(log_f, m, out=forget[j]).exp_()
            z.tanh_()
            o.sigmoid_()
            c = torch.addcmul(enter[j] * z, forget[j], c, out=cs[j])
            n = torch.addcmul(enter[j], forget[j], n, out=ns[j])
            new = torch.mul(o, c, out=hs[j])
            # n is 0 before the first real token; `where` discards the resulting NaN.
            h = new.div_(n) if real is None else new.copy_(torch.where(real[j], new / n, h))
        ctx.save_for_backward(R, raw, saved, out[0], *initial, real)
        ctx.mark_non_differentiable(m)
        return out[0], c.clone(), n.clone(), m

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dh: Tensor, dc: Tensor, dn: Tensor, dm: Tensor) -> tuple:
        R, raw, saved, h, c0, n0, h0, real = ctx.saved_tensors
        enter, forget, c, n = saved
        _, f, z, o = raw.chunk(4, -1)
        previous = [torch.cat([a[None], s[:-1]]) for a, s in ((c0, c), (n0, n), (h0, h))]
        shut = forget * (-f).sigmoid()
        zero = torch.zeros_like(c)
        # ∂c, ∂n, ∂h by (ĩ, f̃, z̃, õ), and ∂h by c, n: the factors that are not recurrent.
        by_c = torch.stack([enter * z, shut * previous[0], enter * (1 - z * z), zero], -2)
        by_n = torch.stack([enter, shut * previous[1], zero, zero], -2)
        by_h = torch.stack([zero, zero, zero, h * (1 - o)], -2)
        of_c, of_n = o / n, -h / n
        if real is not None:
            by_h, of_c, of_n = (
                by_h.masked_fill(~real[..., None], 0),
                of_c.masked_fill(~real, 0),
                of_n.masked_fill(~real, 0),
            )
        gates, back = torch.empty_like(by_c), R.mT.contiguous()
        later = torch.zeros_like(h0)
        for j in range(len(dh) - 1, -1, -1):
            later = later + dh[j]
            dc = torch.addcmul(dc, later, of_c[j])
            dn = torch.addcmul(dn, later, of_n[j])
            dgates = torch.mul(dc.unsqueeze(-2), by_c[j], out=gates[j])
            dgates.addcmul_(dn.unsqueeze(-2), by_n[j]).addcmul_(later.unsqueeze(-2), by_h[j])
            carried = dgates.flatten(-2) @ back
            later = carried if real is None else torch.where(real[j], carried, later)
            dc, dn = dc * forget[j], dn * forget[j]
        dpre = gates.flatten(-2)
        dR = torch.einsum("tnbe,tnbg->neg", previous[2], dpre)
        return dpre, dR, dc, dn, later, None, None
