"""Jobs are composed, checked and labelled before the first one starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch import nn

from chimera.config.compose import compose, plain
from chimera.config.overrides import check_choices
from chimera.config.tables import load
from chimera.errors import UserError
from chimera.model.assemble import Choices, check_model
from chimera.rundir.identity import identity
from chimera.sweep.compose_jobs import compose_jobs, label, list_jobs
from chimera.sweep.run_sweep import sweep


@pytest.fixture(autouse=True)
def _runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHIMERA_RUNS", str(tmp_path / "runs"))


def test_labels_are_the_overrides_that_vary() -> None:
    rows = [
        ["+p/norms=qdyt", "scale=small", "seed=0"],
        ["+p/norms=layernorm", "scale=small", "seed=0"],
    ]
    assert label(rows) == ["qdyt", "layernorm"]
    assert label([["optim.lr=1", "seed=0"], ["optim.lr=2", "seed=1"]]) == [
        "optim.lr=1 seed=0",
        "optim.lr=2 seed=1",
    ]
    assert label([["mixer=retnet"]]) == ["mixer=retnet"]


def test_a_job_has_the_config_identity_and_directory_of_its_overrides(tmp_path: Path) -> None:
    first, second = compose_jobs([["scale=smoke", "seed=0"], ["scale=smoke", "seed=1"]])
    assert first.config["seed"] == 0
    assert first.identity == identity(first.config) != second.identity
    assert first.directory.path.parent == tmp_path / "runs"
    assert not (tmp_path / "runs").exists()


def test_parts_are_checked_once_for_each_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[str] = []

    def record(settings: object, choices: Choices, **rest: Any) -> nn.Module:
        checked.append(choices.names["mixer"])
        return check_model(settings, choices, **rest)

    monkeypatch.setattr("chimera.model.assemble.check_model", record)
    mixers = ("retnet", "attention")
    compose_jobs([["scale=smoke", f"mixer={m}", f"seed={s}"] for m in mixers for s in range(3)])
    assert checked == ["retnet", "attention"]


def test_every_different_error_is_one_line() -> None:
    batch = [["optim.lr=1", "seed=0"], ["optim.lr=-1", "seed=0"], ["optim.lr=-1", "seed=1"]]
    batch.append(["optim.lr=fast", "seed=0"])
    with pytest.raises(UserError) as error:
        compose_jobs(batch)
    first, second = str(error.value).split("\nerror: ")
    assert "optim.lr=-1 is not allowed" in first
    assert "[optim.lr=-1 seed=0 and 1 more]" in first
    assert "optim.lr=fast" in second


def test_several_runs_in_one_directory_are_refused(tmp_path: Path) -> None:
    to = f"run_dir={tmp_path / 'one'}"
    with pytest.raises(UserError, match="several jobs"):
        compose_jobs([["seed=0", to], ["seed=1", to]])
    assert (
        len(compose_jobs([["seed=0", to], ["seed=0", to]])) == 2
    )  # the same run may have it twice


def test_a_student_without_its_teacher_is_refused() -> None:
    rows = ["bert_base", "ternary_bert"]
    batch = [[f"+bitnet_qdyt/main={row}", "scale=smoke"] for row in rows]
    teacher, student = compose_jobs(batch)
    assert student.prerequisites == (teacher.identity,)
    with pytest.raises(UserError, match="not trained yet"):
        compose_jobs(batch[1:])


@pytest.mark.parametrize(
    ("overrides", "jobs"),
    [
        (["seed=range(0,3)", "norm=glob(*norm)"], 6),
        (["+bitnet_qdyt=norms", "scale=smoke", "seed=0,1"], 6),
        (["optim.lr=choice(1e-3,2e-3)", "norm=glob([*norm,dyt],exclude=layernorm)"], 4),
        (["mixer=retnet"], 1),
    ],
)
def test_every_combination_is_a_job(overrides: list[str], jobs: int) -> None:
    batch = list_jobs(overrides, check_choices(overrides, sweep=True))
    assert len({tuple(texts) for texts in batch}) == len(batch) == jobs
    names = [[text.partition("=")[0] for text in texts] for texts in batch]
    assert all(each == names[0] for each in names)


def test_a_table_stands_for_its_rows_and_a_key_of_its_rows_reaches_every_job() -> None:
    overrides = ["+tptt=training", "scale=smoke", "task.mmlu_limit=7", "seed=0,1"]
    batch = list_jobs(overrides, check_choices(overrides, sweep=True))
    rows = sorted(row.name for row in load("tptt/training").rows)
    assert [texts[0] for texts in batch[::2]] == [f"+tptt/training={row}" for row in rows]
    assert all(texts[1:3] == ["scale=smoke", "task.mmlu_limit=7"] for texts in batch)
    assert plain(compose(batch[0]))["task"]["mmlu_limit"] == 7  # only rows have this key


@pytest.mark.parametrize("row", ["standard", "standard,linear"])
def test_rows_beside_their_whole_table_are_refused(row: str) -> None:
    rows = f"+saidl/attention_length={row}"
    with pytest.raises(UserError) as raised:
        sweep([rows, "+saidl=attention_length", "scale=smoke"])
    assert str(raised.value).startswith(f"{rows} chooses rows of a table")
    assert "+saidl=attention_length takes all; leave one of them out" in str(raised.value)
