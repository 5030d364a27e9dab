"""Kernels in Triton: on which GPUs they serve, after a comparison with torch."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Iterable
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

#: Compute capability from which Triton multiplies int8; it aborts the process on older GPUs.
AMPERE = (8, 0)

log = logging.getLogger(__name__)


@cache
def gpu(
    device: torch.device,
    name: str,
    otherwise: str,
    *of: int,
) -> ModuleType | None:
    """A module of kernels in Triton if it serves on a device, else None.

    It needs Triton, an NVIDIA GPU since Ampere, and CHIMERA_KERNELS other than 0. The first call
    compiles its kernels, in some seconds, and compares what they compute with what is right.

    Args:
        device: of the tensors.
        name: of the module in `ops`; its `fault` says what is wrong on a device.
        otherwise: what happens without it, for the log.
        of: what `fault` asks beside the device.
    """
    if device.type != "cuda" or os.environ.get("CHIMERA_KERNELS") == "0":
        return None
    nvidia = torch.version.hip is None and torch.cuda.get_device_capability(device) >= AMPERE
    if not nvidia or find_spec("triton") is None:
        return None
    try:
        kernels = import_module(f"chimera.ops.{name}")
        # The first call may come from a block whose saved tensors checkpointing counts.
        apart = saved_tensors_hooks(lambda x: x, lambda x: x)
        with torch.inference_mode(False), torch.enable_grad(), apart:
            fault: str | None = kernels.fault(device, *of)
    # No C compiler for Triton's launcher, too little shared memory, a full disk, another Triton …
    except Exception as error:  # noqa: BLE001
        fault = f"{type(error).__name__}: {error}".partition("\n")[0]
    if fault is None:
        return kernels
    log.warning("%s: Triton kernel on %s: %s", otherwise, device, fault)
    return None


def operation(module: str, name: str) -> str:
    """Name of an operation that a module registers with torch.

    A second one of the same name would take the first one's place, and break it: a copy of the
    module, as in an exported folder, registers its own.
    """
    if module.startswith("chimera."):
        return f"chimera::{name}"
    return f"chimera_{hashlib.sha256(module.encode()).hexdigest()[:12]}::{name}"


def constant(f: Callable[..., bool]) -> Callable[..., bool]:
    """Mark f as a constant of a graph, which is made for one device.

    torch.compiler.assume_constant_result does the same, but imports the compiler.
    """
    f._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return f


def last_apart(x: Tensor) -> Tensor:
    """x with the numbers of its last axis as neighbours."""
    return x if x.stride(-1) == 1 else x.contiguous()


def wrong(got: Iterable[Tensor], want: Iterable[Tensor], share: float) -> str | None:
    """What to say if a tensor differs by more than a share of its largest number."""
    pairs = zip(got, want, strict=True)
    near = all((x - y).abs().max() <= share * y.abs().max() for x, y in pairs)
    return None if near else "wrong numbers"
