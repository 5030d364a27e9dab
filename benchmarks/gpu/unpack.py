"""Store runs of another machine on the packed documents as runs on this machine's default corpus.

    python -m benchmarks.gpu.unpack <folder of runs> …

`benchmarks.gpu.pack` writes this machine's documents into a file, so that another machine trains on
the same text: `data.documents=.gpu/documents.json.gz`. Such a run has an identity of its own and
counts for no table that leaves the key out. Here each finished run in the folders is put into the
run store without the key, if its documents are those that this machine's default corpus has, to the
letter. Machine and commit of a record are those of the run.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from chimera.cli.errors import exit_code
from chimera.data.corpus.pydocs import cached_harvest, read
from chimera.errors import UserError
from chimera.paths import cache_root
from chimera.report.comparison import directories
from chimera.rundir.directory import RunDir
from chimera.rundir.identity import identity
from chimera.rundir.keep import add

KEY = "data.documents"


def main(arguments: Sequence[str]) -> int:
    """Returns the exit code."""
    return exit_code(lambda: _unpack([Path(text) for text in arguments]))


def _unpack(folders: Sequence[Path]) -> int:
    if not folders:
        raise UserError("write python -m benchmarks.gpu.unpack <folder of runs> …")
    for run in directories(folders):
        state = RunDir(run).status().get("state")
        if state != "DONE":
            print(f"{run}: {state}, left out")
            continue
        place, new = stored(run)
        print(f"{run}: {place}{'' if new else ', there already'}")
    return 0


def stored(run: Path, root: Path | None = None) -> tuple[Path, bool]:
    """Store a finished run without `data.documents`.

    Args:
        run: its directory.
        root: of the store; None: that of this process.

    Returns:
        The record's directory, and whether it was written.

    Raises:
        UserError: the run names no documents, or other ones than this machine's default corpus has,
            or the store does not take it.
    """
    config: dict[str, Any] = RunDir(run).config()
    named = config["data"].get("documents")
    if named is None:
        raise UserError(f"{run} names no {KEY}; chimera store add takes it as it is")
    if not _same(Path(named)):
        raise UserError(f"{run}: {named} is not the text of this machine's default corpus")
    config["data"]["documents"] = None
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / run.name
        shutil.copytree(run, copy, ignore=shutil.ignore_patterns("checkpoints"))
        (copy / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
        words = (run / "overrides.txt").read_text().splitlines()
        kept = [f"{word}\n" for word in words if not word.startswith(f"{KEY}=")]
        (copy / "overrides.txt").write_text("".join(kept))
        record = RunDir(run).record() | {"identity": identity(config)}
        (copy / "run.json").write_text(json.dumps(record))
        return add(copy, root)


@cache
def _same(documents: Path) -> bool:
    return documents.is_file() and read(documents) == read(cached_harvest(cache_root()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
