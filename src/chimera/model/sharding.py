"""FSDP2 of a model, and state dicts of whole tensors for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    set_model_state_dict,
)
from torch.distributed.fsdp import fully_shard

from chimera.ops.shards import is_sharded


@runtime_checkable
class Initialised(Protocol):
    """A module whose first forward pass sets parameters."""

    def initialise(self) -> None: ...


@runtime_checkable
class Sharded(Protocol):
    """A module that has to know when its parameters are in shards."""

    def sharded(self) -> None: ...


def shard(model: nn.Module, mesh: Any) -> None:
    """Apply FSDP2 to every block of a model and to the rest of it, in place.

    Args:
        model: its outermost ModuleLists hold its blocks.
        mesh: of devices, with a dimension `data_parallel` of all processes.
    """
    for module in model.modules():
        if isinstance(module, Initialised):  # a forward pass sees copies, and changes are lost
            module.initialise()
    for block in blocks(model):
        fully_shard(block, mesh=mesh["data_parallel"])
    fully_shard(model, mesh=mesh["data_parallel"])
    for module in model.modules():
        if isinstance(module, Sharded):
            module.sharded()


def whole_state(module: nn.Module) -> dict[str, Any]:
    """State dict of whole tensors on the CPU; all processes have to ask for it.

    Only the first process gets it if the module is sharded; the others get an empty one.
    """
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    return get_model_state_dict(module, options=options)


def load_state(module: nn.Module, state: Mapping[str, Any], *, strict: bool = True) -> None:
    """Load a state dict of whole tensors into a module, sharded or not."""
    if any(map(is_sharded, module.parameters())):
        options = StateDictOptions(full_state_dict=True, strict=strict)
        set_model_state_dict(module, dict(state), options=options)
    else:
        module.load_state_dict(state, strict=strict)


def blocks(module: nn.Module) -> Iterator[nn.Module]:
    """Elements of the outermost ModuleLists that have parameters."""
    for child in module.children():
        if isinstance(child, nn.ModuleList):
            yield from (block for block in child if next(block.parameters(), None) is not None)
        else:
            yield from blocks(child)
