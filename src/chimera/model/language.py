"""A backbone and a head: the model that tasks train."""

from __future__ import annotations

from dataclasses import dataclass, field

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from chimera.model.backbone import Backbone, State
from chimera.model.head import Head


@dataclass(frozen=True)
class Prediction:
    """Logits [n v] at the positions asked for, [b t v] if none were; the rest as in `Out`."""

    logits: Float[Tensor, "*n v"]
    state: State | None = None
    aux: dict[str, Tensor] = field(default_factory=dict)
    stats: dict[str, Tensor] = field(default_factory=dict)


class LanguageModel(nn.Module):
    """Token ids to vocabulary logits."""

    def __init__(self, backbone: Backbone, head: Head) -> None:
        super().__init__()
        self.backbone, self.head = backbone, head

    def init_state(self, batch: int) -> State:
        """A fresh decoding state for `batch` sequences."""
        return self.backbone.init_state(batch)

    def forward(
        self,
        ids: Int[Tensor, "b t"],
        mask: Bool[Tensor, "b t"] | None = None,
        *,
        index: Int[Tensor, " n"] | None = None,
        state: State | None = None,
    ) -> Prediction:
        """Logits at `index`, flat positions in b·t order; everywhere if it is None."""
        out = self.backbone(ids, mask, state)
        x = out.y if index is None else out.y.flatten(0, 1).index_select(0, index)
        return Prediction(self.head(x), out.state, out.aux, out.stats)
