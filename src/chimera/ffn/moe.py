"""Sparse mixture of experts (SPEC F1; TITAN 6, arXiv 2101.03961, 2006.16668).

    g(x) = softmax(W_g x)                        router in float32, no bias       (eq. 38)
    y    = Σ_{i in top-k} ḡᵢ Eᵢ(x),   ḡᵢ = gᵢ / Σ_{j in top-k} gⱼ                 (eq. 39, 40)
    C    = ⌈CF · kT / N⌉ rows per expert; y = 0 for dropped rows          (eq. 45, SPEC E10)

T is the number of real tokens that this process has; padding is not routed and has y = 0. One sort
groups choices by expert. Each expert runs on its rows only: k·T rows in total, for any N. The
numbers of rows are fetched from the device once per layer, which also breaks the graph of
torch.compile. On a GPU and in a graph, experts with a capacity have C rows each, some empty; in
training, one product computes a layer of experts that differ in their weights alone.

Eq. 45 itself has C = ⌈CF · T / N⌉, which counts tokens, but each token has k = 2 choices: even a
perfectly even router drops 1 − 1.25/2 = 37.5 % of the choices in training, and evaluation drops
none. With the choices counted, as in GShard, an even router drops none; `capacity_of: tokens` is
the paper's letter. Encoders assign all first choices before second choices. Decoders assign
choices in the order of tokens; otherwise, a later token's first choice could displace an earlier
token's second choice. In evaluation, experts drop nothing by default, so that a result does not
depend on other sequences of the batch.
"""

from __future__ import annotations

from typing import Any, Literal

from einops import rearrange
from torch import Tensor, nn

from chimera.contract import FFN, Context, FFNFactory, Out, Parts, PositiveFloat, PositiveInt, Site
from chimera.ffn.shared.experts import as_rows, load_stats, run_experts, run_seated
from chimera.ops.routing import Groups, Seats, balance, blend, group, probabilities, seat
from chimera.ops.together import few_kernels


class MoE(FFN):
    """Sparse mixture of experts with top-k routing; aux loss `balance`. [b t d] to [b t d].

    Args:
        expert: factory of the experts, any other ffn.
        experts: number of experts N (4 in TITAN Table 1, 8 in its abstract).
        top_k: experts per token. With top_k=1 the gate is g itself: a gate renormalised to 1 has
            no gradient.
        capacity_factor: CF in training; None drops nothing.
        eval_capacity_factor: CF in evaluation; None drops nothing.
        capacity_of: factor of CF: k·T/N for `choices`, T/N for `tokens` (eq. 45 as written).

    Raises:
        ValueError: top_k > experts.
    """

    source = "F1, E2, E3; TITAN 6; arXiv 2101.03961"

    def __init__(
        self,
        site: Site,
        parts: Parts,
        *,
        expert: FFNFactory,
        experts: PositiveInt = 4,
        top_k: PositiveInt = 2,
        capacity_factor: PositiveFloat | None = 1.25,
        eval_capacity_factor: PositiveFloat | None = None,
        capacity_of: Literal["tokens", "choices"] = "choices",
    ) -> None:
        super().__init__()
        if top_k > experts:
            raise ValueError(f"ffn top_k={top_k} is more than experts={experts}: lower top_k")
        self.top_k = top_k
        self.causal = site.causal
        per_expert = (top_k if capacity_of == "choices" else 1) / experts
        self.capacity = {
            training: None if factor is None else factor * per_expert
            for training, factor in ((True, capacity_factor), (False, eval_capacity_factor))
        }
        #: What is counted on each process alone, where several train together.
        self.per_process = ("the capacity of ffn=moe",) if capacity_factor else ()
        self.router = nn.Linear(site.dim, experts, bias=False)
        self.experts = nn.ModuleList(expert(site, parts) for _ in range(experts))

    def forward(self, x: Tensor, ctx: Context) -> Out:
        rows, real = as_rows(x, ctx)
        probs = probabilities(rows, self.router.weight)
        gates, chosen = probs.topk(self.top_k, dim=-1)
        if self.top_k > 1:
            gates = gates / gates.sum(-1, keepdim=True)
        capacity = self.capacity[self.training]
        how: dict[str, Any] = {"count": len(self.experts), "in_order": self.causal}
        groups: Groups | Seats
        if capacity is not None and few_kernels(rows):
            groups = seat(chosen, gates, real, capacity=capacity, **how)
            y, inner = run_seated(self.experts, rows, ctx, groups)
        else:
            groups = group(chosen, gates, real, capacity=capacity, **how)
            y, inner = run_experts(self.experts, rows, ctx, groups, training=self.training)
        return Out(
            rearrange(y, "(b t) d -> b t d", b=x.shape[0]),
            aux=blend((1.0, {"balance": balance(probs, chosen[:, 0], real)}), (1.0, inner)),
            stats=load_stats(groups, probs, real),
        )
