"""A run stopped on m processes goes on with n: `python -m tests.ranks.resume`.

For every pair of numbers and strategies the run is stopped half-way with the one and goes on with
the other. The table has the largest relative difference of a step's loss from the run of one
process that nothing stopped. The model is not quantised, so that this is rounding alone.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.golden import inputs
from tests.golden.combinations import STEPS, Combination, own
from tests.ranks.equality import ALONE, PLAIN, Setting, difference, losses, place, train

SETTINGS = (ALONE, Setting(2), Setting(4), Setting(2, "fsdp"), Setting(4, "fsdp"))
WHOLE = own("whole", PLAIN)


def half(setting: Setting, folder: Path) -> Combination:
    """The run with a callback that stops it half-way, the first time."""
    fault = {
        "_target_": "tests.ranks.faults.Fault",
        "kind": "term",
        "rank": setting.world - 1,
        "step": STEPS // 2,
        "marker": folder / f"{setting.label}.marker",
    }
    words = [f"+callbacks.fault.{key}={value}" for key, value in fault.items()]
    return own(f"from-{setting.label}", f"{PLAIN} {' '.join(words)}")


def table(folder: Path, settings: Sequence[Setting]) -> str:
    """A Markdown table: a row for each setting that was stopped, a column for each that went on."""
    train(ALONE, [WHOLE], folder)
    whole = losses(folder, ALONE, WHOLE)
    for setting in settings:
        train(setting, [half(setting, folder)], folder)
    halves = {setting: half(setting, folder) for setting in settings}
    for to in settings:
        for setting, one in halves.items():
            source, target = (folder / "inputs" / place(folder, s, one) for s in (setting, to))
            if source != target:
                shutil.copytree(source, target, symlinks=True)
    for to in settings:  # after all copies are made
        train(to, list(halves.values()), folder)
    lines = [f"| stopped on | {' | '.join(map(str, settings))} |"]
    lines.append("|" + " --- |" * (len(settings) + 1))
    for setting, one in halves.items():
        found = (difference(whole, losses(folder, to, one)) for to in settings)
        cells = ("failed" if value is None else f"{value:.1e}" for value in found)
        lines.append(f"| {setting} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="resume-"))
    inputs.make(folder / "inputs")
    print(table(folder, SETTINGS))


if __name__ == "__main__":
    main()
