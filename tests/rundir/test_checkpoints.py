"""Checkpoint files: at any moment a valid one, damage seen, tiers by what is there."""

from __future__ import annotations

import errno
import json
import math
import os
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError

from chimera.errors import UserError
from chimera.rundir import checkpoints as files
from chimera.rundir.checkpoint_io import CheckedIO, finite, load
from chimera.rundir.checkpoints import InvalidCheckpoint, ResumePoint, Sidecar, newest, sidecar_path
from chimera.rundir.tensors import load_tensors, save_tensors, usual_mode
from chimera.safe_io import write_atomic


def save(folder: Path, name: str, step: int, **more: object) -> Path:
    """A checkpoint as Lightning would have it written."""
    path = folder / f"{name}.ckpt"
    content = {"global_step": step, "epoch": 0, "chimera": more}
    CheckedIO().save_checkpoint({**content, "state_dict": {"w": torch.full((64,), step)}}, path)
    return path


def test_what_is_written_is_read_and_nothing_is_left_over(tmp_path: Path) -> None:
    path = save(tmp_path, "rolling-3", 3, loss=1.5)
    assert load(path)["state_dict"]["w"].tolist() == [3] * 64
    facts = files.verify(path)
    assert (facts.step, facts.loss, facts.resumable) == (3, 1.5, True)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["rolling-3.ckpt", "rolling-3.ckpt.json"]


def test_the_newest_is_by_step_and_not_by_time(tmp_path: Path) -> None:
    save(tmp_path, "rolling-10", 10)
    save(tmp_path, "epoch-0", 9)
    save(tmp_path, "best-2", 2)
    assert newest(tmp_path).path == tmp_path / "rolling-10.ckpt"
    assert newest(tmp_path / "nowhere") == ResumePoint(None, 0)


def test_one_that_cannot_be_gone_on_from_is_left_out(tmp_path: Path) -> None:
    save(tmp_path, "rolling-1", 1)
    save(tmp_path, "emergency", 2, resumable=False)
    assert newest(tmp_path).step == 1
    assert newest(tmp_path, resumable=False).step == 2


def test_damage_is_named_set_aside_and_rejected(tmp_path: Path) -> None:
    save(tmp_path, "rolling-1", 1)
    flipped, bare, gone = (save(tmp_path, f"rolling-{n}", n) for n in (2, 3, 4))
    data = bytearray(flipped.read_bytes())
    data[len(data) // 2] ^= 1
    flipped.write_bytes(data)
    sidecar_path(bare).unlink()
    gone.unlink()
    found = files.prepare(tmp_path)
    assert found.step == 1
    assert found.rejected == {
        "rolling-2.ckpt": "its bytes do not match its checksum",
        "rolling-3.ckpt": "no checksum beside it",
        "rolling-4.ckpt": "missing",
    }
    assert "\n" not in str(found)
    assert newest(tmp_path) == ResumePoint(tmp_path / "rolling-1.ckpt", 1)
    assert (tmp_path / "rolling-2.ckpt.invalid").exists()


def test_a_sidecar_that_is_no_json(tmp_path: Path) -> None:
    path = save(tmp_path, "rolling-1", 1)
    for text in ("", "{", '{"step": 1, "colour": 2}', "[1]"):
        sidecar_path(path).write_text(text)
        with pytest.raises(InvalidCheckpoint, match="cannot be read"):
            files.read_sidecar(path)


def test_a_kill_while_one_replaces_another_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save(tmp_path, "rolling-1", 1)
    before = path.read_bytes()

    class Killed(BaseException):
        pass

    def killed(*_: object) -> None:
        raise Killed

    # The new checksum is there, the new file is not.
    monkeypatch.setattr(files, "write_atomic", lambda *_: write_atomic(*_) or killed())
    with pytest.raises(Killed):
        save(tmp_path, "rolling-1", 1, loss=2.0)
    assert path.read_bytes() == before
    assert newest(tmp_path).step == 1


def test_a_full_disk_leaves_the_old_one_and_no_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save(tmp_path, "rolling-1", 1)
    before = path.read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    for name in ("rolling-1", "rolling-2"):
        with pytest.raises(OSError, match="No space"):
            save(tmp_path, name, 2)
    assert path.read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["rolling-1.ckpt", "rolling-1.ckpt.json"]


def test_two_names_share_their_bytes(tmp_path: Path) -> None:
    first, other = save(tmp_path, "rolling-4", 4), tmp_path / "epoch-0.ckpt"
    files.publish(first, other)
    assert os.path.samefile(first, other)
    files.remove(first)
    assert newest(tmp_path).path == other


def test_links_lead_to_the_right_ones(tmp_path: Path) -> None:
    for step in (1, 2):
        files.link(tmp_path / "last.ckpt", save(tmp_path, f"rolling-{step}", step))
    assert load(tmp_path / "last.ckpt")["global_step"] == 2


def test_the_best_by_what_is_in_the_folder(tmp_path: Path) -> None:
    for step, loss in ((1, 3.0), (2, 1.0), (3, 2.0)):
        save(tmp_path, f"best-{step}", step, loss=loss)
    assert [(loss, p.name) for loss, p in files.best(tmp_path)] == [
        (1.0, "best-2.ckpt"),
        (2.0, "best-3.ckpt"),
        (3.0, "best-1.ckpt"),
    ]


def test_starting_over_leaves_nothing_to_go_on_from(tmp_path: Path) -> None:
    save(tmp_path, "rolling-1", 1)
    (tmp_path / "my.ckpt.notes.txt").write_text("somebody's own")
    (tmp_path / "broken.ckpt").write_text("of a run with weights that are not finite")
    files.link(tmp_path / "last.ckpt", tmp_path / "rolling-1.ckpt")
    assert files.prepare(tmp_path, fresh=True) == ResumePoint(None, 0)
    assert [path.name for path in tmp_path.iterdir()] == ["my.ckpt.notes.txt"]


def test_a_checkpoint_runs_no_code(tmp_path: Path) -> None:
    path = tmp_path / "rolling-1.ckpt"
    torch.save({"global_step": 1, "epoch": 0, "harm": Sidecar(1)}, path)
    with pytest.raises(UserError, match=r"more than tensors.*global \S*\.Sidecar$") as error:
        CheckedIO().load_checkpoint(path, weights_only=False)
    assert "torch.load" not in str(error.value)  # its advice is to run the file's code


def test_finite(tmp_path: Path) -> None:
    path = tmp_path / "x.ckpt"
    for value, good in ((1.0, True), (math.nan, False), (math.inf, False)):
        torch.save({"state_dict": {"w": torch.tensor([0.0, value])}}, path)
        assert finite(path) is good


def test_the_sidecar_is_plain(tmp_path: Path) -> None:
    known = json.loads(sidecar_path(save(tmp_path, "rolling-1", 1)).read_text())
    assert set(known) == {"step", "epoch", "resumable", "loss", "sha256"}


def test_without_hard_links_the_tiers_are_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    first, other = save(tmp_path, "rolling-4", 4), tmp_path / "epoch-0.ckpt"
    files.publish(first, other)
    assert not os.path.samefile(first, other)
    files.remove(first)
    assert newest(tmp_path).path == other


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o027, 0o640), (0o077, 0o600)])
def test_a_file_of_tensors_has_the_mode_of_any_other(tmp_path: Path, umask: int, mode: int) -> None:
    old = os.umask(umask)
    try:
        save_tensors({"a": torch.ones(2)}, tmp_path / "x.safetensors", {"format": "pt"})
    finally:
        os.umask(old)
    assert (tmp_path / "x.safetensors").stat().st_mode & 0o777 == mode
    assert load_tensors(tmp_path / "x.safetensors")["a"].tolist() == [1, 1]


def test_a_file_that_is_written_again_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.touch()
    path.chmod(0o664)
    save_tensors({"a": torch.ones(2)}, path)
    assert path.stat().st_mode & 0o777 == 0o664


def test_a_failed_write_leaves_no_empty_file_and_keeps_an_old_one(tmp_path: Path) -> None:
    new, old = tmp_path / "new", tmp_path / "old"
    old.write_text("kept")
    full = SafetensorError('I/O error: Os { code: 28, kind: StorageFull, message: "No space" }')
    for path in (new, old):
        with pytest.raises(OSError, match="No space left"), usual_mode(path):
            raise full
    assert [path.name for path in tmp_path.iterdir()] == ["old"]
    assert old.read_text() == "kept"
