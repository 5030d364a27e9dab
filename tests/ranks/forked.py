"""Processes of one run, forked from a server that has imported everything: seconds, not minutes."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests import forks
from tests.golden.combinations import Combination
from tests.ranks.equality import Setting, place, write_jobs


def train(setting: Setting, combinations: Iterable[Combination], folder: Path) -> None:
    """Train command lines in turn, as `equality.train` does."""
    jobs = write_jobs(setting, combinations, folder)
    done = together(setting.world, "-m", "tests.ranks.worker", str(jobs))
    assert [each.returncode for each in done] == [0] * setting.world, done[0].stderr[-3000:]


def together(world: int, *words: str) -> list[subprocess.CompletedProcess[str]]:
    """Run `python <words>` on several processes, with the variables that torchrun sets."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(world)}
    common |= {"LOCAL_WORLD_SIZE": str(world)}
    started = [
        forks.start(*words, env=common | {"RANK": str(rank), "LOCAL_RANK": str(rank)})
        if world > 1
        else forks.start(*words)
        for rank in range(world)
    ]
    return [one.wait() for one in started]


def said(folder: Path, setting: Setting, one: Combination) -> Sequence[str]:
    """What the processes said that did not train a run; for a test's message."""
    found = folder.glob(f"jobs-{setting.label}.{one.name}.*")
    return [file.read_text() for file in found] or [place(folder, setting, one)]
