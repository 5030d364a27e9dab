"""Base of feed-forward networks of two linear layers: y = W_down f(W_up x).

Networks that differ in their weights alone are computed at once, each for its own rows: the experts
of a mixture on a GPU (`ffn.shared.experts`).
"""

from __future__ import annotations

from typing import Any, ClassVar, cast

from jaxtyping import Float
from torch import Tensor, nn

from chimera.contract import FFN, Context, Out, Parts, Site
from chimera.ops.together import hooked


class TwoLayer(FFN):
    """Two linear layers; a subclass has the function f between them, `activated`.

    Args:
        site, parts: see `FFN`.
        up: outputs of the first layer.
        down: inputs of the second layer.
        bias: biases in both layers (ignored by quantisers without biases).
    """

    #: Attributes that `activated` reads. A subclass is computed at once only if it lists its own.
    settings: ClassVar[tuple[str, ...]]
    lists_settings: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        cls.lists_settings = "settings" in vars(cls)

    def __init__(self, site: Site, parts: Parts, up: int, down: int, *, bias: bool) -> None:
        super().__init__()
        self.up = parts.linear(site.dim, up, bias=bias, role="up")
        self.down = parts.linear(down, site.dim, bias=bias, role="down")

    def activated(self, h: Float[Tensor, "b t up"], ctx: Context) -> Float[Tensor, "b t down"]:
        """f: inputs of the second layer from outputs of the first."""
        raise NotImplementedError

    def forward(self, x: Tensor, ctx: Context) -> Out:
        return Out(self.down(self.activated(self.up(x), ctx)))

    def alike(self, other: Any) -> bool:
        """Whether both differ in their weights alone."""
        if not self.lists_settings or type(other) is not type(self) or hooked(self, other):
            return False
        pairs = ((self.up, other.up), (self.down, other.down))
        stack = all(hasattr(one, "stacks") and one.stacks(two) for one, two in pairs)
        return stack and all(getattr(self, x) == getattr(other, x) for x in self.settings)

    def at_once(
        self, x: Float[Tensor, "e c d"], ctx: Context, every: nn.ModuleList
    ) -> Float[Tensor, "e c d"]:
        """What networks that are alike give, each for its own rows."""
        h = self.activated(self.up.stacked(x, [each.up for each in every]), ctx)
        return cast(Tensor, self.down.stacked(h, [each.down for each in every]))
