"""What was read of many runs, kept while their files stay as they are.

Reading a thousand runs takes most of a comparison's time. `.summaries.json` below the folder of all
runs has what was read of each, by its path, with size and time of its files and a hash of this
package's sources; where any of them differs, the run is read again. It is never read from, or
written into, another folder: records of a store and runs of somebody else cannot bring their own.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chimera.paths import runs_root
from chimera.rundir.atomic import write_atomic
from chimera.rundir.index import code_state, stamp

FILE = ".summaries.json"
#: Files of a run that a summary depends on.
FILES = ("config.yaml", "status.json", "run.json", "steps.csv")
#: Most summaries that are kept; the oldest go first. A thousand are about fifteen megabytes.
MOST = 4000


class Summaries:
    """The summaries of this process's folder of runs."""

    def __init__(self) -> None:
        self.root = runs_root()
        self._state = code_state()
        self._kept: dict[str, Any] = {}
        self._stamps: dict[Path, list[Any]] = {}
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError, RecursionError):
            kept = json.loads((self.root / FILE).read_text(encoding="utf-8"))
            if kept["state"] == self._state:
                self._kept = dict(kept["runs"])

    def get(self, run: Path) -> Any:
        """The summary of a run; None if there is none of its files as they are now."""
        self._stamps[run] = [stamp(run / name) for name in FILES]
        try:
            stamps, summary = self._kept[str(run.absolute())]
        except (KeyError, TypeError, ValueError):
            return None
        return summary if stamps == self._stamps[run] else None

    def save(self, summaries: Mapping[Path, Any]) -> None:
        """Keep these summaries of runs that `get` was asked for; a full disk keeps none."""
        if not summaries or not self.root.is_dir():
            return
        for run, summary in summaries.items():
            key = str(run.absolute())
            self._kept.pop(key, None)
            self._kept[key] = [self._stamps[run], summary]
        kept = {"state": self._state, "runs": dict(list(self._kept.items())[-MOST:])}
        with contextlib.suppress(OSError, TypeError, ValueError):
            write_atomic(self.root / FILE, json.dumps(kept))
