"""fp16 whose host does not wait for its scaler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lightning.pytorch.plugins.precision import MixedPrecision, Precision

from chimera.task.base import Task


class DeviceScaled(MixedPrecision):
    """Lightning's fp16, in which the optimiser itself unscales gradients and skips an overflow.

    Lightning unscales all gradients in a pass of its own, and waits for the device to say whether
    they are finite. torch's fused Adam does both on the device. This plugin lets it, if
    `Task.leaves_out` says so, and changes the scale after the guard has checked the step.
    """

    scales_until_update = True  # where the task leaves steps out

    def optimizer_step(  # type: ignore[override]
        self, optimizer: Any, model: Any, closure: Callable[[], Any], **kwargs: Any
    ) -> Any:
        if not (isinstance(model, Task) and model.leaves_out(optimizer)):
            return super().optimizer_step(optimizer, model, closure, **kwargs)
        scaler = self.scaler
        assert scaler is not None
        result = Precision.optimizer_step(self, optimizer, model, closure, **kwargs)
        model.read_step()
        # `unscale_` records this; the scaler has no public method for it.
        found = optimizer.found_inf
        scaler._found_inf_per_device(optimizer)[found.device] = found
        scaler.update()
        return result
