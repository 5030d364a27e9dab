"""Rotation of query and key pairs by their positions (arXiv 2104.09864; TITAN eq. 18-19).

Pairs are (2i, 2i+1), interleaved, as in the RoFormer and RetNet papers. (Hugging Face's Llama pairs
i with i + k/2; a permutation of the weights turns the one into the other.)
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor


def angles(
    pos: Int[Tensor, "b t"], theta: Float[Tensor, " half"]
) -> tuple[Float[Tensor, "b 1 t half"], Float[Tensor, "b 1 t half"]]:
    """cos and sin of pos·theta, at least in float32 so that far positions stay exact."""
    phase = pos[:, None, :, None].to(theta.dtype) * theta
    return phase.cos(), phase.sin()


def rotate(
    x: Float[Tensor, "b h t k"],
    cos: Float[Tensor, "b 1 t half"],
    sin: Float[Tensor, "b 1 t half"],
) -> Float[Tensor, "b h t k"]:
    """Each pair (x₂ᵢ, x₂ᵢ₊₁) turned by its angle; the result has the dtype of x."""
    even, odd = x[..., 0::2], x[..., 1::2]
    turned = torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1)
    return turned.flatten(-2).to(x.dtype)
