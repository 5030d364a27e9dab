"""Export of ternary models, and what it saves in bytes (SPEC Q7, E8; TITAN 5.4, QDYT Size column).

`packed(model)` is a copy in which every `Packable` layer is packed, five weights to a byte. Its
state dict is the export: it loads back, bit for bit, into `packed` of any model of the same
configuration.
"""

from __future__ import annotations

import copy
from types import MethodType
from typing import NamedTuple

from torch import nn

from chimera.contract import Packable


def packed(model: nn.Module, *, cache: bool = False) -> nn.Module:
    """A copy of `model` for inference, its ternary layers packed.

    Args:
        model: a trained model, or a fresh one to load an export into.
        cache: hold the codes unpacked too (see PackedTernaryLinear).
    """
    model = copy.deepcopy(model).eval()
    made: dict[nn.Module, nn.Module] = {}
    for parent in list(model.modules()):
        for name, child in parent._modules.items():  # a child under two names is seen twice
            if isinstance(child, Packable):
                if child not in made:
                    made[child] = child.packed(cache=cache)
                parent._modules[name] = made[child]
    # A head tied to an embedding holds its bound `table`: it must read the packed one.
    for module in model.modules():
        for name, value in list(vars(module).items()):
            if isinstance(value, MethodType) and value.__self__ in made:
                setattr(module, name, getattr(made[value.__self__], value.__name__))
    return model.packed(cache=cache) if isinstance(model, Packable) else model


class Bytes(NamedTuple):
    """Size of some parameters: how many, and their bytes packed, in fp16 and in fp32."""

    parameters: int
    packed: int
    fp16: int
    fp32: int


def byte_report(model: nn.Module) -> dict[str, Bytes]:
    """Bytes by role, of a model as it is trained; what has no role is `other`, the sum `total`.

    `packed` counts what an export holds: codes, scales and the state of the inputs of ternary
    layers, and everything else in the dtype it is in. A shared table counts once.
    """
    report: dict[str, Bytes] = {}
    seen: set[nn.Parameter] = set()
    for module in model.modules():
        own = [p for p in module.parameters(recurse=False) if p not in seen]
        seen.update(own)
        if not own:
            continue
        is_table = hasattr(module, "table") and hasattr(module, "weight")
        role = getattr(module, "role", "embedding" if is_table else "other")
        count = sum(p.numel() for p in own)
        small = module.packed() if isinstance(module, Packable) else None
        stored = own if small is None else small.state_dict().values()
        size = sum(t.numel() * t.element_size() for t in stored)
        report[role] = _add(report.get(role), Bytes(count, size, 2 * count, 4 * count))
    return report | {
        "total": Bytes(*(sum(column) for column in zip(*report.values(), strict=True)))
    }


def _add(a: Bytes | None, b: Bytes) -> Bytes:
    return b if a is None else Bytes(*(x + y for x, y in zip(a, b, strict=True)))
