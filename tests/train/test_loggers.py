"""One run directory is one W&B run, read back by W&B's own tool; other loggers."""

from __future__ import annotations

import json
import subprocess
import sys
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
from tests import forks


def read_back(file: Path) -> list[dict[str, Any]]:
    """All records of a file."""
    words = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(file)]
    shown = subprocess.run(words, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in shown.stdout.splitlines()]


def of(records: list[dict[str, Any]], kind: str) -> list[Any]:
    """What the records of a kind hold."""
    return [record[kind] for record in records if record["type"] == kind]


FACTS = {"parameters": {"total": 10}, "bytes": {"total": {"packed": 4}}}


def config(*overrides: str) -> dict[str, Any]:
    return plain(compose(["scale=smoke", *overrides]))


def opened(chosen: dict[str, Any], folder: Path, step: int = 0) -> Any:
    return open_loggers(chosen["logger"], hyperparameters(chosen, FACTS), folder, step)


def start(directory: RunDir, **change: Any) -> tuple[str, str, str]:
    """Id, group and job type of a W&B run that is opened and closed at once."""
    directory.path.mkdir(exist_ok=True)  # as the run itself does before
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
        if not resumed:  # another that began in the same second
            (first,) = tmp_path.glob("wandb/offline-run-*")
            (tmp_path / "wandb/earlier" / first.name / "of another").mkdir(parents=True)
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


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Records of one row of a table, with experts in it, trained for a few steps."""
    root = tmp_path_factory.mktemp("runs")
    text = root / "text.txt"
    text.write_text("\n".join(f"The cat number {i} sees house {i % 7}.\n" for i in range(400)))
    words = ["+bitnet_qdyt/norms=qdyt", "ffn=moe", "scale=smoke", "seed=3", "model.dim=32"]
    words += ["data=text", f"data.path={text}", f"data.cache_dir={root / 'cache'}"]
    words += [
        "trainer.max_steps=4",
        "trainer.val_check_interval=2",
        "model.depth=1",
        "tokenizer=sentencepiece",
    ]
    words += ["callbacks.pictures.shortest=0"]
    ran = forks.run("train.py", *words, env={"CHIMERA_RUNS": str(root / "runs")})
    assert ran.returncode == 0, ran.stderr
    (file,) = (root / "runs").glob("*/wandb/offline-run-*/*.wandb")
    return read_back(file)


@pytest.mark.slow
def test_a_job_says_what_it_is_a_row_of(records: list[dict[str, Any]]) -> None:
    (run,) = of(records, "run")
    assert run["run_group"] == "bitnet_qdyt/norms"
    assert run["job_type"] == "qdyt"
    config = run["config"]["update"]
    expected = {"table": "bitnet_qdyt/norms", "row": "qdyt", "seed": 3, "norm": "qdyt"}
    expected |= {"ffn": "moe", "mixer": "attention", "scale": "smoke", "trainer.max_steps": 4}
    assert {key: config[key] for key in expected} == expected
    assert config["parameters"] > config["parameters.norm"] > 0
    assert config["bytes"] > config["bytes.embedding.packed"] > 0
    doubled = ("parameters.total", "bytes.total.packed", "choices.mixer")
    assert not [key for key in doubled if key in config]
    assert run["tags"] == ["mlm", "attention", "scale=smoke"]
    assert run["display_name"].endswith(config["identity"])
    nested = [k for k, v in config.items() if isinstance(v, dict) and v and k != "_wandb"]
    assert not nested  # W&B groups and filters by flat keys only


@pytest.mark.slow
def test_a_job_is_finished(records: list[dict[str, Any]]) -> None:
    (end,) = of(records, "exit")
    assert end.get("exit_code", 0) == 0


@pytest.mark.slow
def test_charts_of_gradients_rates_experts_and_skipped_steps(records: list[dict[str, Any]]) -> None:
    points = [point["item"] for point in of(records, "history")]
    training = [point for point in points if "train/loss" in point]
    assert [point["trainer/global_step"] for point in training] == [1, 2, 3, 4]
    for point in training:
        by_component = [v for k, v in point.items() if k.startswith("grad_norm/")]
        assert len(by_component) > 3
        total = sum(norm**2 for norm in by_component) ** 0.5
        assert total == pytest.approx(point["train/grad_norm"], rel=1e-4)
        assert {k.removeprefix("grad_norm/") for k in point if k.startswith("grad_norm/")} == {
            k.removeprefix("lr/") for k in point if k.startswith("lr/")
        }
        assert any("load" in k for k in point if k.startswith("stats/"))
        assert point["guard/skipped"] == point["guard/scaler_skipped"] == 0
        assert "epoch" not in point  # train/epoch has it
    validated = [point["trainer/global_step"] for point in points if "val/loss" in point]
    assert validated == [2, 4]


@pytest.mark.slow
def test_parts_and_samples_are_there(records: list[dict[str, Any]]) -> None:
    expected = {
        "model": "image-file",
        "model/parameters": "table-file",
        "model/settings": "table-file",
        "pictures/activations": "image-file",
        "pictures/weights": "image-file",
        "pictures/maps": "image-file",
        "samples": "table-file",
    }
    points = [point["item"] for point in of(records, "history")]
    kinds = {k.removesuffix("._type"): p[k] for p in points for k in p if k.endswith("._type")}
    assert kinds == expected
    summary = {key for each in of(records, "summary") for key in each.get("update", {})}
    assert {"val/perplexity", "test/perplexity", "val/unigram_perplexity"} <= summary


@pytest.mark.slow
def test_a_job_of_a_sweep_is_grouped_by_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHIMERA_SWEEP", "sweep-12345678:mixer,optim.lr")
    _, group, job = start(RunDir(tmp_path))
    assert group == "sweep-12345678"
    assert job == "mixer=attention optim.lr=0.002"
