"""The processes of one run: how they find each other, and how the first one decides for all.

What a process has to know before it may go on (a directory that is free, data that are prepared, a
checkpoint to resume from) is found out by the first one, and handed on as JSON through the store of
torch.distributed: no message is a pickle. Waiting for it has no time limit, since data may take
hours; a collective has one, `trainer.timeout`.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import distributed
from torch.distributed import DistError, rendezvous

from chimera import world
from chimera.errors import Interrupted, LostProcessError, NotFiniteError, UserError, one_line
from chimera.train.launch import PARENT

Plain = TypeVar("Plain")
#: Seconds between two looks at the store, and seconds that it has to answer.
LOOK = 0.05
ANSWER = 2.0
#: On every tensor's own device, so that flags and counts on the CPU never wait for the GPU.
BACKENDS = "cpu:gloo,cuda:nccl"


class Ranks:
    """The processes of a run, of which this is one.

    Args:
        store: of torch.distributed; None for a process alone.
        timeout: seconds that it waits for the others at the end.
    """

    def __init__(self, store: distributed.Store | None = None, timeout: float = 0.0) -> None:
        self.rank = world.rank()
        self.size = world.world_size()
        self._store = store
        self._turn = 0
        self.timeout = timeout

    @property
    def first(self) -> bool:
        """Whether this process writes and speaks for all."""
        return self.rank == 0

    def on_first(self, work: Callable[[], Plain]) -> Plain:
        """What `work` returns on the first process; the others wait for it and do not call it.

        Args:
            work: returns plain values (JSON).

        Raises:
            UserError: on the others, if the first process failed.
        """
        if self._store is None:
            return work()
        self._turn += 1
        key = f"chimera/turn/{self._turn}"
        if not self.first:
            return self._answer(key)
        try:
            found = json.dumps(work())
        except BaseException as error:
            self._store.set(key, json.dumps({"error": one_line(error)}))
            raise
        self._store.set(key, f'{{"found": {found}}}')
        return self._answer(key)

    def speaks(self) -> bool:
        """Whether this process is the first to report an error; the others stay silent."""
        if self._store is None:
            return self.first
        store = self._store
        number = []

        def ask() -> None:
            with contextlib.suppress(RuntimeError):  # the process with the store may have ended
                number.append(int(store.add("chimera/spoken", 1)))

        # The process with the store may also have stopped, and then no answer ever comes.
        asking = threading.Thread(target=ask, daemon=True)
        asking.start()
        asking.join(ANSWER)
        return number in ([], [1])

    def leave(self) -> None:
        """Wait until all processes are here, so that none ends while another still writes."""
        if self._store is None:
            return
        end = time.monotonic() + self.timeout
        with contextlib.suppress(RuntimeError):
            self._store.add("chimera/here", 1)
            while int(self._store.add("chimera/here", 0)) < self.size and time.monotonic() < end:
                time.sleep(LOOK)
            if self.first:  # the store is in this process: the others look a last time
                time.sleep(4 * LOOK)

    def _answer(self, key: str) -> Any:
        assert self._store is not None
        while not self._store.check([key]):  # not `wait`, which no signal interrupts
            time.sleep(LOOK)
        answer = json.loads(self._store.get(key))
        if "error" in answer:
            raise UserError(answer["error"])
        return answer["found"]


#: The processes that this one has joined; itself alone before.
here = Ranks()


@contextlib.contextmanager
def process_group(timeout: float) -> Iterator[Ranks]:
    """Join the other processes of the run, which torchrun, srun or `train.launch` has started.

    Args:
        timeout: seconds after which a collective that another process does not reach is an error.

    Raises:
        LostProcessError: another process has ended or does not answer.
    """
    global here
    if world.launcher() is None or distributed.is_initialized():
        yield here
        return
    _die_with_parent()
    _name_master()
    limit = timedelta(seconds=timeout)
    store, rank, size = next(rendezvous("env://", timeout=limit))
    backends = BACKENDS if torch.cuda.is_available() else "gloo"
    distributed.init_process_group(backends, store=store, rank=rank, world_size=size, timeout=limit)
    before = here
    here = Ranks(store, timeout)
    try:
        with readable_lost_processes(timeout):
            yield here
        here.leave()
    except (Interrupted, NotFiniteError):  # of all processes
        here.leave()
        raise
    finally:
        if sys.exc_info()[0] in (None, Interrupted, NotFiniteError):
            distributed.destroy_process_group()
            here = before


@contextlib.contextmanager
def readable_lost_processes(timeout: float) -> Iterator[None]:
    """Turn what a backend raises when another process is gone into one line.

    Raises:
        LostProcessError: another process has ended or does not answer.
    """
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, LostProcessError) or not _is_of_a_backend(error):
            raise
        late = "imed out" in str(error) or "imeout" in str(error)
        what = f"did not answer within trainer.timeout={timeout:g} s" if late else "has ended"
        raise LostProcessError(
            f"process {world.rank()} of {world.world_size()} stopped: another process {what};"
            " start the same command again to resume from the last checkpoint"
        ) from error


def _is_of_a_backend(error: RuntimeError) -> bool:
    return isinstance(error, DistError) or "gloo" in str(error)


def _name_master() -> None:
    """Under srun, set the variables by which torch finds the first process."""
    if world.launcher() != "srun":
        return
    from lightning.fabric.plugins.environments import SLURMEnvironment

    slurm = SLURMEnvironment(auto_requeue=False)
    os.environ.setdefault("MASTER_ADDR", slurm.main_address)
    os.environ.setdefault("MASTER_PORT", str(slurm.main_port))
    numbers = {
        "RANK": world.rank(),
        "WORLD_SIZE": world.world_size(),
        "LOCAL_RANK": world.local_rank(),
        "LOCAL_WORLD_SIZE": world.local_size(),
        "GROUP_RANK": world.rank() // world.local_size(),
    }
    os.environ.update({name: str(number) for name, number in numbers.items()})


def _die_with_parent() -> None:
    """Stop, saved, when the command that started this process is killed."""
    parent = os.environ.get(PARENT)
    if parent is None:
        return
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
    if os.getppid() != int(parent):
        signal.raise_signal(signal.SIGTERM)
