"""Sweeps, reports, comparisons and `ch.runs` count records as finished runs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from chimera.api.library import runs
from chimera.cli.folders import compare
from chimera.cli.folders import records as main
from chimera.config.compose import compose, plain
from chimera.errors import UserError
from chimera.report.figures import at_common_steps
from chimera.report.write import write
from chimera.rundir.identity import identity
from chimera.rundir.records import POINTS, RUNS, add, of_run
from chimera.rundir.steps import losses
from chimera.sweep.compose_jobs import compose_jobs, prerequisites
from chimera.sweep.job import State
from chimera.sweep.scheduler import Scheduler
from chimera.train.check import check_settings
from tests.rundir.kit import WORDS, a_run
from tests.rundir.test_records import kept
from tests.sweep.kit import Scripts, Silent

TABLE, ROW_NAMES = "bitnet_qdyt/norms", ("layernorm", "qdyt")


@pytest.fixture(autouse=True)
def _folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CHIMERA_RECORDS", raising=False)
    monkeypatch.setenv("CHIMERA_RUNS", str(tmp_path / "runs"))


def rows(folder: Path) -> list[Path]:
    """Finished runs of two rows of a table, two seeds each."""
    found = []
    for number, (name, seed) in enumerate((n, s) for n in ROW_NAMES for s in (0, 1)):
        run = a_run(folder, [f"+{TABLE}={name}", "scale=smoke", f"seed={seed}"])
        record = json.loads((run / "run.json").read_text())
        record |= {"parameters": {"total": 12}, "tokens_per_second": 100.0 + number}
        record |= {"validations": [[500, 3.0], [1000, 2.0]], "skipped": {}}
        record["metrics"]["val/perplexity"] = 100.0 + number
        (run / "run.json").write_text(json.dumps(record))
        found.append(run)
    return found


def test_a_run_with_a_record_is_not_run_again(tmp_path: Path) -> None:
    record = kept(a_run(tmp_path / "elsewhere", WORDS))
    (job,) = compose_jobs([WORDS])
    assert job.record == record
    (work,) = Scheduler([job], Scripts(), 1, Silent()).run()
    assert (work.state, work.why, work.started) == (State.DONE, "val/perplexity 12.5", None)
    assert not (tmp_path / "runs").exists()
    (again,) = compose_jobs([[*WORDS, "overwrite=true"]])
    assert again.record is None


def test_a_teacher_is_trained_for_its_weights(tmp_path: Path) -> None:
    """A record has none; once the student is stored too, nobody needs them."""
    batch = [[f"+bitnet_qdyt/main={row}", "scale=smoke"] for row in ("bert_base", "ternary_bert")]
    kept(a_run(tmp_path / "elsewhere", batch[0]))
    teacher, student = compose_jobs(batch)
    assert student.prerequisites == (teacher.identity,)
    assert teacher.record is None
    kept(a_run(tmp_path / "elsewhere", batch[1]))
    assert all(job.record for job in compose_jobs(batch))
    assert all(job.record for job in compose_jobs(batch[1:]))


def test_a_run_with_a_record_needs_no_model_to_start_from(tmp_path: Path) -> None:
    words = ["+saidl/adapters=lora", "scale=smoke"]
    assert len(prerequisites(compose_jobs([words]))) == 1
    kept(a_run(tmp_path / "elsewhere", words))
    assert prerequisites(compose_jobs([words])) == []


def test_the_record_of_a_run_that_is_gone_names_what_started_from_it(tmp_path: Path) -> None:
    body = a_run(tmp_path / "runs", ["scale=smoke", "mixer=gqa", "task=mlm", "name=my-body"])
    for folder in ("checkpoints", "tokenizer"):
        (body / folder).mkdir()
    (body / "checkpoints" / "best.ckpt").touch()
    data = ["data=acceptability", "task=glue", "scale=smoke"]
    words = [*data, f"init_from={body.relative_to(tmp_path)}"]
    kept(a_run(tmp_path / "runs", words))
    with_body = plain(compose(words))
    record = kept(body)
    shutil.rmtree(tmp_path / "runs")
    config = plain(compose(words))
    assert identity(config) == identity(with_body)
    assert config["mixer"]["_target_"] == with_body["mixer"]["_target_"]
    check_settings(config, train=False)
    command = "train it first: .* scale=smoke mixer=gqa task=mlm name=my-body$"
    with pytest.raises(UserError, match=command) as refused:
        check_settings(config)
    assert str(record.folder) in str(refused.value)
    with pytest.raises(UserError, match="is not a model"):
        compose([*data, "init_from=runs/my-body-12345678"])


def test_a_report_is_rebuilt_from_records(tmp_path: Path) -> None:
    add(map(of_run, rows(tmp_path / "runs")))
    write(TABLE, ["scale=smoke"], [0, 1], tmp_path / "before")
    shutil.rmtree(tmp_path / "runs")
    write(TABLE, ["scale=smoke"], [0, 1], tmp_path / "after")
    for name in ("report.md", "report.csv", "report.tex"):
        text = (tmp_path / "after" / name).read_text()
        assert text == (tmp_path / "before" / name).read_text()
    assert "100.5" in text
    assert (tmp_path / "after" / "curves.png").stat().st_size > 10_000


def test_curves_of_whole_and_thinned_logs_meet(tmp_path: Path) -> None:
    run = a_run(tmp_path / "elsewhere", WORDS)
    whole, thin = losses(run / "steps.csv"), losses(kept(run).steps)
    assert len(whole[0]) == 1000
    steps, (first, second) = at_common_steps([whole, thin])
    assert (steps, second) == thin
    assert len(steps) <= POINTS
    assert first == pytest.approx([step / 7 for step in steps])
    assert max(abs(a - b) for a, b in zip(first, second, strict=True)) < 1.0  # half a stretch


@pytest.mark.parametrize("there", [pytest.param(True, marks=pytest.mark.slow), False])
def test_comparisons_and_frames_show_a_run_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], there: bool
) -> None:
    found = rows(tmp_path / "runs")
    add(map(of_run, found))
    if not there:
        shutil.rmtree(tmp_path / "runs")
    frame = runs()
    assert list(frame["name"]) == sorted(run.name for run in found)
    assert set(frame["state"]) == {"DONE"}
    assert compare([]) == 0
    out = capsys.readouterr().out
    assert "4 runs" in out
    assert "reports" in out.splitlines()[-1]


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "runs").mkdir()
    finished = a_run(tmp_path / "runs", WORDS)
    begun = a_run(tmp_path / "runs", [*WORDS, "seed=1"])
    (begun / "status.json").write_text('{"state": "STOPPED"}')
    assert main(["add"]) == 0
    assert main(["add", str(finished)]) == 0
    assert main(["check"]) == 0
    out = capsys.readouterr().out
    assert f"left out: {begun} is STOPPED" in out
    assert "1 added" in out
    assert "0 added" in out
    assert "1 of 1 records" in out
    file = tmp_path / "records" / "smoke" / RUNS
    file.write_bytes(file.read_bytes()[:300])
    assert main(["check"]) == 1
    assert f"{file} cannot be read" in capsys.readouterr().out
