"""Effective rank of low-rank updates, and the proximal step that makes gates sparse (SPEC A3, A5).

    r_eff(ΔW) = exp(−Σᵢ pᵢ ln pᵢ),   pᵢ = σᵢ/Σⱼ σⱼ                              (SAIDL 3.3)
    prox_t(z) = sign(z)·max(|z| − t, 0)                                        (SAIDL 3.4)

σ are the singular values of ΔW = B A. They are computed from r × r matrices: with B = Q_b R_b and
Aᵀ = Q_a R_a, they are the singular values of R_b R_aᵀ.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from chimera.ops.precision import wide, widen


def soft_threshold(z: Float[Tensor, "*n"], t: float) -> Float[Tensor, "*n"]:
    """Proximal operator of t·‖·‖₁: exactly zero where |z| ≤ t."""
    return F.softshrink(z, t)


def singular_values(b: Float[Tensor, "o r"], a: Float[Tensor, "r i"]) -> Float[Tensor, " n"]:
    """The n = min(o, r, i) singular values of B A, in descending order."""
    left = torch.linalg.qr(widen(b), mode="r").R
    right = torch.linalg.qr(a.mT.to(wide(b)), mode="r").R
    return torch.linalg.svdvals(left @ right.mT)


def entropy_rank(b: Float[Tensor, "o r"], a: Float[Tensor, "r i"]) -> Float[Tensor, ""]:
    """Effective rank of B A: 1 for one nonzero σ, r for r equal σ; 0 if B A = 0."""
    sizes = singular_values(b, a)
    total = sizes.sum()
    shares = sizes / total.clamp(min=torch.finfo(sizes.dtype).tiny)
    return torch.where(total > 0, torch.special.entr(shares).sum().exp(), 0.0)
