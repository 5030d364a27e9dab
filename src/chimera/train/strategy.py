"""How processes train together: DDP, or FSDP2 with weights and optimiser states in shards.

Both write the checkpoint that one process writes: whole tensors under the model's own names, and
optimiser states by the place of their parameter. So a run resumes on another number of processes,
and with the other strategy. Tensor and pipeline parallelism are out of scope.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any

import torch
from lightning.fabric.plugins.environments import TorchElasticEnvironment
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy, Strategy
from torch import Tensor, distributed
from torch.distributed.tensor import DTensor, distribute_tensor

from chimera import world
from chimera.model.sharding import load_state, whole_state
from chimera.ops.shards import whole


def arguments(strategy: str | None, timeout: float) -> dict[str, Any]:
    """Arguments of Lightning's Trainer for several processes.

    Args:
        strategy: `fsdp`; else DDP.
        timeout: seconds until a process that waits for another one gives up.
    """
    kind = Sharded if strategy == "fsdp" else Replicated
    return {
        "devices": world.local_size(),
        "num_nodes": world.world_size() // world.local_size(),
        "strategy": kind(timedelta(seconds=timeout)),
        "plugins": [TorchElasticEnvironment()],  # reads the variables of torchrun
    }


class _PlainMessages:
    """Broadcasts JSON, where Lightning's strategies broadcast pickles."""

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        """The `obj` of process `src`, which has to be of JSON's types, or a path."""
        text = json.dumps(obj, default=str).encode() if world.rank() == src else b""
        size = torch.tensor([len(text)])
        distributed.broadcast(size, src)
        data = torch.zeros(int(size), dtype=torch.uint8)
        if world.rank() == src:
            data = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        distributed.broadcast(data, src)
        return json.loads(bytes(data.tolist()))


class Replicated(_PlainMessages, DDPStrategy):
    """DDP: each process has all weights; gradients are averaged while they are computed.

    Buffers are not broadcast: those that a forward pass changes are reduced there (`ops.reduce`).
    """

    def __init__(self, timeout: timedelta) -> None:
        super().__init__(forward_sync_buffers=False, gradient_as_bucket_view=True, timeout=timeout)


class Sharded(_PlainMessages, ModelParallelStrategy):
    """FSDP2: each block's weights are gathered when they are used; states are in shards."""

    #: No process can save all weights without the others.
    sharded = True

    def __init__(self, timeout: timedelta) -> None:
        super().__init__(
            data_parallel_size=world.world_size(),
            tensor_parallel_size=1,
            save_distributed_checkpoint=False,
            timeout=timeout,
        )

    @property
    def lightning_restore_optimizer(self) -> bool:
        return True

    def lightning_module_state_dict(self) -> dict[str, Any]:
        assert self.lightning_module is not None
        return whole_state(self.lightning_module)

    #: A checkpoint is one file, as that of other strategies.
    load_checkpoint = Strategy.load_checkpoint
    save_checkpoint = Strategy.save_checkpoint

    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        assert self.lightning_module is not None
        load_state(self.lightning_module, checkpoint["state_dict"], strict=strict)

    def optimizer_state(self, optimizer: Any) -> dict[str, Any]:
        state: dict[str, Any] = optimizer.state_dict()
        states = {
            place: {name: _on_host(value) for name, value in values.items()}
            for place, values in state["state"].items()
        }
        return {**state, "state": states}

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        for optimizer, state in zip(self.optimizers, checkpoint["optimizer_states"], strict=True):
            places = dict(enumerate(_parameters(optimizer)))
            states = {
                place: {name: _sharded(value, places[place]) for name, value in values.items()}
                for place, values in state["state"].items()
            }
            optimizer.load_state_dict({**state, "state": states})


def _parameters(optimizer: torch.optim.Optimizer) -> Iterator[Tensor]:
    """Parameters by the places that torch's state dicts give them."""
    return (parameter for group in optimizer.param_groups for parameter in group["params"])


def _on_host(value: Any) -> Any:
    return whole(value).cpu() if isinstance(value, DTensor) else value


def _sharded(value: Any, parameter: Tensor) -> Any:
    """A state of a parameter, in the parameter's shards if it has its shape."""
    if not isinstance(parameter, DTensor) or not isinstance(value, Tensor):
        return value
    if value.shape != parameter.shape:
        return value
    return distribute_tensor(
        value.to(parameter.device), parameter.device_mesh, parameter.placements
    )
