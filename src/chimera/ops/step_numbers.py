"""Numbers of a step: means over its micro-batches, and one copy of all from device to host.

A GPU computes behind the host. Reading a number waits until the device has computed it, and the
host has to start the next kernels after that. So a step makes one copy, before its update; the host
reads the copy after it has started the update, which the device computes meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor


class HostCopy:
    """Numbers [n] on their way from the device; on a CPU they are there.

    Args:
        numbers: of which a copy is begun.
    """

    def __init__(self, numbers: Tensor) -> None:
        self._numbers = numbers.detach()
        self._arrived: torch.cuda.Event | None = None
        if numbers.is_cuda:
            pinned = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
            self._numbers = pinned.copy_(self._numbers, non_blocking=True)
            self._arrived = torch.cuda.Event()
            self._arrived.record()

    def tolist(self) -> list[float]:
        """Wait until they have arrived, not for what the device computes after them."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return self._numbers.tolist()


def by_name(outputs: Sequence[Mapping[str, Any]]) -> dict[str, list[tuple[Tensor, Any]]]:
    """Loss, accuracy, `aux/…` and `stats/…` with numbers of predictions, by micro-batch.

    Args:
        outputs: of the training steps of a step's micro-batches.
    """
    pairs: dict[str, list[tuple[Tensor, Any]]] = {}
    for output in outputs:
        values = {"loss": output["task_loss"], "accuracy": output["accuracy"]}
        for part in ("aux", "stats"):
            values |= {f"{part}/{key}": value for key, value in output[part].items()}
        for name, value in values.items():
            pairs.setdefault(name, []).append((value, output.get("count", 1.0)))
    return pairs


def mean(pairs: Sequence[tuple[Tensor, Any]]) -> Tensor:
    """Mean of the values of micro-batches, each counted as often as it has predictions."""
    values = torch.stack([value.detach().float() for value, _ in pairs])
    if len(values) == 1:  # a step of another task may count no predictions
        return values[0]
    weights = torch.stack([torch.as_tensor(n, device=values.device) for _, n in pairs]).float()
    return (values * weights).sum() / weights.sum().clamp(min=torch.finfo(weights.dtype).tiny)
