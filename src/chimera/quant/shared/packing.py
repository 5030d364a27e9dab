"""Pack quantised models for export, and count their bytes (SPEC Q7, E8; TITAN 5.4, QDYT's Size).

`packed(model)` is a copy in which every `Packable` layer has packed weights. Its state dict, with
five weights in a byte, is the export. The export loads, bit for bit, into `packed` of any model of
the same configuration.
"""

from __future__ import annotations

import copy
from types import MethodType
from typing import NamedTuple

from torch import nn

from chimera.contract import Packable
from chimera.ops.four_bit import entries


def packed(model: nn.Module, *, cache: bool = False) -> nn.Module:
    """Copy `model` for inference, with packed layers.

    Args:
        model: trained model, or an untrained one to load an export into.
        cache: keep codes of one byte in memory too (see PackedTernaryLinear).
    """
    model = copy.deepcopy(model).eval()
    replacements: dict[nn.Module, nn.Module] = {}
    for parent in list(model.modules()):
        for name, child in parent._modules.items():  # a shared child has several names
            if isinstance(child, Packable):
                if child not in replacements:
                    replacements[child] = child.packed(cache=cache)
                parent._modules[name] = replacements[child]
    # A head tied to an embedding has its bound method `table`, which must be the packed one's.
    for module in model.modules():
        for name, value in list(vars(module).items()):
            if isinstance(value, MethodType) and value.__self__ in replacements:
                setattr(module, name, getattr(replacements[value.__self__], value.__name__))
    return model.packed(cache=cache) if isinstance(model, Packable) else model


class Bytes(NamedTuple):
    """Number of parameters, and their bytes packed, in fp16 and in fp32."""

    parameters: int
    packed: int
    fp16: int
    fp32: int


def byte_report(model: nn.Module) -> dict[str, Bytes]:
    """Bytes of a trained model by role; parameters without a role are `other`, the sum is `total`.

    `packed` is the size of an export: codes, scales and input state of ternary and 8-bit layers,
    all other tensors in their dtype. A shared table counts once.
    """
    report: dict[str, Bytes] = {}
    seen: set[nn.Parameter] = set()
    for module in model.modules():
        parameters = [p for p in module.parameters(recurse=False) if p not in seen]
        seen.update(parameters)
        if not parameters:
            continue
        is_table = hasattr(module, "table") and hasattr(module, "weight")
        role = getattr(module, "role", "embedding" if is_table else "other")
        count = sum(map(entries, parameters))
        replacement = module.packed() if isinstance(module, Packable) else None
        stored = parameters if replacement is None else replacement.state_dict().values()
        size = sum(t.numel() * t.element_size() for t in stored)
        report[role] = _add(report.get(role), Bytes(count, size, 2 * count, 4 * count))
    return report | {
        "total": Bytes(*(sum(column) for column in zip(*report.values(), strict=True)))
    }


def resident_bytes(model: nn.Module) -> int:
    """Bytes of memory that the parameters and buffers of a model take, shared ones once."""
    tensors = {t.data_ptr(): t for t in (*model.parameters(), *model.buffers())}
    return sum(t.numel() * t.element_size() for t in tensors.values())


def _add(a: Bytes | None, b: Bytes) -> Bytes:
    return b if a is None else Bytes(*(x + y for x, y in zip(a, b, strict=True)))
