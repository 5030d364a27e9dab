"""Damage checkpoints: the run resumes from the newest valid one and ends with equal numbers.

The run was killed in its 13th step. Step 12 is saved as `rolling-12` and `epoch-2`, two names of
one file; the checkpoint before it is `best-10`.
"""

from __future__ import annotations

import re
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from chimera.rundir.checkpoint_io import load, write
from chimera.rundir.checkpoints import announce, read_sidecar, sidecar_path
from tests.torture import job

NEWEST = ("rolling-12.ckpt", "epoch-2.ckpt")


def truncate(folder: Path, share: float) -> None:
    file = folder / NEWEST[0]
    with file.open("r+b") as stream:  # in place, because the file has two names
        stream.truncate(int(file.stat().st_size * share))


def flip(folder: Path, record: int | None) -> None:
    """Flip a bit in the middle of the n-th tensor, weights first; None: in the header."""
    file, offset = folder / NEWEST[0], 10
    if record is not None:
        with zipfile.ZipFile(file) as archive:
            stored = [i for i in archive.infolist() if re.search(r"/data/\d+$", i.filename)]
        stored.sort(key=lambda i: int(i.filename.rpartition("/")[2]))
        offset = stored[record].header_offset + 128 + stored[record].file_size // 2
    data = bytearray(file.read_bytes())
    data[offset] ^= 4
    with file.open("r+b") as stream:
        stream.write(data)


def missing(folder: Path, link: bool) -> None:
    """The files are gone, not their checksums; or they are links to nothing."""
    for name in NEWEST:
        (folder / name).unlink()
        if link:
            (folder / name).symlink_to("/nowhere/at-all.ckpt")


def checksum(folder: Path, wrong: bool) -> None:
    """The checksums are gone, or one digit of each is another."""
    for file in (sidecar_path(folder / name) for name in NEWEST):
        text = file.read_text()
        digit = re.search(r'"sha256": \["(.)', text)
        assert digit
        file.unlink()
        if wrong:
            at = digit.start(1)
            file.write_text(text[:at] + ("1" if digit[1] == "0" else "0") + text[at + 1 :])


DAMAGES: dict[str, Callable[[Path], None] | None] = {
    **{f"truncated to {s:.0%}": partial(truncate, share=s) for s in (0, 0.01, 0.5, 0.99)},
    "bit flipped in the header": partial(flip, record=None),
    "bit flipped in a weight": partial(flip, record=0),
    "bit flipped in the optimiser's state": partial(flip, record=-1),
    "file missing": partial(missing, link=False),
    "link to nothing": partial(missing, link=True),
    "wrong checksum": partial(checksum, wrong=True),
    "no checksum": partial(checksum, wrong=False),
    "killed within the last save": None,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_run_goes_on_from_the_checkpoint_before(name: str, folder: Path) -> None:
    command, damage = job.new(folder, "damaged"), DAMAGES[name]
    if damage is None:
        job.train(command, "faults.kill_at('save of step', 12)")
    else:
        if not (folder / "broken").exists():
            job.train(job.new(folder, "broken"), "faults.kill_at('micro-batch', 22)")
        shutil.copytree(folder / "broken", folder / "damaged", symlinks=True)
        first, *others = (folder / "damaged/checkpoints" / name for name in NEWEST)
        for other in others:  # still two names of one file
            other.unlink()
            other.hardlink_to(first)
        damage(folder / "damaged/checkpoints")
    assert "rejected" in job.resumed(command, job.whole(folder), says="best-10.ckpt at step 10")


#: What else a checkpoint with a valid checksum may hold, by the key that is changed.
ODD = {
    "state_dict": {"model.body.norm.weight": torch.ones(3)},
    "loops": {"fit_loop": 3},
    "optimizer_states": [{"state": {0: "x"}, "param_groups": []}],
    "lr_schedulers": [7],
    "callbacks": {"Steps": {"tokens": "many"}},
}


@pytest.mark.slow
@pytest.mark.parametrize("key", ODD)
def test_a_checkpoint_of_something_else_is_refused_in_one_line(key: str, folder: Path) -> None:
    command = job.new(folder, "odd")
    if not (folder / "broken").exists():
        job.train(job.new(folder, "broken"), "faults.kill_at('micro-batch', 22)")
    shutil.copytree(folder / "broken", folder / "odd", symlinks=True)
    for name in NEWEST:
        file = folder / "odd/checkpoints" / name
        changed = {**load(file), key: ODD[key]}
        file.unlink()
        announce(file, replace(read_sidecar(file), sha256=[write(changed, file)]))
    code, said = job.train(command)
    assert (code, "Traceback" in said) == (2, False), said
    (line,) = [each for each in said.splitlines() if each.startswith("error: ")]
    assert ".ckpt" in line
