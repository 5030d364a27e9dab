"""Recurrences of bf16 runs on a GPU by two kernels of our own (`recurrence_triton`).

    h_t = exp(g_t) h_{t−1} + k_t y_tᵀ,    o_t = h_tᵀ q_t + D v_t,    from h = 0
    y_t = β_t v_t, or for the delta rule β_t (v_t − exp(g_t) h_{t−1}ᵀ k_t)

They read q, k, v once and write o, and one state a chunk for the backward pass, in bf16: torch's
own form (`decay`, `delta`, `ssd`) moves several times as many bytes. They serve bf16 alone:
products take factors in TF32, states and sums are float32. Kernels of flash-linear-attention
(`fused`) come first where they serve.

CHIMERA_KERNELS=0 turns them off.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from chimera.ops.kernels import constant, gpu, operation

#: Tokens in a chunk, and the widest heads of which a program holds the state.
CHUNK, WIDEST = 32, 128
#: Of the states that the backward pass reads.
STORED = torch.bfloat16
#: With fewer sequences most of a card would be idle: a program walks a whole one.
FEWEST = 64


def serves(q: Float[Tensor, "b n t k"], v: Float[Tensor, "b h *t v"], *, rule: bool) -> bool:
    """True if the kernels compute these inputs: bf16, GPU, head widths, number of sequences.

    Args:
        q, v: queries and values.
        rule: the delta rule.
    """
    widths = q.shape[-1], v.shape[-1]
    fits = max(widths) <= WIDEST and v.shape[0] * v.shape[1] >= FEWEST
    half = torch.bfloat16 in (q.dtype, v.dtype) and torch.float64 not in (q.dtype, v.dtype)
    return half and fits and sound(v.device, *widths, rule)


@constant
def sound(device: torch.device, k: int, v: int, rule: bool) -> bool:
    """Whether the kernels compute right numbers for these widths of heads on a device."""
    otherwise = "recurrences are computed by torch"
    return gpu(device, "recurrence_triton", otherwise, k, v, rule) is not None


def chunkwise(
    q: Float[Tensor, "b n t k"],
    k: Float[Tensor, "b n t k"],
    v: Float[Tensor, "b h t v"],
    g: Float[Tensor, "b h t"],
    beta: Float[Tensor, "b h t"] | None = None,
    skip: Float[Tensor, " h"] | None = None,
    *,
    rule: bool,
    half: bool = False,
) -> Float[Tensor, "b h t v"]:
    """o in float32, or in bf16 for callers that norm or gate it (relative error 2⁻⁹).

    Args:
        q, k: queries and keys; adjacent value heads share one of n.
        v: values.
        g: log-decay before each token, ≤ 0.
        beta: step sizes; None for 1. The delta rule needs them.
        skip: D of each head, in float32; None for 0.
        rule: the delta rule.
        half: o in bf16 if q or v is.
    """
    half = half and torch.bfloat16 in (q.dtype, v.dtype)
    g = F.pad(g.double(), (0, -g.shape[-1] % CHUNK)).unflatten(-1, (-1, CHUNK)).cumsum(-1)
    return forward(q, k, v, beta, g, skip, rule, half)[0]


@torch.library.custom_op(operation(__name__, "recurrence"), mutates_args=())
def forward(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor | None, g: Tensor, skip: Tensor | None,
    rule: bool, half: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """o, and the states before each chunk; g [b h n c] are sums since the start of a chunk."""
    o, states = _outputs(q, k, v, beta, g, skip, rule, half)
    _kernels().forward(q, k, v, beta, g, skip, o, states, rule)
    return o, states


@forward.register_fake
def _outputs(
    q: Tensor, k: Tensor, v: Tensor, beta: Any, g: Tensor, skip: Any, rule: bool, half: bool
) -> tuple[Tensor, Tensor]:
    o = v.new_empty(v.transpose(1, 2).shape, dtype=torch.bfloat16 if half else torch.float32)
    states = (*g.shape[:3], q.shape[-1], v.shape[-1])
    return o.transpose(1, 2), v.new_empty(states, dtype=STORED)


@torch.library.custom_op(operation(__name__, "recurrence_backward"), mutates_args=())
def backward(
    do: Tensor, q: Tensor, k: Tensor, v: Tensor, beta: Tensor | None, g: Tensor,
    skip: Tensor | None, states: Tensor, rule: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients; of shared queries and keys for each value head, of D for each sequence."""
    grads = _gradients(do, q, k, v, beta, g, skip, states, rule)
    _kernels().backward(do, q, k, v, beta, g, skip, states, grads, rule)
    return grads


@backward.register_fake
def _gradients(
    do: Tensor, q: Tensor, k: Tensor, v: Tensor, beta: Any, g: Tensor, skip: Any, states: Tensor,
    rule: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    b, h, t, _ = v.shape
    heads = [x.new_empty(b, t, h, x.shape[-1]).transpose(1, 2) for x in (q, k, v)]
    shapes = (b, h, t), g.shape, (b, h)
    return *heads, *(v.new_empty(shape, dtype=torch.float32) for shape in shapes)


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.set_materialize_grads(False)  # of the states nobody asks one
    *given, ctx.rule, _ = inputs
    ctx.save_for_backward(*given, output[1])


def _differentiate(ctx: Any, do: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    q, k, v, beta, g, skip, states = ctx.saved_tensors
    *heads, dv, dbeta, dg, dskip = backward(do, q, k, v, beta, g, skip, states, ctx.rule)
    dq, dk = (x.unflatten(1, (q.shape[1], -1)).sum(2) for x in heads)
    sizes = None if beta is None else dbeta.to(beta.dtype)
    return dq, dk, dv, sizes, dg.double(), None if skip is None else dskip.sum(0), None, None


forward.register_autograd(_differentiate, setup_context=_keep)


def _kernels() -> ModuleType:
    return import_module("chimera.ops.recurrence_triton")
