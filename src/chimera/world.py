"""How many processes train together, and which of them this is.

From the process group of torch.distributed once there is one; before that from the environment
that torchrun or Slurm's `srun` sets; else one process.
Loaders are made before a Trainer exists, so they ask here. Does not import torch.
"""

from __future__ import annotations

import os
import sys
from typing import Any

#: Rank and size, as torchrun and as `srun` name them. A batch script is no task of a step: Slurm
#: sets SLURM_NTASKS there although one process runs, so the step's own number counts.
_VARIABLES = (("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"))


def rank() -> int:
    """Number of this process, from 0."""
    return _place()[0]


def world_size() -> int:
    """Number of processes."""
    return _place()[1]


def _place() -> tuple[int, int]:
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    for rank_name, size_name in _VARIABLES:
        if rank_name in os.environ and size_name in os.environ:
            return int(os.environ[rank_name]), int(os.environ[size_name])
    return 0, 1
