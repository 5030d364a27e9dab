"""Language model: backbone and vocabulary head."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from chimera.errors import UserError
from chimera.model.backbone import Backbone, State
from chimera.model.head import Head
from chimera.ops.cross_entropy import cross_entropy


@dataclass(frozen=True)
class Prediction:
    """Output of a language model: logits [n v] at chosen positions, or [b t v] at all positions.

    `state`, `aux` and `stats` are those of `Out`. With targets, `loss` and `accuracy` are set and
    logits are empty (n = 0).
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
        self.backbone = backbone
        self.head = head

    def init_state(self, batch: int) -> State:
        """Empty decoding state for `batch` sequences."""
        return self.backbone.init_state(batch)

    @torch.no_grad()
    def check_length(self, length: int) -> None:
        """Check that the model accepts `length` positions, by one token at the last position.

        Learned positions and the factors of attention-free transformers have tables of limited
        length. Call this before training or decoding.

        Raises:
            UserError: from the component with the shorter table.
        """
        self.backbone.check_positions(length)
        training = self.training
        self.eval()  # running statistics must not change
        try:
            try:
                state = self.init_state(1)
            except UserError:  # a mixer without a state: its declared limit is all that is known
                return
            state = state._replace(seen=torch.full_like(state.seen, length - 1), length=length - 1)
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
        draws: Int[Tensor, " b"] | None = None,
        documents: Int[Tensor, "b t"] | None = None,
    ) -> Prediction:
        """Logits, or loss and accuracy if `targets` are given.

        Args:
            ids, mask, state, draws, documents: see `Backbone.forward`.
            index: flat positions (in b·t order) at which to apply the head; None for all.
            targets: token ids to predict at these positions; the loss never has all logits in
                memory.
            at_once: number of logits in memory at one time, with targets.
        """
        packed = {} if documents is None else {"documents": documents}  # others need not take it
        out = self.backbone(ids, mask, state, draws, **packed)
        x = out.y if index is None else out.y.flatten(0, 1).index_select(0, index)
        if targets is None:
            return Prediction(self.head(x), out.state, out.aux, out.stats)
        x = x.reshape(-1, x.shape[-1])
        width = self.head.vocab_size
        loss, accuracy = cross_entropy(self.head, x, targets, width=width, at_once=at_once)
        no_logits = x.new_empty(0, width)
        return Prediction(no_logits, out.state, out.aux, out.stats, loss, accuracy)
