"""Jobs are composed, checked and labelled before the first one starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from torch import nn

from chimera.config.compose import compose, plain
from chimera.errors import UserError
from chimera.model.assemble import Choices, check_model
from chimera.rundir.identity import identity
from chimera.sweep.engine import Engine
from chimera.sweep.main import Batches, _return, sweep
from chimera.sweep.plan import label, plan
from tests.sweep.kit import Scripts, Silent, job


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
    first, second = plan([["scale=smoke", "seed=0"], ["scale=smoke", "seed=1"]])
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
    plan([["scale=smoke", f"mixer={m}", f"seed={s}"] for m in mixers for s in range(3)])
    assert checked == ["retnet", "attention"]


def test_hydra_does_not_compose_the_jobs_again(monkeypatch: pytest.MonkeyPatch) -> None:
    composed: list[object] = []
    monkeypatch.setattr(ConfigLoaderImpl, "load_sweep_config", lambda *a, **k: composed.append(a))
    monkeypatch.setattr(Batches, "run", lambda self, batch: [])
    with pytest.raises(UserError, match="no jobs"):
        sweep(["seed=0,1"])
    assert composed == []


def test_every_different_error_is_one_line() -> None:
    batch = [["optim.lr=1", "seed=0"], ["optim.lr=-1", "seed=0"], ["optim.lr=-1", "seed=1"]]
    batch.append(["optim.lr=fast", "seed=0"])
    with pytest.raises(UserError) as error:
        plan(batch)
    first, second = str(error.value).split("\nerror: ")
    assert "optim.lr=-1 is not allowed" in first
    assert "[optim.lr=-1 seed=0 and 1 more]" in first
    assert "optim.lr=fast" in second


def test_several_runs_in_one_directory_are_refused(tmp_path: Path) -> None:
    to = f"run_dir={tmp_path / 'one'}"
    with pytest.raises(UserError, match="several jobs"):
        plan([["seed=0", to], ["seed=1", to]])
    assert len(plan([["seed=0", to], ["seed=0", to]])) == 2  # the same run may have it twice


def test_a_student_without_its_teacher_is_refused() -> None:
    rows = ["bert_base", "ternary_bert"]
    batch = [[f"+bitnet_qdyt/main={row}", "scale=smoke"] for row in rows]
    teacher, student = plan(batch)
    assert student.prerequisites == (teacher.identity,)
    with pytest.raises(UserError, match="not trained yet"):
        plan(batch[1:])


def test_a_sweeper_gets_the_metric_or_an_error(tmp_path: Path) -> None:
    jobs = [job(tmp_path, "a"), job(tmp_path, "b", "sys.exit(1)")]
    work = Engine(jobs, Scripts(), 1, Silent())
    work.run()
    good, bad = (_return(job_, work.work[job_.key]) for job_ in jobs)
    assert good.return_value == 7.0
    with pytest.raises(RuntimeError, match="b: exit code 1"):
        _ = bad.return_value


@pytest.mark.parametrize(
    ("overrides", "jobs"),
    [
        (["seed=range(0,3)", "norm=glob(*norm)"], 6),
        (["+bitnet_qdyt=norms", "scale=smoke", "seed=0,1"], 6),
        (["mixer=retnet"], 1),
    ],
)
def test_hydra_chooses_the_jobs(
    overrides: list[str], jobs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches: list[tuple[str, ...]] = []
    composed: list[tuple[str, ...]] = []

    def record(self: Batches, batch: list[list[str]]) -> list[object]:
        batches.extend((*job, *self.shared) for job in batch)
        composed.extend(self.composed)
        return []

    monkeypatch.setattr(Batches, "run", record)
    with pytest.raises(UserError, match="no jobs"):  # `record` runs none
        sweep(overrides)
    assert len(batches) == jobs
    assert all("-m" not in batch for batch in batches)
    assert composed == batches[:1]  # the first job is composed once, before Hydra starts


@pytest.mark.parametrize("row", ["standard", "standard,linear"])
def test_rows_beside_their_whole_table_are_refused(row: str) -> None:
    rows = f"+saidl/attention_length={row}"
    with pytest.raises(UserError) as raised:
        sweep([rows, "+saidl=attention_length", "scale=smoke"])
    assert str(raised.value).startswith(f"{rows} chooses rows of a table")
    assert "+saidl=attention_length takes all; leave one of them out" in str(raised.value)


def test_a_key_that_only_the_rows_have_reaches_every_job(monkeypatch: pytest.MonkeyPatch) -> None:
    batches: list[list[str]] = []

    def record(batch: list[list[str]], composed: object) -> None:
        batches.extend(batch)
        raise UserError("recorded")

    monkeypatch.setattr("chimera.sweep.main.plan", record)
    with pytest.raises(UserError, match="recorded"):
        sweep(["+tptt=training", "scale=smoke", "task.mmlu_limit=7", "seed=0,1"])
    assert len(batches) == 14
    for overrides in batches[::6]:  # without a row the task has no key mmlu_limit
        assert plain(compose(overrides))["task"]["mmlu_limit"] == 7
