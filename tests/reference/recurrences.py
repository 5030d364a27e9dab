"""Recurrences, memories and convolutions token by token: slow, simple, differentiable."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

# Decayed linear recurrence token by token, and its bidirectional form pair by pair.


def recurrence(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor | None = None, state: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """S_t = exp(g_t) S_{t-1} + k_t v_tᵀ, o_t = S_tᵀ q_t."""
    b, h, t, _ = q.shape
    log = torch.zeros(h).to(q) if g is None else g
    log = (log[None, :, None] if log.ndim == 1 else log).expand(b, h, t)
    s = q.new_zeros(b, h, k.shape[-1], v.shape[-1]) if state is None else state
    outputs = []
    for i in range(t):
        s = log[:, :, i, None, None].exp() * s + k[:, :, i, :, None] * v[:, :, i, None, :]
        outputs.append((s * q[:, :, i, :, None]).sum(-2))
    return torch.stack(outputs, 2), s


def both_sides(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Tensor:
    """o_n = Σ_m w_nm (q_n·k_m) v_m, where w_nm is the product of exp(g) between m and n."""
    t = q.shape[2]
    log = g[None, :, None].expand(1, -1, t) if g.ndim == 1 else g
    apart = [log[:, :, min(n, m) + 1 : max(n, m) + 1].sum(-1) for n in range(t) for m in range(t)]
    w = torch.stack(apart, -1).unflatten(-1, (t, t)).exp()
    return torch.einsum("bhnm,bhnm,bhmv->bhnv", w, torch.einsum("bhnk,bhmk->bhnm", q, k), v)


# Recurrences with a decay per channel, token by token.
#
# GLA (arXiv 2312.06635, eq. 3), and with a rank-one term read from the state (RWKV-7, arXiv
# 2503.14456, section 4; Kimi Delta Attention, arXiv 2510.26692, eq. 1).


def decayed(q: Tensor, k: Tensor, v: Tensor, g: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    """S_t = diag(exp g_t) S_{t−1} + k_t v_tᵀ, o_t = S_tᵀ q_t; s [b h k v]."""
    outputs = []
    for t in range(q.shape[2]):
        s = g[:, :, t, :, None].exp() * s + k[:, :, t, :, None] * v[:, :, t, None]
        outputs.append(torch.einsum("bhkv,bhk->bhv", s, q[:, :, t]))
    return torch.stack(outputs, 2), s


def low_rank(
    q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, g: Tensor, s: Tensor
) -> tuple[Tensor, Tensor]:
    """S_t = (diag(exp g_t) + b_t a_tᵀ) S_{t−1} + k_t v_tᵀ, o_t = S_tᵀ q_t."""
    outputs = []
    for t in range(q.shape[2]):
        move = torch.diag_embed(g[:, :, t].exp()) + b[:, :, t, :, None] * a[:, :, t, None]
        s = move @ s + k[:, :, t, :, None] * v[:, :, t, None]
        outputs.append(torch.einsum("bhkv,bhk->bhv", s, q[:, :, t]))
    return torch.stack(outputs, 2), s


# Delta rule by its definition, token by token (TPTT eq. 10, 16; SPEC M11).


def delta(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, decay: Tensor | None, h: Tensor
) -> tuple[Tensor, Tensor]:
    """q [b h t k], k [b h t n k], v [b h t n v], beta [b h t n 1|k], decay [b h t], h [b h k v]."""
    reads = []
    for t in range(q.shape[2]):
        if decay is not None:
            h = h * decay[:, :, t, None, None].exp()
        for j in range(k.shape[3]):
            key, gate = k[:, :, t, j], beta[:, :, t, j]
            error = gate * v[:, :, t, j] - torch.einsum("bhkv,bhk->bhv", h, gate * key)
            h = h + torch.einsum("bhk,bhv->bhkv", key, error)
        reads.append(torch.einsum("bhkv,bhk->bhv", h, q[:, :, t]))
    return torch.stack(reads, 2), h


# State-space model with a decay per head, token by token (arXiv 2405.21060, eq. 1 and 2).


def ssd(
    x: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, h: Tensor
) -> tuple[Tensor, Tensor]:
    """h_t = exp(Δ_t A) h_{t−1} + Δ_t B_t x_tᵀ, y_t = C_tᵀ h_t, for each head.

    x [b t h p], delta [b t h], A [h], B and C [b t g n] with h a multiple of g, h [b h n p].
    """
    B, C = (y.repeat_interleave(x.shape[2] // y.shape[2], 2) for y in (B, C))
    ys = []
    for t in range(x.shape[1]):
        keep = (delta[:, t] * A).exp()[..., None, None]
        h = keep * h + torch.einsum("bh,bhn,bhp->bhnp", delta[:, t], B[:, t], x[:, t])
        ys.append(torch.einsum("bhn,bhnp->bhp", C[:, t], h))
    return torch.stack(ys, 1), h


# Recurrences of ops.scan and ops.conv token by token: slow, simple, differentiable.


def selective_scan(
    x: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, h: Tensor
) -> tuple[Tensor, Tensor]:
    """h_t = exp(Δ_t A) h_{t−1} + Δ_t B_t x_t, y_t = C_t h_t + D x_t; h [b n e]."""
    h, ys = h.mT, []
    for i in range(x.shape[1]):
        a = torch.exp(delta[:, i, :, None] * A)
        h = a * h + (delta[:, i] * x[:, i])[..., None] * B[:, i, None, :]
        ys.append((h * C[:, i, None, :]).sum(-1) + D * x[:, i])
    return torch.stack(ys, 1), h.mT


def causal_conv(x: Tensor, weight: Tensor, bias: Tensor, tail: Tensor) -> Tensor:
    """y_t = bias + Σ_j w_j ⊙ x_{t−k+1+j} over one sequence x [t d] with k−1 inputs before it."""
    past, k = torch.cat([tail, x]), weight.shape[1]
    return torch.stack([bias + (weight.T * past[i : i + k]).sum(0) for i in range(len(x))])


# Mesa layer by its definition: a system solved for each token (arXiv 2506.05233, section 3).


def mesa(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, g: Tensor, ridge: Tensor, s: Tensor
) -> tuple[Tensor, Tensor]:
    """o_t = G_tᵀ (H_t + Λ)⁻¹ q_t; q, k [b h t k], v [b h t v], β, g [b h t], Λ [h k], s [H, G]."""
    width, outputs = q.shape[-1], []
    for t in range(q.shape[2]):
        key, value = k[:, :, t, :, None], torch.cat([k[:, :, t], v[:, :, t]], -1)[:, :, None]
        s = g[:, :, t, None, None].exp() * s + beta[:, :, t, None, None] * key * value
        x = torch.linalg.solve(s[..., :width] + torch.diag_embed(ridge), q[:, :, t, :, None])
        outputs.append((s[..., width:].mT @ x)[..., 0])
    return torch.stack(outputs, 2), s


# TTT-Linear by its definition: torch differentiates the inner loss (arXiv 2407.04620, 2.1–2.4).


def _normed(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    x = x - x.mean(-1, keepdim=True)
    return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * scale + shift


def ttt(
    q: Tensor, k: Tensor, v: Tensor, eta: Tensor, inner: Tensor, scale: Tensor, shift: Tensor,
    places: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """q, k, v [b h t k], eta [b h t], inner [h k+1 k] (W, then b), places [m]: z, (W, b)_{t'}."""
    outputs, m = [], len(places)
    model = inner.expand(len(q), *inner.shape)
    for t in range(q.shape[2]):
        if t % m == 0:
            start, total = model, 0.0
        x, target, read = (y[:, :, t : t + 1] for y in (k, v, q))
        guess = x + _normed(x @ start[:, :, :-1] + start[:, :, -1:], scale, shift)
        loss = (guess - target).square().sum() / 2
        (g,) = torch.autograd.grad(loss, start, create_graph=True)
        total = total + eta[:, :, t, None, None] * g
        model = start - places[t % m] * total
        outputs.append(read + _normed(read @ model[:, :, :-1] + model[:, :, -1:], scale, shift))
    return torch.cat(outputs, 2), model if q.shape[2] % m == 0 else start


# Cells of xLSTM, token by token, without stabiliser (arXiv 2405.04517, eq. 8–27).


def mlstm(q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """h [h t v], C [h k v] and n [h k] of q, k [h t k], v [h t v], gates [h t]."""
    C = q.new_zeros(q.shape[0], q.shape[2], v.shape[2])
    n = q.new_zeros(q.shape[0], q.shape[2])
    rows = []
    for t in range(q.shape[1]):
        forget, enter = f[:, t].sigmoid(), i[:, t].exp()
        C = forget[:, None, None] * C + enter[:, None, None] * k[:, t, :, None] * v[:, t, None, :]
        n = forget[:, None] * n + enter[:, None] * k[:, t]
        seen = torch.einsum("hk,hk->h", n, q[:, t]).abs().clamp(min=1)
        rows.append(torch.einsum("hkv,hk->hv", C, q[:, t]) / seen[:, None])
    return torch.stack(rows, 1), C, n


def slstm(x: Tensor, R: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """h [t n e], c [n e] and n [n e] of pre-activations x [t 4 n e] (i, f, z, o), R [n 4 e e]."""
    c = norm = h = torch.zeros_like(x[0, 0])
    rows = []
    for pre in x:
        i, f, z, o = pre + torch.einsum("ngoe,ne->gno", R, h)
        c = f.sigmoid() * c + i.exp() * z.tanh()
        norm = f.sigmoid() * norm + i.exp()
        h = o.sigmoid() * c / norm
        rows.append(h)
    return torch.stack(rows), c, norm


# Memory of TITAN, eq. 31-32: M_t = α M_{t−1} + (1 − α) k_t v_tᵀ, r_t = M_tᵀ q_t.


def memory_read(memory: Any, x: Tensor, *, causal: bool = True) -> Tensor:
    """Reads [b t e] of texts [b t d], with the weights of a `FastWeightMemory`."""
    layers = (memory.q_proj, memory.k_proj, memory.v_proj)
    alpha = memory.alpha_logit.sigmoid()
    q, k, v = (layer(x).unflatten(-1, (len(alpha), -1)).transpose(1, 2) for layer in layers)
    if memory.normalise:
        q, k = q / q.norm(dim=-1, keepdim=True), k / k.norm(dim=-1, keepdim=True)
    k = (1 - alpha)[:, None, None] * k
    r = recurrence(q, k, v, alpha.log())[0] if causal else both_sides(q, k, v, alpha.log())
    return r.transpose(1, 2).flatten(2)


# Linear branch of LiZAttention by the paper's equations, token by token (SPEC M12).


def linear_branch(
    q: Tensor, k: Tensor, v: Tensor, *, order: int, trick: str, gate: str, phi: Callable,
    chunk: int, gate_input: str = "normalised", pool: int | str = 3, beta: str | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Reads before the norm (eq. 6) and the last state; q, k, v [b h t k] from the projections."""
    raw = {"k": k, "v": v}
    q, k, v = (torch.nn.functional.silu(x) for x in (q, k, v))
    q, k, v = (x / x.norm(dim=-1, keepdim=True) for x in (q, k, v))
    h, reads, tokens = torch.zeros(*k.shape[:2], k.shape[3], v.shape[3]).to(k), [], k.shape[2]
    virtual, sources = {"k": [], "v": []}, {"k": [], "v": []}
    for t in range(tokens):
        for name, x in (("k", k), ("v", v)):
            virtual[name].append(virtual_tokens(x, t, order, trick))
            source = raw[name] if gate_input == "projected" else x
            sources[name].append(virtual_tokens(source, t, order, trick))
        number = t + 1 if pool == "all" else pool
        pooled = {n: sum(xs[max(0, t - number + 1) :]) / number for n, xs in sources.items()}
        if beta == "scalar":
            pooled = {n: x.mean(-1, keepdim=True) for n, x in pooled.items()}
        step = math.prod(pooled[n].sigmoid() for n in gate)[:, :, None]
        keys, values = (virtual[n][t][:, :, None] for n in "kv")
        read, h = delta(q[:, :, t : t + 1], keys, values, step, None, h)
        reads.append(read)
        h = phi(h) if (t + 1) % chunk == 0 else h
    return torch.cat(reads, 2), h


def virtual_tokens(x: Tensor, t: int, order: int, trick: str) -> Tensor:
    """Virtual tokens [b h n k] of token t, eq. 22 and 23."""
    past = [x[:, :, t - j] if t >= j else torch.zeros_like(x[:, :, t]) for j in range(order)]
    pairs = torch.view_as_complex(x[:, :, t].unflatten(-1, (-1, 2)).contiguous())
    tokens = []
    for m in range(order):
        derived = sum((-1) ** j * math.comb(m, j) * past[j] for j in range(m + 1)) / 2**m
        turn = torch.polar(*torch.tensor([1.0, 2 * math.pi * m / order], dtype=x.dtype))
        rotated = torch.view_as_real(pairs * turn).flatten(-2)
        tokens.append({"derivative": derived, "rotary": rotated, "none": past[0]}.get(trick))
        if trick == "both":
            tokens[-1] = (derived + rotated) / 2
    return torch.stack(tokens, 2)


# Long convolution as a sum over distances.


def long_conv(x: Tensor, h: Tensor) -> Tensor:
    """y_t = Σ_{j≤t} h_j x_{t−j}; x [b t d], h [t d]."""
    return torch.stack(
        [sum(h[j] * x[:, t - j] for j in range(t + 1)) for t in range(x.shape[1])], 1
    )
