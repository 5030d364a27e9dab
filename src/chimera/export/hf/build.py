"""Build the language model that an exported configuration describes."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

from chimera.export.hf.configuration import ChimeraConfig
from chimera.export.hf.parts import named
from chimera.model.init import initialise
from chimera.model.language import LanguageModel
from chimera.model.stack import site_of, stack
from chimera.quant.shared.packing import packed

#: Groups of the components that a model is built from.
GROUPS = ("mixer", "norm", "quant", "ffn", "position")


def made(node: Any) -> Any:
    """Build what a node of the configuration names: an object, or with `_partial_` a factory."""
    if isinstance(node, list):
        return [made(each) for each in node]
    if not isinstance(node, dict):
        return node
    steering = ("_target_", "_partial_", "callbacks")
    arguments = {key: made(value) for key, value in node.items() if key not in steering}
    if "_target_" not in node:
        return arguments
    target = named(node["_target_"])
    return partial(target, **arguments) if node.get("_partial_") else target(**arguments)


def build(config: ChimeraConfig) -> LanguageModel:
    """The language model of a configuration, with fresh weights.

    Raises:
        ValueError: the configuration holds no model, or names a part that is not there.
    """
    if config.chimera is None or config.shape is None or config.vocab_size is None:
        raise ValueError(
            "this configuration holds no model; it has to be one that chimera exported"
        )
    factories = SimpleNamespace(**{group: made(config.chimera[group]) for group in GROUPS})
    shape: Any = SimpleNamespace(**config.shape)
    site = site_of(shape, causal=bool(config.is_decoder))
    model: Any = stack(site, shape, factories, vocab_size=config.vocab_size)
    initialise(model, shape)
    return packed(model) if config.packed else model  # type: ignore[return-value]
