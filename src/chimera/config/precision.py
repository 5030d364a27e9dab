"""Resolve `precision=auto`: bf16 where the machine has matrix units for it, else fp32.

A GPU has them from compute capability 8.0 on, a CPU with AMX-BF16 or AVX512-BF16. The choice is
made when a configuration is composed: config.yaml and the identity of a run have a number format.
Imports torch only where there is a GPU.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from chimera.errors import UserError
from chimera.rundir.environment import first_core

#: Instructions of a CPU that multiply matrices in bf16, as Linux names them, and on ARM.
INSTRUCTIONS = ("amx_bf16", "avx512_bf16", "bf16")
_GPUS = (Path("/dev/nvidiactl"), Path("/dev/dxg"))


def resolve(cfg: DictConfig) -> None:
    """Put bf16 or fp32 for `auto`, in place.

    Raises:
        UserError: the run is for other machines than this one.
    """
    if cfg.get("precision") != "auto":
        return
    if not str(cfg.launcher.get("_target_")).endswith(".Local"):
        raise UserError(
            "precision=auto looks at this machine, but the launcher starts jobs on others; use"
            " precision=bf16 or fp32"
        )
    cfg.precision = matrix_units(cfg.trainer.accelerator)[0]


def matrix_units(accelerator: str) -> tuple[str, str]:
    """`bf16` or `fp32`, and why.

    Args:
        accelerator: auto, cpu or gpu.
    """
    if accelerator != "cpu" and (capability := _capability()):
        has = capability >= (8, 0)
        major, minor = capability
        return ("bf16" if has else "fp32"), f"this GPU has compute capability {major}.{minor}"
    found = [name for name in INSTRUCTIONS if name in instructions()]
    return ("bf16", f"this CPU has {found[0]}") if found else ("fp32", "this CPU has no bf16 units")


def announcement(config: dict[str, Any], overrides: list[str]) -> list[str]:
    """One line on what `precision=auto` of a command line became; none without it."""
    if "precision=auto" not in overrides:
        return []
    _, why = matrix_units(config["trainer"]["accelerator"])
    return [f"precision=auto is precision={config['precision']}: {why}"]


def instructions() -> set[str]:
    """Instruction sets of this machine's CPU; empty where Linux does not tell."""
    facts = first_core()
    return set(facts.get("flags", facts.get("Features", "")).split())


def _capability() -> tuple[int, int] | None:
    """Compute capability of the GPU that torch would use; None without one."""
    if not any(path.exists() for path in _GPUS):
        return None
    import torch

    return torch.cuda.get_device_capability() if torch.cuda.is_available() else None
