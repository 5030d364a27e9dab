"""Turn an error of too little memory into one line that says what to lower."""

from __future__ import annotations

import contextlib
import errno
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
