"""Open W&B's viewer in the terminal on the offline runs at hand: `make look`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from chimera.errors import UserError
from chimera.paths import runs_root
from chimera.report.__main__ import guarded


def gather(root: Path) -> Path:
    """A folder of links to every offline run below `root`, as the viewer wants them side by side.

    Raises:
        UserError: there is none.
    """
    found = sorted(root.glob("*/wandb/offline-run-*")) + sorted(root.glob("*/wandb/run-*"))
    if not found:
        raise UserError(f"no W&B run in {root}; make train leaves one (logger=wandb)")
    folder = root / ".wandb"
    folder.mkdir(exist_ok=True)
    for link in folder.iterdir():
        link.unlink()
    for run in found:
        (folder / run.name).symlink_to(run.resolve())
    return folder


def main(argv: list[str]) -> int:
    """Replace this process by the viewer."""
    root = Path(argv[0]) if argv else runs_root()
    folder = gather(root)
    if not sys.stdout.isatty():
        raise UserError("the viewer needs a terminal")
    viewer = Path(sys.executable).with_name("wandb")
    os.execv(viewer, [str(viewer), "leet", str(folder)])


if __name__ == "__main__":
    sys.exit(guarded(main, sys.argv[1:]))
