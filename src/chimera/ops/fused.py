"""Causal chunkwise recurrences by kernels of flash-linear-attention, on inputs that they support.

    decayed linear recurrence   fla.ops.simple_gla       (module `decay`, arXiv 2312.06635)
    delta rule, n_h steps       fla.ops.delta_rule, gated_delta_rule, gated_delta_product
                                (module `delta`, arXiv 2406.06484, 2502.10297)

The kernels run for half precision only (bf16 or fp16, the dtype of v under autocast): they compute
products in the precision of the inputs and reject or round float32, which torch computes exactly.
States are float32 in both cases. The extra `gpu` installs the library. Without the library, on a
CPU or for an unsupported shape, `decay` and `delta` compute the same numbers in torch.

CHIMERA_FUSED=0 turns the kernels off. TRITON_INTERPRET=1 runs them on a CPU, slowly, for tests
without a GPU.
"""

from __future__ import annotations

import os
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor
from torch.torch_version import TorchVersion

from chimera.ops.precision import HALF

#: Smallest and largest head width that the kernels support.
NARROWEST, WIDEST = 16, 256
#: Versions of Triton, the last excluded, that compute gradients of decays of tokens wrongly on
#: Hopper. The library refuses them there (its issue 640), in the backward pass.
WRONG_ON_HOPPER = "3.4.0", "3.7.1"
HOPPER = 9

State = Float[Tensor, "b h k v"]


def suits(q: Float[Tensor, "*n k"], v: Float[Tensor, "*m v"], decay: Tensor | None) -> bool:
    """True if the kernels support these inputs: half precision, GPU, library, head widths, decay.

    Args:
        q, v: queries and values.
        decay: log-decay of heads [h] or of tokens [b h t]; None for no decay.
    """
    narrow, wide = sorted((q.shape[-1], v.shape[-1]))
    fits = v.dtype in HALF and narrow >= NARROWEST and wide <= WIDEST
    serves = v.is_cuda or os.environ.get("TRITON_INTERPRET") == "1"
    return fits and serves and _installed() and not (_of_tokens(decay) and wrong(v.device))


def _of_tokens(decay: Tensor | None) -> bool:
    """Whether the kernels take a decay of each token: one of heads has no gradient there."""
    return decay is not None and (decay.ndim > 1 or decay.requires_grad)


@cache
def wrong(device: torch.device) -> bool:
    """Whether Triton computes gradients of decays of tokens wrongly on this device."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device)[0] != HOPPER:
        return False
    first, mended = WRONG_ON_HOPPER
    return first <= TorchVersion(version("triton")) < mended


def decayed(
    q: Float[Tensor, "b h t k"],
    k: Float[Tensor, "b h t k"],
    v: Float[Tensor, "b h t v"],
    g: Float[Tensor, " h"] | Float[Tensor, "#b h t"] | None,
    state: State | None,
) -> tuple[Float[Tensor, "b h t v"], State | None]:
    """As `decay.chunkwise` with causal=True."""
    from fla.ops.simple_gla import chunk_simple_gla

    rates = None
    if g is not None and _of_tokens(g):
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
    """As `delta.chunkwise`, with one state per query head and one step size per step."""
    steps = k.shape[3]
    k, v, beta = (rearrange(x, "b h t n k -> b h (t n) k") for x in (k, v, beta))
    q, k, v, beta = _tokens_first(v.dtype, q, k, v, beta)
    sizes = beta.squeeze(-1)
    g = None if decay is None else rearrange(decay, "b h t -> b t h").float().contiguous()
    first = None if state is None else state.float().contiguous()
    return_state = state is not None
    if steps > 1:
        from fla.ops.gated_delta_product import chunk_gated_delta_product

        o, last = chunk_gated_delta_product(q, k, v, g, sizes, steps, 1.0, first, return_state)
    elif g is None:
        from fla.ops.delta_rule import chunk_delta_rule

        o, last = chunk_delta_rule(q, k, v, sizes, 1.0, first, return_state)
    else:
        from fla.ops.gated_delta_rule import chunk_gated_delta_rule

        o, last = chunk_gated_delta_rule(q, k, v, g, sizes, 1.0, first, return_state)
    return rearrange(o, "b t h v -> b h t v"), last


def _tokens_first(dtype: torch.dtype, *parts: Tensor) -> tuple[Tensor, ...]:
    return tuple(rearrange(x.to(dtype), "b h t k -> b t h k").contiguous() for x in parts)


@cache
def _installed() -> bool:
    return os.environ.get("CHIMERA_FUSED") != "0" and find_spec("fla") is not None
