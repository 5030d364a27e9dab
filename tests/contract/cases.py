"""Every component in a tiny model, with padded texts: cases for precision and graphs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
import yaml
from torch import Tensor

from chimera.config.groups import pattern_depth
from chimera.contract_tests import zoo

DECODED = 3  # tokens, one by one, after the padded prompt
VOCAB = 64
Padding = Literal["left", "right", "both"]
#: Settings of the model that are no component.
SETTINGS = [f"norm_placement={place}" for place in ("post", "output", "sandwich", "peri")]
SETTINGS += ["qk_norm=true", "embedding_norm=true"]


@dataclass(frozen=True)
class Case:
    """A component in a tiny model whose other groups have plain choices.

    Args:
        group: of the choice; `model` for a setting of the model, with rotations.
        name: of the choice, or `<setting>=<value>`.
        causal: a decoder.
        length: tokens of the longest text.
        padding: on which side; `both` for texts of each.
        depth: layers.
        dim: width.
    """

    group: str
    name: str
    causal: bool
    length: int
    padding: Padding
    depth: int = 2
    dim: int = zoo.TINY.dim

    def model(self) -> Any:
        """The model; every parameter matters, and sums over tokens grow with their number.

        The latter by a vector that all embeddings share, as in trained models.

        Raises:
            UserError: the component is refused in this model.
        """
        shape = {"max_len": self.length + DECODED, "depth": self.depth, "dim": self.dim}
        chosen = {self.group: self.name}
        if self.group == "model":
            key, _, value = self.name.partition("=")
            shape, chosen = shape | {key: yaml.safe_load(value)}, {"position": "rope"}
        settings = replace(zoo.TINY, **shape)  # type: ignore[arg-type]
        model = zoo.build(settings, chosen, causal=self.causal)
        with torch.no_grad():
            for p in model.parameters():
                p.add_(0.05 * torch.randn_like(p))
            table = model.backbone.embedding.weight
            assert isinstance(table, Tensor)
            table.add_(2 * table.std() * torch.randn_like(table[0]))
        return model

    def mask(self) -> Tensor:
        """[4 t]: a text of full length, two shorter ones, one of three tokens."""
        lengths = torch.tensor([self.length, self.length * 5 // 8, self.length // 3, 3])
        right = torch.arange(self.length) < lengths[:, None]
        left = {"right": [0, 0, 0, 0], "left": [1, 1, 1, 1], "both": [0, 1, 0, 1]}[self.padding]
        return torch.where(torch.tensor(left).bool()[:, None], right.flip(1), right)

    def ids(self) -> Tensor:
        """[4 t], random."""
        return zoo.tokens(4, self.length, VOCAB)


def cases(only: Iterable[str] = (), **where: Any) -> Iterator[Case]:
    """Every component: mixers in decoders and encoders, the others, and SETTINGS, in a decoder.

    Args:
        only: names; none for all.
        where: fields of each case; `depth` is by default two, of a pattern as its members need.
    """
    for group in zoo.ZOO:
        for name in zoo.names(group):
            for causal in (True, False) if group == "mixer" else (True,):
                if not only or name in only:
                    layers = {"depth": pattern_depth(name)} if group == "mixer" else {}
                    yield Case(group, name, causal, **layers | where)
    for name in SETTINGS:
        if not only or name in only:
            yield Case("model", name, True, **where)
