"""One run directory is one W&B run, however often it is stopped and goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import WandbLogger

from chimera.config.compose import compose, plain
from chimera.config.settings import Logger
from chimera.rundir.directory import RunDir
from chimera.train.loggers import finish, make_loggers

FACTS = {"parameters": {"total": 10}, "bytes": {"total": {"packed": 4}}}


def start(directory: RunDir, **change: Any) -> tuple[str, str, str]:
    """Id, group and job type of a W&B run that is opened and closed at once."""
    config = plain(compose(["scale=smoke"])) | change
    (logger,) = make_loggers(Logger("wandb"), config, FACTS, directory)
    assert isinstance(logger, WandbLogger)
    run = logger.experiment
    found = (run.id, run.group, run.job_type)
    finish([logger], failed=False)
    return found


def test_goes_on_under_its_id_and_starts_over_under_another(tmp_path: Path) -> None:
    directory = RunDir(tmp_path / "run")
    first, group, job = start(directory)
    assert (group, job) == ("mlm", "mlm")  # no table: the task
    assert start(directory)[0] == first
    assert start(directory, overwrite=True)[0] != first
    assert start(RunDir(tmp_path / "other"))[0] != first


def test_a_row_is_grouped_under_its_table(tmp_path: Path) -> None:
    row = {"name": "paper/table", "row": "qdyt"}
    assert start(RunDir(tmp_path), table=row)[1:] == ("paper/table", "qdyt")


def test_none_is_none(tmp_path: Path) -> None:
    config = plain(compose(["scale=smoke"]))
    assert make_loggers(Logger("none"), config, FACTS, RunDir(tmp_path)) == []
