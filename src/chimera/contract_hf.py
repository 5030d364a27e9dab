"""What a component says of itself for checkpoints of transformers; `init_from=hf:` asks by it.

A component that computes a layer of a model of transformers says so from the model's configuration,
and names its own tensors in those of the layer. A component without the methods takes none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

#: Values of `model_type` whose layers are Llama's: rotations, grouped heads, a gate of SiLU.
LLAMA_LIKE = frozenset({"llama", "mistral", "qwen2", "qwen3"})


@runtime_checkable
class OfTransformers(Protocol):
    """Optional protocol of components that compute layers of models of transformers."""

    @classmethod
    def hf_settings(cls, config: Mapping[str, Any], layer: int) -> dict[str, Any] | None:
        """Hyperparameters of the component for a layer; None if it does not compute that layer.

        Args:
            config: contents of config.json; numbers are numbers. A missing key is a KeyError.
            layer: its number, from 0.

        Raises:
            UserError: the layer has a setting that the component lacks.
        """

    def hf_tensors(
        self, tensors: Mapping[str, Tensor], config: Mapping[str, Any]
    ) -> dict[str, Tensor]:
        """Parameters of the component by their names in it.

        Args:
            tensors: of the layer, by their names in it (`self_attn.q_proj.weight`); a norm gets its
                own alone (`weight`). A missing name is a KeyError.
            config: as of `hf_settings`.
        """


def unsupported(config: Mapping[str, Any], **wanted: Any) -> str:
    """The first key of a configuration that has another value than wanted, with it; else empty."""
    for key, value in wanted.items():
        if config.get(key, value) != value:
            return f"{key}={config[key]}"
    return ""
