"""Tensors in shards (torch's DTensor, by FSDP2) as the tensors of this process, or whole.

Does not import torch.distributed.tensor, which takes half a second.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from torch import Tensor


def is_sharded(tensor: Tensor) -> bool:
    """Whether this process has only a shard of the tensor."""
    return hasattr(tensor, "full_tensor")


def local(tensors: Iterable[Tensor]) -> list[Tensor]:
    """This process's shards, which share memory; other tensors as they are."""
    return [cast(Any, t).to_local() if is_sharded(t) else t for t in tensors]


def like(value: Tensor, tensor: Tensor) -> Tensor:
    """A whole value, the same on all processes, in the shards of a tensor if it has any."""
    if not is_sharded(tensor):
        return value
    from torch.distributed.tensor import distribute_tensor

    of = cast(Any, tensor)
    return distribute_tensor(value, of.device_mesh, of.placements, src_data_rank=None)


def whole(tensor: Tensor) -> Tensor:
    """The whole tensor of which this process has a shard; all processes have to ask for it."""
    return cast(Tensor, cast(Any, tensor).full_tensor()) if is_sharded(tensor) else tensor
