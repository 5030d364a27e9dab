"""Our names of precisions as Lightning's arguments."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch.plugins.precision import MixedPrecision


def precision_arguments(precision: str, accelerator: str) -> dict[str, Any]:
    """Arguments of Lightning's Trainer.

    Asked for fp16 on a CPU Lightning silently takes bf16 without a scaler; so it is given the real
    thing.

    Args:
        precision: fp32, bf16 or fp16.
        accelerator: auto, cpu or gpu.
    """
    if precision == "fp16":
        gpu = torch.cuda.is_available() and accelerator != "cpu"
        device = "cuda" if gpu else "cpu"
        scaler = torch.amp.GradScaler(device)
        return {"plugins": [MixedPrecision("16-mixed", device, scaler)]}
    return {"precision": {"fp32": "32-true", "bf16": "bf16-mixed"}[precision]}
