"""What a component says of itself for GGUF, the file format of llama.cpp; the export asks by it.

A component that llama.cpp computes has a method `gguf()`. It returns its tensors and settings under
llama.cpp's names, and for each property that not every architecture of llama.cpp has, the names of
those that have it. A component without the method cannot be exported to GGUF.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from chimera.errors import UserError


class NotInGGUF(UserError):  # noqa: N818 - named for what it says
    """A part that llama.cpp does not know.

    Args:
        group: of the part in the configuration (`mixer`, `quant`, …).
        why: its property that llama.cpp does not know; empty if it knows nothing of the kind.
    """

    def __init__(self, group: str, why: str = "") -> None:
        super().__init__(f"llama.cpp does not know this {group}{why and f': {why}'}")
        self.group, self.why = group, why


@dataclass(frozen=True)
class GGUF:
    """A component as llama.cpp has it.

    Args:
        tensors: weights by llama.cpp's name in a block (`attn_q.weight`); `<layer>.norm` is the
            weight of an RMSNorm of the layer's input.
        keys: settings by name without the architecture (`attention.head_count`).
        needs: a property in words, and the architectures that have it.
    """

    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    keys: Mapping[str, Any] = field(default_factory=dict)
    needs: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def rows(self, start: int, stop: int) -> GGUF:
        """A linear layer of only these outputs; the norm of its input stays."""
        whole = ("norm",)
        cut = {n: t if n in whole else t[start:stop] for n, t in self.tensors.items()}
        return GGUF(cut, self.keys, self.needs)

    def repeated(self, times: int) -> GGUF:
        """A linear layer that gets `times` inputs of its width side by side, and sums over them."""
        weight = torch.cat([self.tensors["weight"]] * times, 1)
        return GGUF({**self.tensors, "weight": weight}, self.keys, self.needs)


@runtime_checkable
class InGGUF(Protocol):
    """Optional protocol of components that llama.cpp computes."""

    def gguf(self) -> GGUF:
        """Tensors and settings under llama.cpp's names.

        Raises:
            NotInGGUF: it has a setting that llama.cpp does not know.
        """


def in_gguf(module: nn.Module | None, group: str) -> GGUF:
    """Ask a component of a group.

    Raises:
        NotInGGUF: it, or a part of it, is not known to llama.cpp.
    """
    if isinstance(module, InGGUF):
        return module.gguf()
    raise NotInGGUF(group)


def joined(parts: Mapping[str, GGUF], *others: GGUF) -> GGUF:
    """Parts under their names, and other descriptions as they are.

    Args:
        parts: linear layers by llama.cpp's name; their tensors become `<name>.<tensor>`.
        *others: of the same component.

    Raises:
        UserError: two parts give a setting two values.
    """
    tensors = {
        f"{name}.{tensor}": t for name, p in parts.items() for tensor, t in p.tensors.items()
    }
    keys: dict[str, Any] = {}
    needs: dict[str, frozenset[str]] = {}
    for part in (*parts.values(), *others):
        for key, value in part.keys.items():
            if keys.setdefault(key, value) != value:
                raise UserError(
                    f"llama.cpp has one {key} for a model, not both {keys[key]} and {value};"
                    " train with one value, or export to a folder"
                )
        needs |= part.needs
    for other in others:
        tensors |= other.tensors
    return GGUF(tensors, keys, needs)
