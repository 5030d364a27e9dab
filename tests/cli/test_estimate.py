"""`chimera estimate`: runs that are measured, counted, known or done; nothing is written."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from chimera.cli.estimate import duration, main, size
from chimera.config.compose import compose, plain
from chimera.rundir.keep import add
from chimera.sweep.cost import checkpoints_kept, makespan, passes, size_of, validations
from chimera.sweep.known import likeness
from tests.train import tiny


@pytest.fixture
def line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    tiny.write(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CHIMERA_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("CHIMERA_CACHE", str(tmp_path / "rates"))
    return list(tiny.LINE)


def estimated(words: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main([*words, "format=json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_flops_without_a_measurement(
    line: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*line, "mixer=attention", "seconds=0", "workers=2"]
    found = estimated([*words, "seed=0,1", "trainer.max_steps=10,20"], capsys)
    assert [run["steps"] for run in found["runs"]] == [10, 20, 10, 20]
    assert all(run["how"].startswith("FLOPs, ") for run in found["runs"])
    ten, twenty = found["runs"][0], found["runs"][1]
    assert twenty["seconds"] > ten["seconds"] > 0
    assert twenty["disk"] > ten["disk"] > 0
    total = found["total"]
    assert total["steps"] == 60
    assert total["seconds"] == pytest.approx(total["seconds_of_all"] / 2, rel=0.2)
    assert total["memory"] == pytest.approx(2 * ten["memory"], rel=0.01)
    assert {path.name for path in tmp_path.iterdir()} == {"text.txt"}


def test_steps_of_a_student_are_counted_until_its_teacher_is_trained(
    line: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    words = [word for word in line if not word.startswith(("mixer=", "seconds="))]
    rows = ["-m", "+bitnet_qdyt/main=bert_base,ternary_bert", "trainer.max_steps=4"]
    teacher, student = estimated([*words, *rows, "seconds=0.01"], capsys)["runs"]
    assert teacher["how"].startswith("measured")
    assert student["how"].startswith("FLOPs, ")
    assert student["note"] == "its teacher is not trained yet"


def test_a_done_run_costs_nothing_and_a_like_one_what_it_took(
    line: list[str],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from chimera.cli.train import main as train

    words = [*line, "trainer.max_steps=6"]
    assert train(words) == 0
    (run,) = (tmp_path / "runs").glob("mlm-*")
    before = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*")}
    capsys.readouterr()
    found = estimated([*words, "seed=0,1", "optim.lr=0.001"], capsys)
    assert [each["how"] for each in found["runs"]] == [f"like {run.name}"] * 2
    record = tiny.record(run)
    first = found["runs"][0]
    assert first["tokens_per_second"] == record["tokens_per_second"]
    assert first["memory"] == pytest.approx(1e9 * record["peak_memory_gb"])
    assert first["disk"] == size_of(run) > 0
    found = estimated(words, capsys)
    assert (found["runs"][0]["how"], found["total"]["seconds"]) == ("done", 0.0)
    assert main(words) == 0
    assert "1 run, 1 of them done: 0:00" in capsys.readouterr().out
    assert {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*")} == before
    # The same from its record in the run store, which a single run is trained in spite of.
    monkeypatch.setenv("CHIMERA_STORE", str(tmp_path / "store"))
    record_path, _ = add(run)
    shutil.rmtree(tmp_path / "runs")
    found = estimated([*words, "seed=0,1"], capsys)
    (stored, like), total = found["runs"], found["total"]
    assert (stored["how"], stored["note"]) == ("done", f"records in {tmp_path / 'store'}")
    assert (like["how"], total["done"]) == (f"like {record_path.name}", 1)
    assert like["tokens_per_second"] == record["tokens_per_second"]
    assert like["disk"] == pytest.approx(first["disk"], rel=0.5)
    found = estimated(words, capsys)
    assert found["runs"][0]["how"] == f"like {record_path.name}"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["mixer=retnett"], "did you mean 'retnet'"),
        (["seconds=-1"], "seconds=-1"),
        (["format=pdf"], "format=pdf"),
        (["optim.lr=interval(1,2)", "search.trials=3"], "list values"),
        (["+bitnet_qdyt=nrms"], "nrms"),
    ],
)
def test_bad_words_are_one_line(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    line = capsys.readouterr().err
    assert line.startswith("error: ")
    assert says in line
    assert line.count("\n") == 1


def test_validations_and_checkpoints_are_those_of_the_schedules() -> None:
    def config(**trainer: object) -> dict[str, Any]:
        base = plain(compose([]))
        return {**base, "trainer": {**base["trainer"], **trainer}}

    assert validations(config(val_check_interval=300), 1800) == 6
    assert validations(config(val_check_interval=0), 1800) == 0
    assert validations(config(val_check_interval=0.5), 1800, epoch=100) == 36
    assert validations(config(val_check_interval="epoch"), 1800) == 0  # nobody knows the epoch
    by_two = config(check_val_every_n_epoch=2, accumulate_grad_batches=2)
    assert validations(by_two, 1800, epoch=100) == 18
    lengths = plain(compose(["task=causal_lm", "task.longer=[2,4,8]"]))
    assert passes(lengths, 0) == 1 + 3  # at the end, and at each length
    # rolling 1000, 1500, 1800; the last validations 1500 and 1800 share their files
    assert checkpoints_kept(config(val_check_interval=300), 1800, None) == 3
    # best 1600 and 1800, and the ends of epochs 900 and 1800
    assert checkpoints_kept(config(val_check_interval=200), 1800, 900) == 5
    few = config(checkpoint_keep=1, checkpoint_keep_best=0, checkpoint_keep_epochs=0)
    assert checkpoints_kept(few, 1800, 100) == 1


def test_likeness_is_of_what_a_step_costs() -> None:
    def of(*words: str) -> str:
        return likeness(plain(compose(["mixer=gqa", *words])))

    assert of() == of("seed=3", "optim.lr=1e-5", "trainer.max_steps=7", "name=other")
    for word in ("model.dim=64", "precision=bf16", "data.batch_size=8", "mixer=mqa"):
        assert of() != of(word), word


def test_workers_share_the_runs() -> None:
    assert makespan([4, 3, 2, 1], 1) == 10
    assert makespan([4, 3, 2, 1], 2) == 5
    assert makespan([4, 3, 2, 1], 9) == 4


def test_units() -> None:
    assert [duration(s) for s in (7, 75, 3700, 90000)] == [
        "0:07",
        "1:15",
        "01:01:40",
        "1 d 01:00:00",
    ]
    assert [size(n) for n in (9_000, 7.83e7, 1.5e9, 2e12)] == [
        "9 kB",
        "78.3 MB",
        "1.5 GB",
        "2.0 TB",
    ]


@pytest.mark.slow
def test_measured_steps_agree_with_the_run(
    line: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Of text that is prepared; before, the size of a learnt vocabulary is not known."""
    from chimera.cli.train import main as train

    assert train([*line, "trainer.max_steps=2"]) == 0
    capsys.readouterr()
    words = [*line, "model.dim=64", "data.batch_size=16", "trainer.max_steps=40"]
    before = {path for path in tmp_path.rglob("*") if "runs" in path.parts}
    found = estimated([*words, "seconds=120"], capsys)["runs"][0]  # enough for a busy machine
    assert found["how"].startswith("measured, ")
    assert "preparing" not in found["note"]
    assert {path for path in tmp_path.rglob("*") if "runs" in path.parts} == before
    assert train(words) == 0
    (run,) = (r for r in (tmp_path / "runs").glob("mlm-*") if tiny.record(r)["steps"] == 40)
    assert 0.7 < found["disk"] / size_of(run) < 1.5
