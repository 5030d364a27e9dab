"""Mixture of experts with shared experts, balanced without a loss (`moe_shared`; arXiv 2408.15664).

    s = σ(W_g x) or softmax(W_g x)             router in float32, no bias
    y = Σ_{i ≤ S} Eˢᵢ(x) + Σ_{i in top-k of s + b} ḡᵢ Eᵢ(x),   ḡᵢ = c·sᵢ / Σ_{j in top-k} sⱼ
    bᵢ ← bᵢ + u·sign(mean_j nⱼ − nᵢ)           after each optimiser step           (algorithm 1)

nᵢ counts the real tokens of a step that chose expert i, over all micro-batches and processes. b
only decides which experts are chosen; gates do not have it, so that it needs no gradient. Shared
experts see every token (DeepSeekMoE, arXiv 2401.06066), by a gate σ(w x) with `shared_gate` (Qwen).
No choice is dropped. The callback in the YAML file moves b; without it b stays.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from chimera.contract import (
    FFN,
    Context,
    FFNFactory,
    NonNegativeFloat,
    NonNegativeInt,
    Out,
    Parts,
    PositiveFloat,
    PositiveInt,
    Site,
)
from chimera.ffn.shared.experts import as_rows, load_stats, run_experts
from chimera.ffn.shared.of_transformers import OfQwen3Next
from chimera.ops import reduce
from chimera.ops.dropout import fork
from chimera.ops.precision import autocast_off, wide, widen
from chimera.ops.routing import balance, blend, group
from chimera.ops.straight import recomputing


class SharedMoE(OfQwen3Next, FFN):
    """Mixture of experts beside shared ones; a bias in place of a loss balances the loads.

    Args:
        expert: factory of the experts, shared ones too: any other ffn.
        experts: number of routed experts.
        top_k: routed experts per token.
        shared: number S of shared experts.
        scores: `sigmoid` (DeepSeek-V3) or `softmax` (Qwen) of the router's logits.
        normalise: divide the gates of a token by their sum.
        scale: c, factor of the gates.
        rate: u, change of the bias per step; 0 leaves it out.
        shared_gate: a gate σ(w x) of the shared experts' outputs.
        balance_loss: also return the auxiliary loss `balance`, as ffn=moe.

    Raises:
        ValueError: top_k > experts, or a gate without shared experts.
    """

    source = "arXiv 2408.15664, 2401.06066, 2412.19437"
    bias: Tensor
    loads: Tensor

    def __init__(
        self,
        site: Site,
        parts: Parts,
        *,
        expert: FFNFactory,
        experts: PositiveInt = 8,
        top_k: PositiveInt = 2,
        shared: NonNegativeInt = 1,
        scores: Literal["sigmoid", "softmax"] = "sigmoid",
        normalise: bool = True,
        scale: PositiveFloat = 1.0,
        rate: NonNegativeFloat = 1e-3,
        shared_gate: bool = False,
        balance_loss: bool = False,
    ) -> None:
        super().__init__()
        if top_k > experts:
            raise ValueError(f"ffn top_k={top_k} is more than experts={experts}: lower top_k")
        if shared_gate and not shared:
            raise ValueError("ffn.shared_gate=true needs shared experts; raise ffn.shared")
        self.top_k = top_k
        self.causal = site.causal
        self.rate = rate
        self.scale = scale
        self.scores = scores
        self.normalise = normalise
        self.balance_loss = balance_loss
        self.router = nn.Linear(site.dim, experts, bias=False)
        self.experts = nn.ModuleList(expert(site, parts) for _ in range(experts))
        self.shared = nn.ModuleList(expert(site, parts) for _ in range(shared))
        self.shared_gate = nn.Linear(site.dim, 1, bias=False) if shared_gate else None
        self.register_buffer("bias", torch.zeros(experts))
        self.register_buffer("loads", torch.zeros(experts))

    def forward(self, x: Tensor, ctx: Context) -> Out:
        rows, real = as_rows(x, ctx)
        with autocast_off(rows):
            logits = F.linear(widen(rows), self.router.weight.to(wide(rows)))
        scores = logits.sigmoid() if self.scores == "sigmoid" else logits.softmax(-1)
        chosen = (scores.detach() + self.bias).topk(self.top_k, dim=-1).indices
        gates = scores.gather(-1, chosen)
        if self.normalise:
            gates = gates / gates.sum(-1, keepdim=True)
        groups = group(
            chosen, gates * self.scale, real, count=len(self.experts), in_order=self.causal
        )
        if self.training and not recomputing():
            with torch.no_grad():
                self.loads += reduce.total(self.loads.new_tensor(groups.demand))
        y, inner = run_experts(self.experts, rows, ctx, groups, training=self.training)
        y = rearrange(y, "(b t) d -> b t d", b=x.shape[0])
        reports = [(1.0, inner)]
        probs = scores / scores.sum(-1, keepdim=True)
        if self.balance_loss:
            reports.append((1.0, {"balance": balance(probs, chosen[:, 0], real)}))
        if self.shared:
            together, aux = self._shared(x, ctx)
            y = y + together
            reports = [*reports, *aux]
        return Out(y, aux=blend(*reports), stats=load_stats(groups, probs, real))

    def _shared(
        self, x: Tensor, ctx: Context
    ) -> tuple[Tensor, list[tuple[float, dict[str, Tensor]]]]:
        """Sum of the shared experts in float32 or wider, and their auxiliary losses."""
        count = len(self.experts)
        outs = [each(x, fork(ctx, count + i)) for i, each in enumerate(self.shared)]
        y = torch.stack([widen(out.y) for out in outs]).sum(0)
        if self.shared_gate is not None:
            with autocast_off(x):
                y = y * F.linear(widen(x), self.shared_gate.weight.to(wide(x))).sigmoid()
        return y, [(1.0, out.aux) for out in outs]

    @torch.no_grad()
    def rebalance(self) -> None:
        """Move the bias by the loads since the last call, which are those of all processes."""
        self.bias += self.rate * (self.loads.mean() - self.loads).sign()
        self.loads.zero_()
