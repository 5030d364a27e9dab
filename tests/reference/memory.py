"""Memory of TITAN, eq. 31-32: M_t = α M_{t−1} + (1 − α) k_t v_tᵀ, r_t = M_tᵀ q_t."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from tests.reference.decay import both_sides, recurrence


def read(memory: Any, x: Tensor, *, causal: bool = True) -> Tensor:
    """Reads [b t e] of texts [b t d], with the weights of a `FastWeightMemory`."""
    layers = (memory.q_proj, memory.k_proj, memory.v_proj)
    alpha = memory.alpha_logit.sigmoid()
    q, k, v = (layer(x).unflatten(-1, (len(alpha), -1)).transpose(1, 2) for layer in layers)
    if memory.normalise:
        q, k = q / q.norm(dim=-1, keepdim=True), k / k.norm(dim=-1, keepdim=True)
    k = (1 - alpha)[:, None, None] * k
    r = recurrence(q, k, v, alpha.log())[0] if causal else both_sides(q, k, v, alpha.log())
    return r.transpose(1, 2).flatten(2)
