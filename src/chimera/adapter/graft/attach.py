"""Add the linear memory of LiZAttention to every attention of a model (SPEC A4; TPTT 3.4)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from torch import nn

from chimera.adapter.graft.memory import GraftedMemory, Padding
from chimera.adapter.graft.sites import decoder, sites
from chimera.errors import UserError
from chimera.ops.precision import wide


def attach(
    model: nn.Module,
    *,
    inner: Callable[[nn.Module], nn.Module],
    train: Literal["inner", "projections"],
    max_cache: int | None,
    mag: Literal["additive", "cross_gate"],
    mag_weight: float,
    branch: dict[str, Any],
) -> nn.Module:
    """Add a memory to every attention of a Hugging Face causal model.

    Args:
        model: frozen and changed in place.
        inner: adapter that selects the trained parameters, with train=inner.
        train: `projections` trains the base's q, k, v and o projections instead of `inner`.
        max_cache, mag, mag_weight, branch: see `GraftedMemory`.

    Raises:
        UserError: the model has no supported attention or has a memory already, or options
            contradict each other.
    """
    layouts = sites(model)
    if any(hasattr(model.get_submodule(name), "liza") for name in layouts):
        raise UserError("adapter=liza: the model has LiZAttention already")
    top = decoder(model, list(layouts))
    padding = Padding()
    projections = []
    for name, layout in layouts.items():
        attention = model.get_submodule(name)
        if not isinstance(getattr(attention, "layer_idx", None), int):
            raise UserError(
                f"adapter=liza does not support {type(attention).__name__} of {name}: it has no"
                " layer number (layer_idx), by which a cache holds its memory"
            )
        causal = bool(getattr(attention, "is_causal", True))  # the model is, as a whole
        try:
            memory = GraftedMemory(
                layout,
                padding,
                max_cache=max_cache,
                causal=causal,
                mag=mag,
                mag_weight=mag_weight,
                branch=branch,
            )
        except ValueError as error:
            raise UserError(f"adapter=liza on {name}: {error}") from error
        layers = [attention.get_submodule(part) for part in layout.names]
        projections += [p for layer in layers for p in layer.parameters()]
        like = projections[-1]
        memory.to(like.device, wide(like))
        memory.attach(attention)
    top.register_forward_pre_hook(padding.read_mask, with_kwargs=True)
    model.requires_grad_(False)
    if train == "inner":
        return inner(model)
    for parameter in projections:
        parameter.requires_grad_(True)
    return model
