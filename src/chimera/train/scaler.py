"""fp16 whose host does not wait for its scaler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lightning.pytorch.plugins.precision import MixedPrecision, Precision

from chimera.task.base import Task


class DeviceScaled(MixedPrecision):
    """Lightning's fp16, with an update that unscales, clips and leaves itself out on the device.

    Lightning passes over all gradients to unscale them, and reads whether they are finite before it
    starts the update. Where `Task.leaves_out`, torch's fused Adam does both, and the scale changes
    after the guard has seen the step.
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
        # What `unscale_` would note; the scaler has no public way to take it.
        found = optimizer.found_inf
        scaler._found_inf_per_device(optimizer)[found.device] = found
        scaler.update()
        return result
