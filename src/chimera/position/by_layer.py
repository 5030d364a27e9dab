"""Positions that differ between layers: rotations on some, none on the others (`nope`).

    position of layer l = members[cycle[l mod len(cycle)]]

Layers without positions keep scores that do not fall with distance, beside layers that know the
order (RNoPE, arXiv 2501.18795: 1:1 with windows; SmolLM3: none on every fourth layer). `provides`
is what any member provides, so that every layer's mixer has to honour it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from chimera.contract import Hook, Position, Site
from chimera.position.shared.wrapping import Wrapping

Member = Callable[[Site, int, int], Position]


class ByLayer(Wrapping):
    """The position of this layer, of a list that repeats over the layers.

    Args:
        cycle: names of members in the order of the layers, repeated until the last layer.
        members: positions by name; none that adds to embeddings, which all layers share.

    Raises:
        ValueError: `cycle` is empty or has other names, or a member adds to embeddings.
    """

    provides: ClassVar[frozenset[Hook]] = frozenset({"rotate"})

    def __init__(
        self, site: Site, heads: int, head_dim: int, *, cycle: list[str], members: dict[str, Member]
    ) -> None:
        super().__init__(site, heads, head_dim)
        missing = [name for name in dict.fromkeys(cycle) if name not in members]
        if missing or not cycle:
            raise ValueError(
                f"position.cycle={cycle} has to name members; they are {', '.join(members)}"
            )
        chosen = {name: members[name](site, heads, head_dim) for name in dict.fromkeys(cycle)}
        hooks = frozenset(hook for each in chosen.values() for hook in each.provides)
        if "embed" in hooks:
            adding = next(name for name, each in chosen.items() if "embed" in each.provides)
            raise ValueError(
                f"position.cycle has {adding}, which adds to the embeddings of all layers; use"
                " members that rotate or that bias scores"
            )
        self.wrap(chosen[cycle[site.layer % len(cycle)]], hooks)
