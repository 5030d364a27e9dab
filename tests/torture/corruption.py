"""R3: a run with damaged checkpoints resumes from the newest valid one and ends with equal numbers.

The run was killed in its 13th step. Step 12 is saved as `rolling-12` and `epoch-2`, two names of
one file; the checkpoint before it is `best-10`.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path

from chimera.rundir.checkpoints import sidecar_path
from tests.torture import faults, job
from tests.torture.resume import whole

NEWEST = ("rolling-12.ckpt", "epoch-2.ckpt")


def truncate(share: float) -> Callable[[Path], None]:
    """Truncate the file to a share of its bytes."""

    def damage(folder: Path) -> None:
        file = folder / NEWEST[0]
        data = file.read_bytes()
        with file.open("r+b") as stream:  # in place, because the file has two names
            stream.truncate(int(len(data) * share))

    return damage


def flip(where: Callable[[Path], int]) -> Callable[[Path], None]:
    """Flip one bit of the byte at `where(file)`."""

    def damage(folder: Path) -> None:
        file = folder / NEWEST[0]
        offset = where(file)
        with file.open("r+b") as stream:
            stream.seek(offset)
            byte = stream.read(1)[0]
            stream.seek(offset)
            stream.write(bytes([byte ^ 4]))

    return damage


def _record(number: int) -> Callable[[Path], int]:
    """Offset of the middle of the n-th stored tensor: weights first, optimiser state last."""

    def offset(file: Path) -> int:
        with zipfile.ZipFile(file) as archive:
            stored = [i for i in archive.infolist() if re.search(r"/data/\d+$", i.filename)]
        stored.sort(key=lambda i: int(i.filename.rpartition("/")[2]))
        return stored[number].header_offset + 128 + stored[number].file_size // 2

    return offset


def missing(folder: Path) -> None:
    """Remove the files, but not their checksums."""
    for name in NEWEST:
        (folder / name).unlink()


def dangling(folder: Path) -> None:
    """Replace the files by links to a path that does not exist."""
    for name in NEWEST:
        (folder / name).unlink()
        (folder / name).symlink_to("/nowhere/at-all.ckpt")


def wrong_checksum(folder: Path) -> None:
    """Change one digit of each checksum."""
    for name in NEWEST:
        file = sidecar_path(folder / name)
        text = file.read_text()
        at = text.index('"sha256": ["') + len('"sha256": ["')
        digit = "0" if text[at] != "0" else "1"
        file.write_text(text[:at] + digit + text[at + 1 :])


def no_checksum(folder: Path) -> None:
    """Remove both checksums."""
    for name in NEWEST:
        sidecar_path(folder / name).unlink()


CASES: dict[str, Callable[[Path], None] | None] = {
    "truncated to 0 %": truncate(0),
    "truncated to 1 %": truncate(0.01),
    "truncated to 50 %": truncate(0.5),
    "truncated to 99 %": truncate(0.99),
    "bit flipped in the header": flip(lambda _: 10),
    "bit flipped in a weight": flip(_record(0)),
    "bit flipped in the optimiser's state": flip(_record(-1)),
    "file missing": missing,
    "link to nothing": dangling,
    "wrong checksum": wrong_checksum,
    "no checksum": no_checksum,
    "torn save": None,
}


def case(folder: Path, name: str) -> list[str]:
    """Run a case; return its failures, empty if there are none."""
    reference, broken, to = whole(folder), folder / "broken", folder / "damaged"
    log = folder / "damaged.log"
    log.unlink(missing_ok=True)
    shutil.rmtree(to, ignore_errors=True)
    damage = CASES[name]
    if damage is None:
        job.train(job.arguments(folder, to), log, faults.kill_at("save of step", 12))
    else:
        if not broken.exists():
            job.train(job.arguments(folder, broken), log, faults.kill_at("micro-batch", 22))
        subprocess.run(("cp", "-a", str(broken), str(to)), check=True)  # -a copies links as links
        damage(to / "checkpoints")
    log.unlink(missing_ok=True)
    code = job.train(job.arguments(folder, to), log)
    text = log.read_text()
    resuming = next((line for line in text.splitlines() if line.startswith("resuming")), "")
    wrong = [] if code == 0 else [f"exit code {code}: {text[-300:]}"]
    if "best-10.ckpt at step 10" not in resuming or "rejected" not in resuming:
        wrong.append(f"printed: {resuming}")
    return wrong or job.differences(to, reference)


def r3(folder: Path) -> tuple[int, int]:
    """Run twelve corruptions; return the number that passed and the number of all."""
    good = 0
    for name in CASES:
        wrong = case(folder, name)
        good += not wrong
        print(f"R3  {name}: {'; '.join(wrong) or 'recovered, equal'}", flush=True)
    return good, len(CASES)
