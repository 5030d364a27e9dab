"""One process of several that train command lines in turn: `python -m tests.ranks.worker JOBS`.

JOBS is a JSON file: the folder to train in, and for each run its name and its overrides. Torchrun
starts the processes, or nothing does for one alone. Imports are paid once for all runs.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

from torch import distributed

from chimera.config.compose import compose, plain
from chimera.errors import Interrupted, UserError
from chimera.train.check import check
from chimera.train.ranks import process_group
from chimera.train.run import run

TIMEOUT = 120.0
#: Functions of torch.distributed that send pickles.
PICKLING = ("broadcast_object_list", "all_gather_object", "gather_object", "scatter_object_list")
PICKLING += ("send_object_list", "recv_object_list")


def train(line: list[str]) -> str:
    """Train one command line; returns an empty text, or why it stopped, was refused or failed."""
    try:
        config: dict[str, Any] = plain(compose(line))
        check(config)
        run(config, line)
    except (Interrupted, UserError) as stopped:
        return str(stopped)
    except Exception:  # noqa: BLE001 - the other runs go on
        return traceback.format_exc()
    return ""


def refuse_pickles() -> None:
    """Let every function of torch.distributed fail that sends a pickle to another process."""

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a pickle was to be sent to another process")

    for module in (distributed, distributed.distributed_c10d):
        for name in dir(module):
            if name in PICKLING:
                setattr(module, name, refuse)


def main(file: Path) -> None:
    """Train all jobs; each first process writes what happened beside the file."""
    refuse_pickles()
    jobs = json.loads(file.read_text(encoding="utf-8"))
    os.chdir(jobs["folder"])
    with process_group(TIMEOUT) as ranks:
        for name, line in jobs["runs"].items():
            found = train(line)
            print(f"{jobs['label']} {name}: {found.strip()[-300:] or 'done'}", flush=True)
            if found:
                answer = file.with_name(f"{file.stem}.{name}.rank{ranks.rank}.txt")
                answer.write_text(found, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
