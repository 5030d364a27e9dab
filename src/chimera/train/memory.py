"""Memory and open files of a run: too little is one line; the C library keeps freed memory."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import resource
from collections.abc import Iterator, Mapping
from typing import Any

from chimera.errors import UserError, one_line

#: What torch and the C++ library say on a CPU, where they have no class of error for it.
SAID = (
    "can't allocate memory",
    "cannot allocate memory",
    "not enough memory",
    "bad_alloc",
    "out of memory",
)
#: What a loader says of a worker that the system has ended, which it does for memory alone.
KILLED = "is killed by signal: Killed"
#: Parameters of mallopt(3): bytes free at the top from which on memory is given back, and bytes
#: from which on a block is taken from the system by itself; glibc allows the second up to 32 MiB.
TRIM_THRESHOLD = -1
MMAP_THRESHOLD = -3
KEPT = 1 << 30
LARGEST = 32 << 20
#: Open files of a run, and of each worker of its loader: batches on their way, and its pipes.
OPEN_FILES = 96
OPEN_FILES_OF_WORKER = 16
#: Variables by which a user sets the same; they are left as they are.
OWN = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_")


def lack_of_memory(error: BaseException | None) -> str:
    """What lacked memory; empty if the error and its causes have another reason."""
    while error is not None:
        text = one_line(error)
        if type(error).__name__ == "OutOfMemoryError":
            return text.partition(". GPU")[0]
        if isinstance(error, RuntimeError) and KILLED in text:
            return "the system has killed a worker of data.num_workers"
        said = isinstance(error, RuntimeError) and any(s in text.lower() for s in SAID)
        if said or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
            return text.partition("] . ")[2] or text
        if isinstance(error, MemoryError):
            return text or "Python could not allocate memory"
        error = error.__cause__ or error.__context__
    return ""


def allow_open_files(workers: int) -> None:
    """Raise the limit of open files to what the workers of a loader need, as far as it goes.

    A worker that cannot open another file loses its batch, and the run would wait for it.

    Raises:
        UserError: the limit cannot be so high.
    """
    needed = OPEN_FILES + workers * OPEN_FILES_OF_WORKER
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if not workers or soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise UserError(
            f"data.num_workers={workers} needs up to {needed} open files, and `ulimit -n` is"
            f" {hard}; raise that limit, or use data.num_workers=0"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


@contextlib.contextmanager
def readable_memory_errors(advice: str) -> Iterator[None]:
    """Raise a UserError in place of an error of too little memory.

    Args:
        advice: what to lower.

    Raises:
        UserError: one line, with the settings that decide how much a step takes.
    """
    try:
        yield
    except (RuntimeError, MemoryError, OSError) as error:
        if not (what := lack_of_memory(error)):
            raise
        raise UserError(f"out of memory: {what}; {advice}") from error


def advice(config: Mapping[str, Any]) -> str:
    """What to lower, with its value, the cheapest first."""
    data = config["data"]
    model = config["model"]
    trainer = config["trainer"]
    size = data.get("batch_size")
    parts = trainer.get("accumulate_grad_batches") or 1
    advised = []
    if isinstance(size, int) and size > 1:
        advised.append(
            f"lower data.batch_size={size} (data.batch_size={size // 2}"
            f" trainer.accumulate_grad_batches={2 * parts} keeps the step)"
        )
    if model.get("gradient_checkpointing") is False:
        advised.append("set model.gradient_checkpointing=true")
    if data.get("num_workers"):
        advised.append(f"lower data.num_workers={data['num_workers']}")
    advised.append(f"lower data.seq_len={data.get('seq_len')}, or take a smaller scale=")
    return "; ".join(advised)


def keep_freed_memory() -> bool:
    """Let the C library keep the memory that a step frees, so that the next step finds it mapped.

    glibc gives memory at the top of its heap back to the system when more than a bound is free, at
    the end of each backward pass, and takes each large tensor from the system anew. The system then
    clears every page again: a quarter of a step in bfloat16 went there
    (notebooks/evidence/speed.ipynb). Numbers do not change. Neither does the largest amount in use;
    between steps a process keeps up to `KEPT` that it would have given back.

    Returns:
        Whether the bounds are set: not without glibc, or where the user has set them.
    """
    if any(name in os.environ for name in OWN) or "malloc" in os.environ.get("GLIBC_TUNABLES", ""):
        return False
    try:
        libc = ctypes.CDLL(None)
        libc.gnu_get_libc_version  # noqa: B018  other C libraries take these numbers for others
        mallopt = libc.mallopt
    except (AttributeError, OSError, TypeError):
        return False
    return bool(mallopt(TRIM_THRESHOLD, KEPT) and mallopt(MMAP_THRESHOLD, LARGEST))
