"""The weights that a record of the run store may have, from which others start.

store/<name>-<identity>/
  weights.safetensors  those of the run's best checkpoint
  tokenizer/           as in the run
  status.json          has a checksum of each, too
"""

from __future__ import annotations

import shutil
from pathlib import Path

from chimera.errors import UserError
from chimera.rundir.directory import RunDir
from chimera.rundir.store import STORED, digest

WEIGHTS, TOKENIZER = "weights.safetensors", "tokenizer"
#: Key of a record's status.json beside the checksums of the other files.
SUMS = "weights"


def write(run: RunDir, folder: Path) -> dict[str, str]:
    """Write a run's best weights and its tokenizer into a folder. Loads torch.

    Args:
        run: a finished run.
        folder: of its record.

    Returns:
        The checksum of each file, by its path in the folder.

    Raises:
        UserError: the run has no best checkpoint, an adapter, or the body of another library.
    """
    from safetensors.torch import save

    from chimera.rundir.checkpoint_io import model_tensors

    if run.config()["choices"]["adapter"] != "none" or (run.path / "body").is_dir():
        raise UserError(
            f"{run.path} has an adapter or the body of another library; a store keeps the weights"
            " of neither, an export does"
        )
    best = run.checkpoints / "best.ckpt"
    if not best.exists():
        raise UserError(f"{run.path} has no best checkpoint, so its weights cannot be stored")
    # Tied tensors share their memory, which the format does not have.
    tensors = {name: tensor.contiguous().clone() for name, tensor in model_tensors(best).items()}
    (folder / WEIGHTS).write_bytes(save(tensors))
    shutil.copytree(run.tokenizer, folder / TOKENIZER)
    files = [folder / WEIGHTS, *sorted((folder / TOKENIZER).iterdir())]
    return {file.relative_to(folder).as_posix(): digest(file) for file in files}


def weights_of(record: RunDir) -> Path | None:
    """The file of a record's weights; None if it has none.

    Args:
        record: of a run store, checked.

    Raises:
        UserError: a file differs from its checksum, is missing, or a link.
    """
    sums = record.status()[STORED].get(SUMS)
    if not sums:
        return None
    there = [WEIGHTS, *(f"{TOKENIZER}/{path.name}" for path in record.tokenizer.glob("*"))]
    if not isinstance(sums, dict) or sorted(sums) != sorted(there):
        raise UserError(f"{record.path} has not the weights and the tokenizer that were stored")
    for name, stored in sums.items():
        file = record.path / name
        linked = file.is_symlink() or file.parent.is_symlink()
        if linked or not file.is_file() or digest(file) != stored:
            raise UserError(f"{file} is not what was stored; restore it, or add the run anew")
    return record.path / WEIGHTS
