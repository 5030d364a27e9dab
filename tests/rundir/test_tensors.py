"""Files of tensors that others read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError

from chimera.rundir.tensors import load_tensors, save_tensors, usual_mode


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
