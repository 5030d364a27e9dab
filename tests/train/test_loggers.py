"""One run directory is one W&B run, however often it is stopped and goes on; other loggers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas
import pytest
import yaml
from lightning.pytorch.loggers import CSVLogger, WandbLogger

from chimera.config.compose import compose, plain
from chimera.errors import UserError
from chimera.rundir.directory import RunDir
from chimera.train.check import check
from chimera.train.loggers import hyperparameters, open_loggers
from tests.train.wandb_file import of, read_back

FACTS = {"parameters": {"total": 10}, "bytes": {"total": {"packed": 4}}}


def config(*overrides: str) -> dict[str, Any]:
    return plain(compose(["scale=smoke", *overrides]))


def opened(chosen: dict[str, Any], folder: Path, step: int = 0) -> Any:
    return open_loggers(chosen["logger"], hyperparameters(chosen, FACTS), folder, step)


def start(directory: RunDir, **change: Any) -> tuple[str, str, str]:
    """Id, group and job type of a W&B run that is opened and closed at once."""
    with opened(config() | change, directory.path) as (logger, _):
        assert isinstance(logger, WandbLogger)
        run = logger.experiment
        return run.id, run.group, run.job_type


@pytest.mark.slow
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


def test_a_run_that_goes_on_is_one_run_to_wandb_and_csv(tmp_path: Path) -> None:
    chosen = config("logger=[wandb,csv]")
    for resumed, steps in ((0, range(1, 7)), (4, range(5, 9)), (8, range(9, 10))):
        with opened(chosen, tmp_path, resumed) as loggers:
            for step in steps:
                for logger in loggers:
                    logger.log_metrics({"train/loss": step + resumed / 10}, step)
                    logger.log_metrics({"val/loss": step}, step)
        with (tmp_path / "points.jsonl").open("a") as file:
            file.write('{"step": 9, "po')  # torn by a kill
    expected = [1.0, 2.0, 3.0, 4.0, 5.4, 6.4, 7.4, 8.4, 9.8]
    (file,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    points = [point["item"] for point in of(read_back(file), "history")]
    for name in ("_step", "trainer/global_step", "val/loss"):
        assert [point[name] for point in points] == list(range(1, 10))
    assert [point["train/loss"] for point in points] == expected
    rows = pandas.read_csv(tmp_path / "metrics/metrics.csv")
    assert rows["train/loss"].dropna().tolist() == expected
    assert rows["step"].tolist() == [step for step in range(1, 10) for _ in range(2)]
    assert len([*tmp_path.glob("wandb/earlier/offline-run-*/*.wandb")]) == 2


def test_tensorboard_leaves_out_the_points_past_the_checkpoint(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    chosen = config("logger=tensorboard")
    for resumed, steps in ((0, range(1, 7)), (4, range(5, 9))):
        with opened(chosen, tmp_path, resumed) as loggers:
            for step in steps:
                for logger in loggers:
                    logger.log_metrics({"train/loss": step + resumed}, step)
    found = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    points = [(point.step, point.value) for point in found.Scalars("train/loss")]
    assert points == [*((n, n) for n in range(1, 5)), *((n, n + 4) for n in range(5, 9))]


def test_several_loggers_are_chosen_by_a_list(tmp_path: Path) -> None:
    several = config("logger=[wandb,csv]", "logger.wandb.project=mine")
    assert several["choices"]["logger"] == "csv,wandb"
    with opened(several, tmp_path) as loggers:
        assert [type(logger).__name__ for logger in loggers] == ["WandbRun", "CSVLogger", "Points"]
        assert loggers[0].name == "mine"
    with opened(config("logger=none"), tmp_path) as loggers:
        assert loggers == []
    both = config("logger=csv")
    both["logger"] = {"one": both["logger"], "other": {**both["logger"], "version": "again"}}
    with opened(both, tmp_path) as loggers:
        assert [logger.version for logger in loggers] == ["metrics", "again", None]


@pytest.mark.parametrize("name", ["tensorboard", "mlflow"])
def test_a_logger_whose_package_is_missing_says_so(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("A text.\n")
    monkeypatch.setattr("chimera.train.check.find_spec", lambda _: None)
    with pytest.raises(UserError, match=f"needs {name}, which is not here; pip install {name}"):
        check(config(f"logger={name}", "data=text", f"data.path={text}"))


def test_a_logger_of_lightning_by_its_own_arguments_knows_the_configuration(tmp_path: Path) -> None:
    with opened(config("logger=csv"), tmp_path) as (logger, _):
        assert isinstance(logger, CSVLogger)
        logger.log_metrics({"train/loss": 1.0}, step=1)
    assert "train/loss" in (tmp_path / "metrics" / "metrics.csv").read_text()
    known = yaml.safe_load((tmp_path / "metrics" / "hparams.yaml").read_text())
    assert (known["mixer"], known["task.name"], known["parameters"]) == ("attention", "mlm", 10)
