"""The device on which `precision=fp16` computes, refused where it would compute something else.

Lightning turns fp16 on a CPU into bf16 without a scaler, in silence. torch computes fp16 there; on
a device without it, autocast warns and computes float32. Both would be another run than the one
that was asked for.
"""

from __future__ import annotations

import warnings

import torch

from chimera.errors import UserError


def device_of_fp16(accelerator: str) -> str:
    """`cuda` or `cpu`, for autocast and the gradient scaler.

    Args:
        accelerator: auto, cpu or gpu.

    Raises:
        UserError: autocast does not compute fp16 there.
    """
    device = "cuda" if torch.cuda.is_available() and accelerator != "cpu" else "cpu"
    if device == "cpu" and accelerator != "cpu" and torch.backends.mps.is_available():
        device = "mps"
    computed = autocast_dtype(device)
    if computed != torch.float16 or device == "mps":
        name = str(computed).removeprefix("torch.")
        raise UserError(
            f"precision=fp16 computes {name} on {device} and has no gradient scaler there;"
            " use precision=bf16 or fp32, or trainer.accelerator=cpu or gpu"
        )
    return device


def autocast_dtype(device: str) -> torch.dtype:
    """Dtype of a matrix product under fp16 autocast on a device."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torch.autocast(device, torch.float16):
            one = torch.ones(1, 1, device=device)
            return (one @ one).dtype
