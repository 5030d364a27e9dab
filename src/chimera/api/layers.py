"""Layers for a training loop of one's own: `ch.layers.mixer`, `.norm`, `.ffn` and `.quant`.

A layer takes a plain tensor `x` [b t d] and an optional mask [b t], and returns a plain tensor
[b t d]. Weights are drawn by torch's generator (`torch.manual_seed`), as those of a model.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from chimera.api.library import composed, settings
from chimera.config.groups import groups
from chimera.config.schema import arguments, check_value
from chimera.config.settings import Model
from chimera.contract import FFN, Context, Mixer, Norm, Position, PositiveInt, Role
from chimera.errors import UserError
from chimera.model.assemble import Choices, build_model, choose, provides_of


class Layer(nn.Module):
    """A mixer or a feed-forward network on plain tensors.

    Args:
        part: the component; it has a forward pass with states and more inputs
            (`chimera.contract`).
        dim: width d.

    Attributes:
        aux: auxiliary losses of the last forward pass, with gradients; add them to your loss.
        stats: scalars of the last forward pass, for charts.
    """

    def __init__(self, part: Mixer | FFN, dim: int) -> None:
        super().__init__()
        self.part = part
        self.dim = dim
        self.aux: dict[str, Tensor] = {}
        self.stats: dict[str, Tensor] = {}
        limited = (m for m in part.modules() if isinstance(m, Mixer | Position))
        self._limited = [module for module in limited if module.max_positions is not None]

    def forward(
        self, x: Float[Tensor, "b t d"], mask: Bool[Tensor, "b t"] | None = None
    ) -> Float[Tensor, "b t d"]:
        """The layer's output, to be added to the residual stream.

        Args:
            x: inputs, normalised if your model normalises.
            mask: True for real tokens; None if there is no padding. What is at padding changes no
                number elsewhere.

        Raises:
            UserError: another shape, or more tokens than the layer has positions.
        """
        if x.ndim != 3 or x.shape[-1] != self.dim:
            raise UserError(f"x has shape {list(x.shape)}; this layer takes [b, t, {self.dim}]")
        if mask is not None and (mask.shape != x.shape[:2] or mask.dtype != torch.bool):
            raise UserError(
                f"mask has shape {list(mask.shape)} of {mask.dtype}; give {list(x.shape[:2])} of"
                " torch.bool, True for real tokens"
            )
        for module in self._limited:
            if x.shape[1] > (module.max_positions or 0):
                raise UserError(module.too_long(x.shape[1]))
        if mask is None:
            positions = torch.arange(x.shape[1], device=x.device)[None]
        else:
            positions = (mask.long().cumsum(1) - 1).clamp(min=0)
            x = x.masked_fill(~mask[..., None], 0.0)
        out = self.part(x, Context(positions, mask))
        self.aux = out.aux
        self.stats = out.stats
        return out.y


def mixer(
    name: str,
    *,
    dim: int,
    heads: int = 4,
    causal: bool = False,
    max_len: int = 512,
    dropout: float = 0.0,
    position: str = "none",
    quant: str = "none",
    norm: str = "layernorm",
    **options: Any,
) -> Layer:
    """Make a token mixer: [b t d] to [b t d].

    Args:
        name: a choice of `mixer=`, such as retnet; `chimera list` shows all.
        dim: width d.
        heads: number of heads, which divides `dim`.
        causal: True: a token sees no later one. False: it sees all; a mixer that knows one
            direction only runs both ways.
        max_len: tokens that tables of positions have.
        dropout: probability of dropout inside the mixer.
        position: a choice of `position=` that rotates queries and keys or adds to scores.
        quant: number format of its linear layers, a choice of `quant=`.
        norm: norms inside it, a choice of `norm=`.
        options: keys of its YAML file, such as `window=64`.

    Raises:
        UserError: an unknown choice or key, a wrong value, parts that do not fit each other.
    """
    if position in groups()["position"] and provides_of(position) == {"embed"}:
        other = [p for p in groups()["position"] if provides_of(p) != {"embed"}]
        raise UserError(
            f"position={position} is added to embeddings, not to a layer; use {', '.join(other)}"
        )
    words = [f"mixer={name}", f"position={position}", f"quant={quant}", f"norm={norm}", "ffn=none"]
    choices = _choices([*words, *settings("mixer", options)])
    block = _block(choices, dim, heads, causal=causal, max_len=max_len, dropout=dropout)
    return Layer(block.mixer, dim)


def ffn(
    name: str,
    *,
    dim: int,
    dropout: float = 0.0,
    quant: str = "none",
    norm: str = "layernorm",
    **options: Any,
) -> Layer:
    """Make a feed-forward network: [b t d] to [b t d].

    Args:
        name: a choice of `ffn=` other than none, such as swiglu or moe.
        dim: width d.
        dropout: probability of dropout inside it.
        quant: number format of its linear layers, a choice of `quant=`.
        norm: norms inside it, a choice of `norm=`.
        options: keys of its YAML file, such as `ratio=4`.

    Raises:
        UserError: as of `mixer`.
    """
    if name == "none":
        raise UserError("ffn=none is no layer; use another choice of ffn=, or leave the layer out")
    words = ["mixer=attention", "position=none", f"ffn={name}", f"quant={quant}", f"norm={norm}"]
    choices = _choices([*words, *settings("ffn", options)])
    return Layer(_block(choices, dim, 1, causal=False, max_len=1, dropout=dropout).ffn, dim)


def norm(name: str, *, dim: int, **options: Any) -> Norm:
    """Make a norm, called as `norm(x, mask=None)`: [b t d] to [b t d].

    Args:
        name: a choice of `norm=`, such as rmsnorm or qdyt.
        dim: width d.
        options: keys of its YAML file, such as `eps=1e-6`.

    Raises:
        UserError: as of `mixer`.
    """
    check_value("dim", dim, PositiveInt)
    choices = _choices([f"norm={name}", *settings("norm", options)])
    try:
        return choices.norm(dim)
    except ValueError as error:
        raise UserError(str(error)) from error


def quant(
    name: str, d_in: int, d_out: int, *, bias: bool = True, role: Role = "up", **options: Any
) -> nn.Module:
    """Make a linear layer in a number format: [… d_in] to [… d_out].

    Args:
        name: a choice of `quant=`, such as bitnet158; none is torch's layer.
        d_in, d_out: widths.
        bias: whether it has a bias.
        role: what the layer is for; some formats treat layers by it (hbit rotates the inputs of
            `out` and `down`).
        options: keys of its YAML file.

    Raises:
        UserError: as of `mixer`.
    """
    for key, value, hint in (
        ("d_in", d_in, PositiveInt),
        ("d_out", d_out, PositiveInt),
        ("bias", bias, bool),
        ("role", role, Role),
    ):
        check_value(key, value, hint)
    choices = _choices([f"quant={name}", *settings("quant", options)])
    try:
        return choices.quant.linear(d_in, d_out, bias=bias, role=role)
    except ValueError as error:
        raise UserError(str(error)) from error


def _choices(words: list[str]) -> Choices:
    return choose(composed(words), adapter=False)


def _block(
    choices: Choices, dim: int, heads: int, *, causal: bool, max_len: int, dropout: float
) -> Any:
    """The block of a model of one layer, whose assembly checks that the parts fit."""
    given = {"dim": dim, "heads": heads, "max_len": max_len, "dropout": dropout}
    for key, value in given.items():
        check_value(key, value, arguments("chimera.config.settings.Model")[key])
    if dim % heads:
        raise UserError(f"heads={heads} does not divide dim={dim}")
    model = Model(dim=dim, depth=1, heads=heads, max_len=max_len, dropout=dropout)
    return build_model(model, choices, vocab_size=1, causal=causal, adapt=False).backbone.blocks[0]
