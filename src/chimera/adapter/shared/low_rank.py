"""Linear layer with an added low-rank update (SPEC A1-A3; SAIDL 3.3). Without m it is LoRA.

    y = base(x) + s·B (m ⊙ A x),   A [r i], B [o r],   m [r] or none

`base` is any layer from [… i] to [… o], quantised layers included. The update gets x before the
norm, rotation or activation grid of `base`. Parameters are in float32 or wider.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from chimera.ops.dropout import dropout
from chimera.ops.four_bit import dense
from chimera.ops.low_rank import entropy_rank
from chimera.ops.precision import wide
from chimera.ops.shards import whole


def widths(layer: Any) -> tuple[int, int] | None:
    """(d_in, d_out) of a linear layer of Chimera, torch or GPT-2; None for other modules."""
    if getattr(layer, "weight", None) is None:
        return None
    if hasattr(layer, "in_features") and hasattr(layer, "out_features"):
        return layer.in_features, layer.out_features
    if hasattr(layer, "nx") and hasattr(layer, "nf"):  # transformers' Conv1D: weight [i o]
        return layer.nx, layer.nf
    if hasattr(layer, "role"):  # packed
        return layer.shape[1], layer.shape[0]
    return None


def matrix(layer: Any) -> Float[Tensor, "o i"]:
    """Weight of an unpacked layer that `widths` knows, whole: y = matrix · x."""
    weight: Tensor = dense(whole(layer.weight))
    if weight.ndim == 3:  # block-diagonal: [blocks, o/blocks, i/blocks]
        return torch.block_diag(*weight)
    return weight.T if hasattr(layer, "nx") else weight  # transformers' Conv1D: [i o]


class LowRank(nn.Module):
    """Update s·B diag(m) A. Subclasses add m, and names of their tensors in peft's files.

    Args:
        base: adapted layer; gives widths, device and dtype.
        r: rank.
        scale: s.
        dropout: dropout probability of x.
    """

    component = "adapter"
    peft_type: ClassVar[str] = "LORA"  # `peft_type` of adapter_config.json
    file_type: ClassVar[str] = ""  # another one that its files have there; empty: the same
    parts: ClassVar[tuple[str, ...]] = ("A", "B")  # tensors of the file: lora_A, lora_B

    def __init__(self, base: nn.Module, r: int, scale: float, dropout: float) -> None:
        super().__init__()
        sizes = widths(base)
        assert sizes is not None
        self.r = r
        self.scale = scale
        self.dropout = dropout
        self.source: Any = None  # of keys of dropout; `shared.draws` sets it, and the call
        self.call = 0
        like: Any = base.weight
        self.options = {
            "dtype": wide(like) if like.dtype.is_floating_point else torch.float32,
            "device": like.device,
        }
        self.A = nn.Parameter(torch.empty(r, sizes[0], **self.options))
        self.B = nn.Parameter(torch.zeros(sizes[1], r, **self.options))
        nn.init.kaiming_uniform_(self.A, a=math.sqrt(5))

    def diagonal(self) -> Float[Tensor, " r"] | None:
        """Diagonal m; None if m is all ones."""
        return None

    def nonzero_directions(self) -> Bool[Tensor, " r"]:
        """Mask of the directions with nonzero m."""
        m = self.diagonal()
        return whole(torch.ones_like(self.A[:, 0], dtype=torch.bool) if m is None else m != 0)

    def factors(self) -> tuple[Float[Tensor, "o r"], Float[Tensor, "r i"]]:
        """Factors (s·B diag(m), A) of ΔW."""
        m = self.diagonal()
        b = whole(self.B)
        return (b if m is None else b * whole(m)) * self.scale, whole(self.A)

    def delta(self) -> Float[Tensor, "o i"]:
        """ΔW = s·B diag(m) A."""
        b, a = self.factors()
        return b @ a

    @torch.no_grad()
    def effective_rank(self) -> Float[Tensor, ""]:
        """Entropy rank of ΔW (SPEC A5)."""
        return entropy_rank(*self.factors())

    def _dropped(self, x: Float[Tensor, "*b i"]) -> Float[Tensor, "*b i"]:
        """Inputs in the update's precision, after dropout."""
        x = x.to(self.A.dtype)
        if self.dropout:
            keys = None if self.source is None else self.source.keys
            if keys is not None and keys.shape != x.shape[:-1]:  # as in a head on chosen tokens
                keys = None
            x = dropout(x, self.dropout, self.training, keys, self.call)
        return x

    def forward(self, x: Float[Tensor, "*b i"]) -> Float[Tensor, "*b o"]:
        x = self._dropped(x)
        m = self.diagonal()
        return F.linear(F.linear(x, self.A) * (self.scale if m is None else m * self.scale), self.B)

    def added(self, x: Float[Tensor, "*b i"], y: Float[Tensor, "*b o"]) -> Float[Tensor, "*b o"]:
        """Output of the adapted layer, where y is that of its base."""
        return y + self(x).to(y.dtype)

    @property
    def alpha(self) -> float:
        """α in adapter_config.json, from which readers compute s."""
        return self.scale * self.r

    @classmethod
    def from_file(
        cls, base: nn.Module, tensors: dict[str, Tensor], config: dict[str, Any], alpha: float
    ) -> LowRank:
        """Create the update of a file; `read` then copies the values.

        Args:
            base: adapted layer.
            tensors: tensors of the file, by the names in `parts`.
            config: contents of adapter_config.json.
            alpha: α of this layer.
        """
        r = len(tensors["A"])
        scale = alpha / (r**0.5 if config.get("use_rslora") else r)
        return cls(base, r, scale, config.get("lora_dropout") or 0.0)

    @torch.no_grad()
    def read(self, tensors: dict[str, Tensor]) -> None:
        """Copy the tensors of a file, given by the names in `parts`."""
        self.A.copy_(tensors["A"])
        self.B.copy_(tensors["B"])

    def tensors(self) -> dict[str, Tensor]:
        """Tensors to save, by their names in the file."""
        return {"lora_A.weight": self.A.detach(), "lora_B.weight": self.B.detach()}

    @classmethod
    def settings(cls, r: int) -> dict[str, Any]:
        """Additional entries of adapter_config.json; `r` is the largest rank of all layers."""
        return {}

    def extra_repr(self) -> str:
        return f"{self.A.shape[1]}, {self.B.shape[0]}, r={self.r}, scale={self.scale:g}"


class Adapted(nn.Module):
    """Layer base(x) + update(x); weight, bias and role are those of `base`.

    Args:
        base: adapted layer; the caller decides which of its parameters are trained.
        update: update with the widths of `base`.
    """

    def __init__(self, base: nn.Module, update: LowRank) -> None:
        super().__init__()
        self.base = base
        self.update = update

    # Only these attributes are forwarded. Forwarding all would make this module a `Packable`, and
    # packing would drop the update.
    weight = property(lambda self: self.base.weight)
    bias = property(lambda self: self.base.bias)
    role = property(lambda self: self.base.role)
    in_features = property(lambda self: self.update.A.shape[1])
    out_features = property(lambda self: self.update.B.shape[0])

    def forward(self, x: Float[Tensor, "*b i"]) -> Float[Tensor, "*b o"]:
        y: Tensor = self.base(x)
        return self.update.added(x, y)


def adapted(model: nn.Module) -> dict[str, Adapted]:
    """All layers with an update, by name; a shared layer appears once."""
    return {name: m for name, m in model.named_modules() if isinstance(m, Adapted)}


def substitute(model: nn.Module, replacements: dict[nn.Module, nn.Module]) -> None:
    """Replace modules in place, under every name that they have."""
    for parent in list(model.modules()):
        for name, child in parent._modules.items():
            if child in replacements:
                parent._modules[name] = replacements[child]
