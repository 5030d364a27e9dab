"""The whole Trainer: every argument of Lightning's, debug configurations, explicit checkpoints."""

from __future__ import annotations

import inspect
import os
import re
import shutil
from dataclasses import fields
from pathlib import Path

import lightning.pytorch as pl
import pytest
import torch
import yaml
from torch import nn

from chimera.cli.train import main
from chimera.config.compose import compose, plain
from chimera.config.migration_hints import hints
from chimera.config.settings import Trainer, number
from chimera.errors import UserError
from chimera.paths import CONF, ROOT
from chimera.rundir.identity import NOT_IDENTITY, RESUMABLE, identity
from chimera.task.base import Task
from chimera.train.trainer import PASSED_THROUGH
from tests import forks
from tests.train import tiny
from tests.train.tiny import losses, record, same, state

ARGUMENTS = list(inspect.signature(pl.Trainer.__init__).parameters)[1:]
DEFAULTS = yaml.safe_load((CONF / "trainer/default.yaml").read_text())
OWN = [*tiny.LINE, tiny.CONSTANT]
#: Arguments of Lightning's Trainer that something else sets here, with what is said of them.
TRAINER = {
    key.removeprefix("trainer."): said
    for key, said in hints()["keys"].items()
    if key.startswith("trainer.")
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the text, and a run of 8 steps."""
    return tiny.trained(tmp_path_factory.mktemp("home"), eight=8)


@pytest.fixture
def here(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(home)
    return home


def table() -> dict[str, list[str]]:
    """Rows of the table in docs/reference/trainer.md by argument."""
    text = (ROOT / "docs/reference/trainer.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \|([^|]*)\|([^|]*)\|([^|]*)\|$", text, flags=re.M)
    return {name: [cell.strip() for cell in cells] for name, *cells in rows}


def test_the_table_has_every_argument_of_lightning_and_its_place_here() -> None:
    rows, own = table(), {field.name for field in fields(Trainer)}
    assert list(rows) == ARGUMENTS
    for name, (text, default, entered) in rows.items():
        key = f"trainer.{name}"
        if name not in own:
            assert text.replace("`", "") == f"refused: {TRAINER[name]}", name
            continue
        assert f"`{key}`" in text
        shown = "null" if DEFAULTS[name] is None else str(DEFAULTS[name]).lower()
        assert default == shown, name
        assert entered == (
            "no" if key in NOT_IDENTITY else "resumable" if key in RESUMABLE else "yes"
        ), name


def test_every_setting_is_in_the_file_and_reaches_lightning_or_is_done_here() -> None:
    own = {field.name for field in fields(Trainer)}
    assert own == set(DEFAULTS) - {"_target_"}
    done_here = {"limit_train_batches", "overfit_batches", "fast_dev_run", "max_time", "profiler"}
    done_here |= {"check_val_every_n_epoch", "num_sanity_val_steps", "enable_model_summary"}
    done_here |= {"limit_test_batches", "max_epochs", "threads", "checkpoint_keep_epochs"}
    done_here |= {"strategy", "num_nodes"}
    unset = {name for name in own if DEFAULTS[name] is None}
    assert unset - done_here == set(PASSED_THROUGH)


def test_an_argument_that_a_group_sets_is_refused_by_name(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for place, name in enumerate(sorted(set(ARGUMENTS) & set(TRAINER))):
        assert main([f"{'+' * (place % 3)}trainer.{name}=1"]) == 2
        line = capsys.readouterr().err
        assert line == f"error: trainer.{name} is no key of this configuration; {TRAINER[name]}\n"


def test_arguments_at_null_rename_no_run_and_the_others_do() -> None:
    before = identity(plain(compose([])))
    for change in ("trainer.limit_train_batches=3", "trainer.overfit_batches=0.5"):
        assert identity(plain(compose([change]))) != before
    for change in (
        "trainer.devices=4",
        "trainer=fsdp",
        "trainer.profiler=simple",
        "+trainer.max_time=00:01:00:00",
        "tags=[a]",
    ):
        assert identity(plain(compose([change]))) == before
    config = plain(compose([]))
    for name in [name for name in PASSED_THROUGH if DEFAULTS[name] is None]:
        del config["trainer"][name]
    assert identity(config) == before


def test_settings_outside_the_identity_alter_no_bit(here: Path) -> None:
    changed = ["num_sanity_val_steps=2", "inference_mode=false", "detect_anomaly=true"]
    changed += ["profiler=simple", "enable_model_summary=true", "max_time=01:00:00:00"]
    changed += ["enable_autolog_hparams=false", "reload_dataloaders_every_n_epochs=1"]
    words = [f"trainer.{change}" for change in changed]
    assert main([*OWN, "trainer.max_steps=8", *words, "run_dir=other"]) == 0
    assert same(here / "other", here / "eight")
    names = {file.name for file in (here / "other").glob("*-profile.txt")}
    assert names == {"fit-profile.txt", "validate-profile.txt", "test-profile.txt"}
    assert not list((here / "eight").glob("*profile*"))
    assert "run_training_epoch" in (here / "other/fit-profile.txt").read_text()


def test_fast_dev_run_ends_well(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["debug=fast_dev_run", "task=causal_lm", "tags=[night,try 2]", "run_dir=fast"]
    assert main([*tiny.LINE, *words]) == 0
    assert state(here / "fast") == "DONE"
    facts = record(here / "fast")
    assert facts["steps"] == len(losses(here / "fast")) == 1
    assert {"val/loss", "test/loss"} <= set(facts["metrics"])
    assert facts["tags"] == ["night", "try 2"]
    assert "Traceback" not in capsys.readouterr().err


def test_a_fast_dev_run_of_several_batches_has_whole_steps(here: Path) -> None:
    assert main([*tiny.LINE, "trainer.fast_dev_run=3", "run_dir=fast-3"]) == 0
    trainer = yaml.safe_load((here / "fast-3/config.yaml").read_text())["trainer"]
    assert trainer["max_steps"] == trainer["val_check_interval"] == 2  # of two micro-batches each
    assert trainer["limit_train_batches"] == trainer["limit_test_batches"] == 3
    assert record(here / "fast-3")["steps"] == 2


def test_debug_overfit_trains_on_the_same_batches(here: Path) -> None:
    words = ["debug=overfit", "trainer.max_steps=60", "optim.lr=3e-2", "model.dropout=0"]
    words += ["trainer.accumulate_grad_batches=1", "trainer.val_check_interval=30"]
    assert main([*OWN, *words, "run_dir=overfit"]) == 0
    rows = losses(here / "overfit")
    assert [row["epoch"] for row in rows[:7]] == [*"000111", "2"]
    first, last = (sum(float(row["loss"]) for row in part) for part in (rows[:3], rows[-3:]))
    assert last < first / 4


@pytest.mark.slow
@pytest.mark.parametrize("name", ["profile", "limit", "anomaly"])
def test_the_other_debug_configurations_end_well(name: str, here: Path) -> None:
    words = [*tiny.LINE, f"debug={name}", f"run_dir=debug-{name}"]
    words += ["trainer.max_steps=4"] if name != "limit" else []
    words += ["trainer.limit_train_batches=0.5"] if name == "limit" else []
    assert main(words) == 0
    assert state(here / f"debug-{name}") == "DONE"
    assert (name == "profile") == (here / f"debug-{name}/fit-profile.txt").exists()


def test_debug_wins_over_scale_and_rows_and_loses_to_the_command_line() -> None:
    row = "+bitnet_qdyt/norms=static_tanh"
    for words in (["scale=smoke"], ["scale=small", row], []):
        assert plain(compose([*words, "debug=profile"]))["trainer"]["max_steps"] == 20
    trainer = plain(compose(["debug=profile", "trainer.max_steps=7"]))["trainer"]
    assert (trainer["max_steps"], trainer["profiler"]) == (7, "simple")


def test_shares_of_batches() -> None:
    assert number("limit_val_batches", 0.5, 9) == 4
    assert number("limit_val_batches", 1, 9) == 1
    assert number("limit_val_batches", 1.0, 9) is number("limit_val_batches", None, 9) is None
    with pytest.raises(UserError, match=r"limit_val_batches=0.1 of 9 batches is less than one"):
        number("limit_val_batches", 0.1, 9)


@pytest.mark.parametrize(
    ("words", "validated"),
    [
        (["trainer.val_check_interval=0.5", "trainer.limit_train_batches=8"], [2, 4, 6, 8]),
        (["trainer.check_val_every_n_epoch=2", "trainer.limit_train_batches=4"], [4, 8]),
        (["trainer.val_check_interval=epoch", "trainer.limit_train_batches=6"], [3, 6]),
    ],
)
def test_validation_follows_shares_and_numbers_of_epochs(
    words: list[str], validated: list[int], here: Path
) -> None:
    run = here / f"validated-{validated[0]}"
    assert main([*OWN, *words, "trainer.max_steps=8", f"run_dir={run}"]) == 0
    assert [step for step, _ in record(run)["validations"]] == validated


def test_a_callback_that_stops_early_ends_the_run_well(here: Path) -> None:
    early = ["_target_=lightning.pytorch.callbacks.EarlyStopping", "monitor=val/loss"]
    early += ["patience=1", "min_delta=100"]
    words = [f"+callbacks.early.{text}" for text in early]
    assert main([*OWN, *words, "trainer.max_steps=40", "run_dir=early"]) == 0
    assert state(here / "early") == "DONE"
    assert record(here / "early")["steps"] == 8  # the second validation
    assert "test/loss" in record(here / "early")["metrics"]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["lightning.pytorch.callbacks.EarlyStopping", "monitor=val/nope"], "val/nope"),
        (["lightning.pytorch.callbacks.Timer", "duration=x"], "Timer cannot be made: "),
        (["os.system", "command=true"], "os.system cannot be made: "),
        (["collections.Counter"], "collections.Counter makes no callback of Lightning"),
    ],
)
def test_a_callback_of_others_that_refuses_is_one_line(
    words: list[str], line: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target, *more = words
    given = [f"+callbacks.mine.{word}" for word in (f"_target_={target}", *more)]
    assert main([*OWN, *given, "trainer.max_steps=8", f"run_dir=refused-{target}"]) == 2
    (error,) = [text for text in capsys.readouterr().err.splitlines() if "error: " in text]
    assert line in error


def test_max_time_stops_the_run_after_a_step_and_a_larger_one_resumes_it(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*OWN, "trainer.max_steps=8", "trainer.min_steps=8", "run_dir=timed"]
    assert main([*words, "trainer.max_time=00:00:00:00"]) == 130
    assert "trainer.max_time=00:00:00:00" in capsys.readouterr().err
    assert state(here / "timed") == "STOPPED"
    assert len(losses(here / "timed")) == 1
    assert main([*words, "trainer.max_time=00:10:00:00"]) == 0
    assert same(here / "timed", here / "eight")


def test_ckpt_path_goes_on_with_optimiser_and_position(here: Path) -> None:
    shutil.copy(here / "eight/checkpoints/rolling-4.ckpt", here / "four.ckpt")
    words = [*OWN, "trainer.max_steps=8", "ckpt_path=four.ckpt", "run_dir=from-four"]
    assert main(words) == 0
    assert losses(here / "from-four") == losses(here / "eight")[4:]
    config = yaml.safe_load((here / "from-four/config.yaml").read_text())
    assert len(config["ckpt_sha256"]) == 64
    assert record(here / "from-four")["identity"] != record(here / "eight")["identity"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["ckpt_path=nowhere.ckpt"], "is no file; name a checkpoint"),
        (["ckpt_path=text.txt"], "holds more than tensors and plain values"),
        (["ckpt_path=weights.ckpt"], "init_from=<file> starts from its weights"),
        (["model.dim=32"], "is of another model: model."),
        (["trainer.max_steps=8"], "is of step 8, and trainer.max_steps is 8"),
        (["data.batch_size=8"], "has batch_size=4 for the training data"),
        (["seed=3"], "has seed=0 for the training data"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused_before_the_run_begins(
    words: list[str], says: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.save({"state_dict": {}}, here / "weights.ckpt")
    own = [*OWN, "trainer.max_steps=12", "ckpt_path=eight/checkpoints/last.ckpt"]
    assert main([*own, *words, "run_dir=never"]) == 2
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert last.startswith("error: ")
    assert says in last
    assert not (here / "never").exists()


def test_gradients_are_clipped_by_norm_or_by_value() -> None:
    def clipped(algorithm: str | None) -> list[float]:
        task = Task.__new__(Task)
        pl.LightningModule.__init__(task)
        task.layer = nn.Linear(2, 1, bias=False)
        task.layer.weight.grad = torch.tensor([[3.0, 4.0]])
        task._losses = []
        task._outputs = []
        task.guard = type("Guard", (), {"check": lambda *_: None})()  # type: ignore[assignment]
        task.configure_gradient_clipping(torch.optim.SGD(task.parameters()), 1.0, algorithm)
        return [float(value) for value in task.layer.weight.grad[0]]

    assert clipped(None) == clipped("norm") == pytest.approx([0.6, 0.8], abs=1e-5)
    assert clipped("value") == [1.0, 1.0]


@pytest.mark.slow
def test_an_evaluation_has_no_hint_at_slurm(here: Path, tmp_path: Path) -> None:
    """Lightning advises srun to each Trainer that may be one of several processes."""
    (tmp_path / "srun").write_text("#!/bin/sh\n")
    (tmp_path / "srun").chmod(0o755)
    found = forks.run("eval.py", "run=eight", env={"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    assert found.returncode == 0, found.stderr
    assert "srun" not in found.stderr
