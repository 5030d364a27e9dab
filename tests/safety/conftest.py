"""Honest directories, made once a session: a run with the report of a step, and an export."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from chimera.cli.finished import export
from chimera.cli.train import main as train
from tests.safety.kit import TEXT, Scene, line

REPORT = {
    "kind": "loss",
    "what": "loss of micro-batch 0 is nan",
    "losses": ["nan"],
    "gradients_not_finite": {},
    "weights_not_finite": {},
    "state": "checkpoints/last.ckpt",
    "random": {"seed": 0, "rank": 0},
    "at_fault": [0],
    "step": 3,
    "absent": [["mask", "index"]],
    "batches_an_epoch": 10,
}


@pytest.fixture(scope="session")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`run` and `exported`, with the text that they are of."""
    root = tmp_path_factory.mktemp("honest")
    (root / "text.txt").write_text(TEXT * 100)
    for part in ("dev", "test"):
        (root / "mmlu" / part).mkdir(parents=True)
        (root / "mmlu" / part / f"cats_{part}.csv").write_text("the cat,sees,runs,is,red,A\n")
    assert train(line(root, f"run_dir={root}/run")) == 0
    (root / "run/nan_report-2.json").write_text(json.dumps(REPORT))
    np.savez(root / "run/nan_report-2.npz", **{"0/ids": np.zeros((4, 16), dtype=np.int64)})
    assert export([f"run={root}/run", f"to={root}/exported"]) == 0
    return root


@pytest.fixture
def scene(honest: Path, tmp_path: Path) -> Iterator[Callable[[str], Scene]]:
    """Makes a copy of `run` or `exported`, to be poisoned."""
    made: list[Scene] = []

    def make(name: str = "run") -> Scene:
        for file in ("text.txt", "cache", "mmlu"):
            target = tmp_path / file
            if not target.exists():
                target.symlink_to(honest / file)
        shutil.copytree(honest / name, tmp_path / name, symlinks=True)
        made.append(Scene(tmp_path, tmp_path / name))
        return made[-1]

    yield make
    for each in made:
        each.close()
