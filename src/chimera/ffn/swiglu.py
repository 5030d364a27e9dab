"""Gated feed-forward network with SiLU (SPEC ffn `swiglu`; QDYT 3.4, arXiv 2002.05202).

(a, b) = split(W_up x),   y = W_down (a ⊙ SiLU(b)),   W_up: d → 2·expand·d,  W_down: expand·d → d
QDYT:                     y = W_down (a_q ⊙ SiLU(b_q)),  a_q, b_q on the quantiser's activation grid

With QDYT's expand = 4, the up projection is d → 8d and its halves have width 4d: 12d² weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chimera.contract import Context, Parts, PositiveFloat, Site
from chimera.contract_gguf import GGUF, NotInGGUF, in_gguf, joined
from chimera.contract_hf import LLAMA_LIKE, unsupported
from chimera.errors import UserError
from chimera.ffn.shared.two_layers import TwoLayer


class SwiGLU(TwoLayer):
    """Feed-forward network with SiLU gate; one up projection computes value and gate.

    Args:
        expand: width of the gated product as a multiple of d; the up projection is twice as wide.
        bias: biases in both layers (ignored by quantisers without biases).
        quantise_halves: round a and b to the activation grid of `quant`, as QDYT 3.4 does; a quant
            without one (none, ternary_weight) leaves them.
    """

    source = "QDYT 3.4; arXiv 2002.05202"
    settings = ("grids",)

    def __init__(
        self,
        site: Site,
        parts: Parts,
        *,
        expand: PositiveFloat = 4,
        bias: bool = False,
        quantise_halves: bool = False,
    ) -> None:
        inner = round(expand * site.dim)
        super().__init__(site, parts, 2 * inner, inner, bias=bias)
        self.grids: nn.ModuleList | None = None
        if quantise_halves:
            halves = (parts.activation(inner), parts.activation(inner))
            self.grids = nn.ModuleList(nn.Identity() if g is None else g for g in halves)

    def activated(self, h: Tensor, ctx: Context) -> Tensor:
        a, b = h.chunk(2, dim=-1)
        if self.grids is not None:
            a, b = (grid(half) for grid, half in zip(self.grids, (a, b), strict=True))
        return a * F.silu(b)

    def gguf(self) -> GGUF:
        """As llama.cpp's gated network: value `ffn_up`, gate `ffn_gate`."""
        if any(not isinstance(grid, nn.Identity) for grid in self.grids or ()):
            raise NotInGGUF("ffn", "quantise_halves=true")
        up = in_gguf(self.up, "quant")
        down = in_gguf(self.down, "quant")
        inner = self.up.weight.shape[0] // 2
        return joined(
            {
                "ffn_up": up.rows(0, inner),
                "ffn_gate": up.rows(inner, 2 * inner),
                "ffn_down": down,
            },
            # Versions of llama.cpp differ in what `bitnet` computes without this key (#25885).
            GGUF(
                keys={"feed_forward_length": inner, "hidden_activation": "silu"},
                needs={"a SiLU gate": frozenset({"llama", "bitnet"})},
            ),
        )

    @classmethod
    def hf_settings(cls, config: Mapping[str, Any], layer: int) -> dict[str, Any] | None:
        """Feed-forward networks of Llama's family."""
        if config["model_type"] not in LLAMA_LIKE:
            return None
        if other := unsupported(config, hidden_act="silu"):
            raise UserError(f"config.json has {other}, which ffn=swiglu lacks")
        expand = config["intermediate_size"] / config["hidden_size"]
        return {"expand": expand, "bias": bool(config.get("mlp_bias"))}

    def hf_tensors(
        self, tensors: Mapping[str, Tensor], config: Mapping[str, Any]
    ) -> dict[str, Tensor]:
        """Value and gate are two matrices there."""
        bias = ("bias",) if "mlp.up_proj.bias" in tensors else ()
        found: dict[str, Tensor] = {}
        for kind in ("weight", *bias):
            halves = [tensors[f"mlp.{name}_proj.{kind}"] for name in ("up", "gate")]
            found |= {
                f"up.{kind}": torch.cat(halves),
                f"down.{kind}": tensors[f"mlp.down_proj.{kind}"],
            }
        return found
