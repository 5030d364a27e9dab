"""TTT-Linear: a linear model per head that learns from each token by gradient descent.

    ℓ_t(W, b) = ½ ‖f(k_t) − v_t‖²,   f(x) = x + LN(x W + b),   LN with scale and shift per head
    (W, b)_t = (W, b)_{t'} − c_p Σ_{t' < s ≤ t} η_s ∇ℓ_s((W, b)_{t'}),    z_t = f(q_t) with (W, b)_t

(arXiv 2407.04620, sections 2.1–2.5.) t' is the end of the last whole mini-batch of m tokens and p =
t − t' − 1 the place of t in its own: gradients are taken where the mini-batch began. So m changes
the numbers, and W depends on W through LN: a loop over mini-batches is the fastest exact form.
Inside one, the gradients x Gᵀ, G = ∂ℓ/∂(k W + b), are never written out (dual form, section 2.5):

    q_t W_t = q_t W_{t'} − c_p Σ_s (q_t·k_s) η_s G_s

Shapes: q, k, v, z [b h t k]; η [b h t]; c [m]; W [h k k], b, LN [h 1 k]. The state holds how far
(W, b) has moved from its learned start, so that zeros are the empty state, and the sum of the
gradients of a mini-batch that has begun. Computes in float32 or wider, also under autocast.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from chimera.ops.precision import autocast_off, wide

EPS = 1e-6


class Memory(NamedTuple):
    """State of the inner model; m [b h k+1 k] has W, and below it b."""

    moved: Float[Tensor, "b h k1 k"]  # (W, b) of the last whole mini-batch less the learned one
    pending: Float[Tensor, "b h k1 k"]  # Σ η ∇ℓ of the mini-batch that has begun
    begun: Int[Tensor, " b"]  # its tokens

    @staticmethod
    def empty(batch: int, heads: int, k: int, like: Tensor) -> Memory:
        """State before the first token, on the device of `like`."""
        zeros = like.new_zeros(batch, heads, k + 1, k, dtype=wide(like))
        return Memory(zeros, zeros, zeros.new_zeros(batch, dtype=torch.long))


class Model(NamedTuple):
    """Learned start of the inner model, its norm, and the weights c of the places."""

    start: Float[Tensor, "h k1 k"]  # W, and below it b
    scale: Float[Tensor, "h 1 k"]
    shift: Float[Tensor, "h 1 k"]
    places: Float[Tensor, " m"]

    def to(self, dtype: torch.dtype) -> Model:
        return Model(*(x.to(dtype) for x in self))


def chunkwise(
    q: Float[Tensor, "b h t k"],
    k: Float[Tensor, "b h t k"],
    v: Float[Tensor, "b h t k"],
    eta: Float[Tensor, "b h t"],
    model: Model,
    state: Memory | None = None,
    mask: Bool[Tensor, "b t"] | None = None,
) -> tuple[Float[Tensor, "b h t k"], Memory | None]:
    """All tokens, one mini-batch after the other.

    Args:
        q, k, v: queries, keys and values, which are the views of a token (eq. 4 and 5).
        eta: step size η of each token.
        model: the inner model; `places` decides m.
        state: state before the first token. None: the learned start, and no state is returned.
        mask: True for real tokens. Padding changes no state and no mini-batch, wherever it is.

    Returns:
        z, and the state after the last token (None if `state` is None).
    """
    dtype, m, tokens = wide(q, v), len(model.places), q.shape[2]
    with autocast_off(q):
        q, k, v, eta = (x.to(dtype) for x in (q, k, v, eta[..., None]))
        model = model.to(dtype)
        grid, ends = None, None
        if state is None and mask is None:
            moved = pending = q.new_zeros(*q.shape[:2], q.shape[3] + 1, q.shape[3])
            q, k, v, eta = (F.pad(x, (0, 0, 0, -tokens % m)) for x in (q, k, v, eta))
        else:
            before = state or Memory.empty(len(q), q.shape[1], q.shape[3], q)
            moved, pending = before.moved.to(dtype), before.pending.to(dtype)
            grid, ends = _grid(before.begun, mask, tokens)
            length = tokens if state is None else tokens + m - 1
            q, k, v, eta = (_placed(x, grid, length + -length % m) for x in (q, k, v, eta))
        outputs = []
        parts = zip(*(x.split(m, 2) for x in (q, k, v, eta)), strict=True)
        for at, (queries, keys, values, rates) in enumerate(parts):
            z, total = _mini_batch(queries, keys, values, rates, model, moved, pending)
            outputs.append(z)
            new = moved - model.places[-1] * total
            if ends is None:
                moved, pending = new, torch.zeros_like(total)
            else:
                whole = (ends >= m * (at + 1))[:, None, None, None]
                moved, pending = torch.where(whole, new, moved), total.masked_fill(whole, 0)
        z = torch.cat(outputs, 2)
    if grid is not None and ends is not None:
        index = grid.clamp(max=z.shape[2] - 1)[:, None, :, None]
        z = z.take_along_dim(index, 2)
        return z, None if state is None else Memory(moved, pending, ends % m)
    return z[:, :, :tokens], None


def step(
    q: Float[Tensor, "b h 1 k"],
    k: Float[Tensor, "b h 1 k"],
    v: Float[Tensor, "b h 1 k"],
    eta: Float[Tensor, "b h 1"],
    model: Model,
    state: Memory,
    mask: Bool[Tensor, "b 1"] | None = None,
) -> tuple[Float[Tensor, "b h 1 k"], Memory]:
    """One token: a gradient, and a step if it ends its mini-batch. Arguments as of `chunkwise`."""
    dtype, m = wide(q, v), len(model.places)
    real = torch.ones_like(state.begun) if mask is None else mask[:, 0].long()
    with autocast_off(q):
        q, k, v, eta = (x.to(dtype) for x in (q, k, v, eta[..., None]))
        model = model.to(dtype)
        moved, pending = state.moved.to(dtype), state.pending.to(dtype)
        inner = model.start + moved
        g = _gradient(k, v, inner, model) * (eta * real[:, None, None, None])
        pending = pending + _one(k).mT @ g
        place = model.places[state.begun][:, None, None, None]
        z = q + _norm(_one(q) @ (inner - place * pending), model)
        whole = state.begun + real == m
        at = whole[:, None, None, None]
        moved = torch.where(at, moved - model.places[-1] * pending, moved)
        pending = pending.masked_fill(at, 0)
    return z, Memory(moved, pending, (state.begun + real).masked_fill(whole, 0))


def _mini_batch(
    q: Tensor, k: Tensor, v: Tensor, eta: Tensor, model: Model, moved: Tensor, pending: Tensor
) -> tuple[Tensor, Tensor]:
    """z [b h m k] of one mini-batch, and Σ η ∇ℓ of it and `pending`, in the dual form."""
    inner = model.start + moved
    g = _gradient(k, v, inner, model) * eta
    queries, keys = _one(q), _one(k)
    step = (queries @ keys.mT).tril() @ g + queries @ pending
    z = q + _norm(queries @ inner - model.places[:, None] * step, model)
    return z, pending + keys.mT @ g


def _one(x: Float[Tensor, "*n k"]) -> Float[Tensor, "*n k1"]:
    """x and a channel of ones, which reads b."""
    return F.pad(x, (0, 1), value=1.0)


def _norm(x: Float[Tensor, "b h t k"], model: Model) -> Float[Tensor, "b h t k"]:
    return F.layer_norm(x, x.shape[-1:], eps=EPS) * model.scale + model.shift


def _gradient(k: Tensor, v: Tensor, inner: Tensor, model: Model) -> Float[Tensor, "b h t k"]:
    """G = ∂ℓ/∂(k W + b), by LN's derivative."""
    x = _one(k) @ inner
    centred = x - x.mean(-1, keepdim=True)
    rate = (centred.square().mean(-1, keepdim=True) + EPS).rsqrt()
    x = centred * rate
    d = (x * model.scale + model.shift + k - v) * model.scale
    return (d - d.mean(-1, keepdim=True) - x * (d * x).mean(-1, keepdim=True)) * rate


def _grid(
    count: Int[Tensor, " b"], mask: Bool[Tensor, "b t"] | None, tokens: int
) -> tuple[Int[Tensor, "b t"], Int[Tensor, " b"]]:
    """Places of the tokens, counted from the start of the mini-batch that `count` tokens began.

    Padding has a place beyond all. Also the number of places up to the last real token.
    """
    if mask is None:
        return count[:, None] + torch.arange(tokens, device=count.device), count + tokens
    rank = mask.long().cumsum(1)
    places = torch.where(mask, count[:, None] + rank - 1, torch.iinfo(torch.int32).max)
    return places, count + rank[:, -1]


def _placed(x: Float[Tensor, "b h t k"], grid: Int[Tensor, "b t"], length: int) -> Tensor:
    """x at its places, zeros elsewhere, which learn nothing because η is zero there."""
    wide_grid = grid.clamp(max=length)[:, None, :, None].expand_as(x)
    placed = x.new_zeros(*x.shape[:2], length + 1, x.shape[3])
    return placed.scatter(2, wide_grid, x)[:, :, :length]
