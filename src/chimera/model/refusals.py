"""Errors of a mixer that does not fit the model around it."""

from __future__ import annotations

from collections.abc import Mapping

from chimera.contract import Mixer
from chimera.errors import UserError


def where(names: Mapping[str, str], mixer: Mixer, layer: int) -> str:
    """A mixer by its choice, and by its layer in a model of several kinds.

    Args:
        names: choices by group.
        mixer: of a layer.
        layer: its number.
    """
    name = names["mixer"]
    return name if mixer.component == name else f"{name} (layer {layer}: {mixer.component})"


def not_causal(names: Mapping[str, str], mixer: Mixer, layer: int) -> UserError:
    """Of a mixer that reads later tokens, in a decoder; arguments as of `where`."""
    return UserError(
        f"mixer={where(names, mixer, layer)} reads the tokens after each one, so a decoder cannot"
        " have it; use a task of encoders such as task=mlm, or another mixer"
    )


def unquantised(names: Mapping[str, str], mixer: Mixer, layer: int) -> UserError:
    """Of a mixer whose matrices are not made by the quantiser; arguments as of `where`."""
    dense = next((m.dense for m in mixer.modules() if hasattr(m, "dense")), "another mixer")
    return UserError(
        f"quant={names['quant']} would quantise no weight of mixer={where(names, mixer, layer)};"
        f" use {dense}, or quant=none"
    )


def no_queries(names: dict[str, str], mixer: Mixer, layer: int) -> UserError:
    """`model.qk_norm` with a mixer that has no queries and keys."""
    return UserError(
        f"model.qk_norm=true needs queries and keys to rotate; mixer={where(names, mixer, layer)}"
        " has none; use model.qk_norm=false, or a mixer such as attention or retnet"
    )
