"""Fast-weight memory: associative memory of recent tokens (SPEC M9, M10; TITAN eq. 31-32).

    M_t = α M_{t−1} + (1 − α) k_t v_tᵀ,    r_t = M_tᵀ q_t              (causal)
    r_n = (1 − α) Σ_m α^|n−m| (q_n·k_m) v_m                            (bidirectional)

per head, α in (0, 1). TITAN writes r = M q. With M = Σ k vᵀ, however, Mᵀ maps a query to the values
of similar keys, and only Mᵀ q has the width of v if the widths of k and v differ. Keys and queries
are L2-normalised, as usual in associative memories (TITAN does not say), so that a read is an
average of values weighted by similarity and recency. x [b t d] to r [b t v].
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from annotated_types import Gt, Lt
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor, nn

from chimera.ops import decay
from chimera.ops.delta import unit
from chimera.ops.precision import wide
from chimera.ops.together import together

OpenFraction = Annotated[float, Gt(0), Lt(1)]


class FastWeightMemory(nn.Module):
    """One decaying matrix of key-value pairs per head.

    Args:
        dim: model width d; also the total width of queries and of keys over all heads.
        values: total width v of values and of reads over all heads.
        linear: factory of the projections.
        heads: number of matrices; divides d and v.
        alpha: initial value of α, the factor of decay per token.
        learn_alpha: learn α per head; False keeps it constant.
        normalise: L2-normalise queries and keys; False computes eq. 31-32 literally.
        chunk: tokens per chunk of the chunkwise form.
        causal: False selects the bidirectional form, which has no state.

    Raises:
        ValueError: `heads` does not divide both widths.
    """

    undecayed = ("alpha_logit",)

    def __init__(
        self,
        dim: int,
        values: int,
        linear: Callable[..., Any],
        *,
        heads: int,
        alpha: float = 0.9,
        learn_alpha: bool = True,
        normalise: bool = True,
        chunk: int = 64,
        causal: bool = True,
    ) -> None:
        super().__init__()
        if dim % heads or values % heads:
            raise ValueError(f"heads={heads} does not divide both widths, {dim} and {values}")
        self.heads = heads
        self.widths = (dim // heads, values // heads)
        self.normalise = normalise
        self.chunk = chunk
        self.causal = causal
        self.q_proj = linear(dim, dim, bias=False, role="qkv")
        self.k_proj = linear(dim, dim, bias=False, role="qkv")
        self.v_proj = linear(dim, values, bias=False, role="qkv")
        logit = torch.full((heads,), math.log(alpha) - math.log1p(-alpha))
        if learn_alpha:
            self.alpha_logit = nn.Parameter(logit)
        else:
            self.register_buffer("alpha_logit", logit)

    def init_state(self, batch: int) -> decay.State:
        """Zero matrices for `batch` sequences, in float32 or wider."""
        like = self.q_proj.weight
        dtype = wide(like)
        return like.new_zeros(batch, self.heads, *self.widths, dtype=dtype)

    def forward(
        self,
        x: Float[Tensor, "b t d"],
        mask: Bool[Tensor, "b t"] | None = None,
        state: decay.State | None = None,
    ) -> tuple[Float[Tensor, "b t v"], decay.State | None]:
        """Read of each token (in float32 or wider), after its own write, and the last memory."""
        q, k, v = (
            rearrange(y, "b t (h k) -> b h t k", h=self.heads).contiguous()
            for y in together(x, self.q_proj, self.k_proj, self.v_proj)
        )
        if self.normalise:
            q = unit(q)
            k = unit(k)
        logit = self.alpha_logit.to(wide(q))
        written = k * torch.sigmoid(-logit)[:, None, None]  # 1 − α without cancellation
        k, g = decay.masked(written, F.logsigmoid(logit), mask)
        if state is not None and x.shape[1] == 1:
            r, state = decay.step(q, k, v, g, state)
        else:
            r, state = decay.chunkwise(q, k, v, g, state, causal=self.causal, chunk=self.chunk)
        return rearrange(r, "b h t v -> b t (h v)"), state
