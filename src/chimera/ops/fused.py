"""The causal chunkwise recurrences by flash-linear-attention's kernels, where those can run.

    decayed linear recurrence   fla.ops.simple_gla       (module `decay`, arXiv 2312.06635)
    delta rule, n_h steps       fla.ops.delta_rule, gated_delta_rule, gated_delta_product
                                (module `delta`, arXiv 2406.06484, 2502.10297)

They serve half precision only (bf16, fp16: what autocast makes of v): they take their products in
the inputs' precision and refuse or round float32, which stays with torch's exact path. States are
float32 in both. Extra `gpu` installs the library; without it, on a CPU or for a shape that the
kernels do not have, `decay` and `delta` compute the same numbers in torch.

CHIMERA_FUSED=0 turns them off. TRITON_INTERPRET=1 runs them on a CPU, slowly: that is how their
tests go without a GPU.
"""

from __future__ import annotations

import os
from functools import cache
from importlib.util import find_spec

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

HALF = (torch.bfloat16, torch.float16)
#: Widths of a head that the kernels' matrix products can have.
NARROWEST, WIDEST = 16, 256

State = Float[Tensor, "b h k v"]


def suits(q: Float[Tensor, "*n k"], v: Float[Tensor, "*m v"]) -> bool:
    """Whether the kernels can take these: half precision, a GPU, the library, the widths."""
    narrow, wide = sorted((q.shape[-1], v.shape[-1]))
    fits = v.dtype in HALF and narrow >= NARROWEST and wide <= WIDEST
    return fits and (v.is_cuda or os.environ.get("TRITON_INTERPRET") == "1") and _installed()


def decayed(
    q: Float[Tensor, "b h t k"],
    k: Float[Tensor, "b h t k"],
    v: Float[Tensor, "b h t v"],
    g: Float[Tensor, " h"] | Float[Tensor, "#b h t"] | None,
    state: State | None,
) -> tuple[Float[Tensor, "b h t v"], State | None]:
    """`decay.chunkwise`, causal."""
    from fla.ops.simple_gla import chunk_simple_gla

    rates = None
    if g is not None and (g.ndim > 1 or g.requires_grad):  # a constant rate gets no gradient there
        per_token = g[None, :, None] if g.ndim == 1 else g
        rates = rearrange(per_token.expand(*v.shape[:3]), "b h t -> b t h").float().contiguous()
    o, last = chunk_simple_gla(
        *_tokens_first(v.dtype, q, k, v),
        g=rates,
        g_gamma=g.float() if g is not None and rates is None else None,
        scale=1.0,
        initial_state=None if state is None else state.float().contiguous(),
        output_final_state=state is not None,
    )
    return rearrange(o, "b t h v -> b h t v"), last


def delta(
    q: Float[Tensor, "b h t k"],
    k: Float[Tensor, "b h t n k"],
    v: Float[Tensor, "b h t n v"],
    beta: Float[Tensor, "b h t n 1"],
    decay: Float[Tensor, "b h t"] | None,
    state: State | None,
) -> tuple[Float[Tensor, "b h t v"], State | None]:
    """`delta.chunkwise` with one state per query head and one step size per step."""
    steps = k.shape[3]
    k, v, beta = (rearrange(x, "b h t n k -> b h (t n) k") for x in (k, v, beta))
    q, k, v, beta = _tokens_first(v.dtype, q, k, v, beta)
    sizes = beta.squeeze(-1)
    g = None if decay is None else rearrange(decay, "b h t -> b t h").float().contiguous()
    first = None if state is None else state.float().contiguous()
    kept = state is not None
    if steps > 1:
        from fla.ops.gated_delta_product import chunk_gated_delta_product

        o, last = chunk_gated_delta_product(q, k, v, g, sizes, steps, 1.0, first, kept)
    elif g is None:
        from fla.ops.delta_rule import chunk_delta_rule

        o, last = chunk_delta_rule(q, k, v, sizes, 1.0, first, kept)
    else:
        from fla.ops.gated_delta_rule import chunk_gated_delta_rule

        o, last = chunk_gated_delta_rule(q, k, v, g, sizes, 1.0, first, kept)
    return rearrange(o, "b t h v -> b h t v"), last


def _tokens_first(dtype: torch.dtype, *parts: Tensor) -> tuple[Tensor, ...]:
    return tuple(rearrange(x.to(dtype), "b h t k -> b t h k").contiguous() for x in parts)


@cache
def _installed() -> bool:
    return os.environ.get("CHIMERA_FUSED") != "0" and find_spec("fla") is not None
