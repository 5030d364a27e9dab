"""A backbone and a head: the model that tasks train."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from chimera.model.backbone import Backbone, State
from chimera.model.head import Head
from chimera.ops.cross_entropy import cross_entropy


@dataclass(frozen=True)
class Prediction:
    """Logits [n v] at the chosen positions, [b t v] without a choice; the rest as in `Out`.

    With targets: `loss` and `accuracy`, and no logits (n = 0).
    """

    logits: Float[Tensor, "*n v"]
    state: State | None = None
    aux: dict[str, Tensor] = field(default_factory=dict)
    stats: dict[str, Tensor] = field(default_factory=dict)
    loss: Float[Tensor, ""] = field(default_factory=lambda: torch.tensor(torch.nan))
    accuracy: Float[Tensor, ""] = field(default_factory=lambda: torch.tensor(torch.nan))


class LanguageModel(nn.Module):
    """Token ids to vocabulary logits."""

    def __init__(self, backbone: Backbone, head: Head) -> None:
        super().__init__()
        self.backbone, self.head = backbone, head

    def init_state(self, batch: int) -> State:
        """A fresh decoding state for `batch` sequences."""
        return self.backbone.init_state(batch)

    @torch.no_grad()
    def check_reach(self, length: int) -> None:
        """Run one token at the last of `length` positions, so that a table that ends raises now.

        Tables of positions and of the factors of attention-free transformers end. Called before
        training or decoding, this fails before the work.

        Raises:
            UserError: from the part whose table is shorter.
        """
        training = self.training
        self.eval()  # no statistic may move
        try:
            state = self.init_state(1)
            state = state._replace(seen=torch.full_like(state.seen, length - 1))
            self.backbone(torch.zeros_like(state.seen)[:, None], None, state)
        finally:
            self.train(training)

    def forward(
        self,
        ids: Int[Tensor, "b t"],
        mask: Bool[Tensor, "b t"] | None = None,
        *,
        index: Int[Tensor, " n"] | None = None,
        state: State | None = None,
        targets: Int[Tensor, " n"] | None = None,
        at_once: int = 1 << 25,
    ) -> Prediction:
        """Logits at `index`, flat positions in b·t order; everywhere if it is None.

        Args:
            ids, mask, state: see `Backbone.forward`.
            index: where the head is applied.
            targets: ids to predict there; the loss is computed without all logits at one time.
            at_once: logits held at one time, with targets.
        """
        out = self.backbone(ids, mask, state)
        x = out.y if index is None else out.y.flatten(0, 1).index_select(0, index)
        if targets is None:
            return Prediction(self.head(x), out.state, out.aux, out.stats)
        x, width = x.reshape(-1, x.shape[-1]), self.head.vocab_size
        loss, accuracy = cross_entropy(self.head, x, targets, width=width, at_once=at_once)
        none = x.new_empty(0, width)
        return Prediction(none, out.state, out.aux, out.stats, loss, accuracy)
