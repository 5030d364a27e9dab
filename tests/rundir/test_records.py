"""Records of runs: what one holds, when it counts, and what a stranger's cannot do."""

from __future__ import annotations

import gzip
import json
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chimera.cli.folders import compare
from chimera.cli.folders import records as main
from chimera.config.compose import compose, plain
from chimera.errors import UserError
from chimera.paths import CHECKOUT, EXPERIMENTS
from chimera.rundir import records
from chimera.rundir.directory import RunDir
from chimera.rundir.records import (
    LIST,
    POINTS,
    RUNS,
    Record,
    Records,
    add,
    frame,
    of_run,
    portable,
    unfinished,
)
from chimera.rundir.steps import validated
from tests.rundir.kit import WORDS, a_run


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where records of runs without a table are kept; the current folder is their home."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CHIMERA_RECORDS", raising=False)
    monkeypatch.setenv("CHIMERA_RUNS", "runs")
    return tmp_path / "records" / "smoke"


def kept(run: Path, **options: Any) -> Record:
    """The record of a run, which is added."""
    (record,) = add([of_run(run)], **options)
    return record


def lines(folder: Path) -> list[dict[str, Any]]:
    with gzip.open(folder / RUNS, "rt") as file:
        return [json.loads(line) for line in file]


def found(words: list[str]) -> Record | None:
    config = plain(compose(words))
    return Records().find(config, RunDir(Path("none")))


def test_a_record_counts_where_the_run_is_not(folder: Path) -> None:
    run = a_run(Path("runs"))
    record = kept(run)
    assert add([of_run(run)]) == []
    assert record.path == folder / run.name
    assert found(WORDS) == record
    assert record.metrics == {"val/perplexity": 12.5, "val/loss": 2.5}
    assert found([*WORDS, "overwrite=true"]) is None
    assert found([*WORDS, "seed=3"]) is None
    assert unfinished([run]) == []
    assert unfinished([]) == [record]
    listed = (folder / LIST).read_text().splitlines()
    row = [record.identity, record.name, "0", "val/perplexity", "12.5", "a" * 8, "2026-01-01"]
    assert listed[1:] == ["\t".join(row)]


def test_a_row_of_a_table_is_kept_beside_its_report(folder: Path) -> None:
    row = a_run(Path("runs"), ["+bitnet_qdyt/norms=qdyt", "scale=smoke"])
    record = kept(row)
    home = folder.parents[1]
    assert record.folder == home / "experiments/bitnet_qdyt/norms/results/smoke"
    assert (record.table, record.row) == ("bitnet_qdyt/norms", "qdyt")
    assert kept(row, to=Path("own")).folder == Path("own")


def test_the_file_is_the_same_in_any_order(folder: Path) -> None:
    runs = [a_run(Path("runs"), [*WORDS, f"seed={seed}"]) for seed in (2, 0, 1)]
    for to, order in (("a", runs), ("b", runs[::-1])):
        for run in order:
            add([of_run(run)], Path(to))
    add(map(of_run, runs), Path("c"))
    for name in (RUNS, LIST):
        assert len({Path(to, name).read_bytes() for to in "abc"}) == 1
    assert [record.config["seed"] for record in records.records(Path("a"))] == [0, 1, 2]


def test_steps_are_means_of_equal_stretches(folder: Path) -> None:
    steps = kept(a_run(Path("runs"))).steps
    assert steps["global_step"][:2] == [9, 18]
    assert steps["global_step"][-1] == 1000
    assert len(steps["loss"]) <= POINTS
    assert steps["loss"][0] == pytest.approx(sum(range(1, 10)) / 9 / 7, rel=1e-5)


def test_nothing_of_this_machine_is_in_it(folder: Path, tmp_path: Path) -> None:
    config = plain(compose(WORDS))
    data = config["data"] | {"cache_dir": "/home/me/my cache"}
    run = a_run(Path("runs"), data=data, run_dir="/home/me/x", logger={"api_key": "s3cret"})
    (run / "overrides.txt").write_text(
        "mixer=retnet\nrun_dir=/home/me/x\nlogger.api_key=s3cret\n+callbacks.a.file=/home/me/f\n"
        "'data.cache_dir=/home/me/my cache'\n"
    )
    record = kept(run)
    text = json.dumps(lines(folder))
    for private in ("/home", "s3cret", "my cache/", "here", str(tmp_path)):
        assert private not in text
    assert record.overrides == ["mixer=retnet", "+callbacks.a.file=path/to/f"]


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"data": {"path": "/home/me/a.txt"}}, "data.path"),
        ({"callbacks": {"mine": {"_target_": "mine.C", "api_key": "k"}}}, "callbacks.mine.api_key"),
        ({"data": {"url": "https://me:pw@host/x"}}, "data.url"),
    ],
)
def test_what_cannot_be_kept_is_named(folder: Path, changes: dict[str, Any], word: str) -> None:
    config = plain(compose(WORDS))
    for key, value in changes.items():
        changes[key] = config[key] | value
    run = a_run(Path("runs"), **changes)
    with pytest.raises(UserError, match=word):
        kept(run)
    assert not folder.exists()


@pytest.mark.parametrize(
    ("file", "content", "says"),
    [
        ("steps.csv", "a,b\n1,2\n", "is no step log"),
        ("run.json", '{"metrics": {"val/loss": "low"}}', "has no metrics"),
        ("config.yaml", "seed: 1\nchoices: {}\n", "are not those of a run"),
    ],
)
def test_a_run_with_strange_files_is_refused(
    file: str, content: str, says: str, folder: Path
) -> None:
    run = a_run(folder)
    (run / file).write_text(content)
    with pytest.raises(UserError, match=says):
        of_run(run)


def test_only_finished_runs_and_no_second_numbers(folder: Path) -> None:
    run = a_run(Path("runs"))
    (run / "status.json").write_text('{"state": "FAILED"}')
    with pytest.raises(UserError, match="is FAILED"):
        kept(run)
    (run / "status.json").write_text('{"state": "DONE"}')
    kept(run)
    text = (run / "run.json").read_text().replace("12.5", "11.5")
    (run / "run.json").write_text(text)
    with pytest.raises(UserError, match="overwrite=true"):
        kept(run)
    assert kept(run, overwrite=True).metrics["val/perplexity"] == 11.5
    assert len(lines(folder)) == 1


def _edited(old: bytes, new: bytes) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        text = gzip.decompress((folder / RUNS).read_bytes())
        assert old in text
        (folder / RUNS).write_bytes(gzip.compress(text.replace(old, new)))

    return edit


def _damaged(folder: Path) -> None:
    whole = (folder / RUNS).read_bytes()
    (folder / RUNS).write_bytes(whole[:200] + b"?" + whole[201:])


def _cut_off(folder: Path) -> None:
    (folder / RUNS).write_bytes((folder / RUNS).read_bytes()[:500])


def _unlisted(folder: Path) -> None:
    (folder / RUNS).unlink()


@pytest.mark.parametrize(
    ("harm", "word"),
    [
        (_edited(b'"seed":0', b'"seed":7'), "settings of another run"),
        (_edited(b'"metrics":{', b'"metrics":[{'), "cannot be read"),
        (_edited(b'"metrics":{"val/p', b'"none":{"val/p'), "has no metrics"),
        (_edited(b'"steps":{', b'"step":{'), "has no steps"),
        (_edited(b'{"identity":"', b'{"identify":"'), "line 1 is no record"),
        (_edited(b'"seed":0', b'"seed":' + b"[" * 50 + b"]" * 50), "nests more than"),
        (_damaged, "cannot be read"),
        (_cut_off, "cannot be read"),
        (_unlisted, "lacks the run"),
        (_edited(b'"overrides":[', b'"overrides":[1,'), "configuration that no run"),
        (_edited(b'"val/loss":2.5', b'"val/loss":2' + b"5" * 400), "has no metrics"),
        (_edited(b'"loss":[', b'"loss":[0,'), "has a step log that no run can have"),
        (_edited(b'"loss":[', b'"loss":["0",'), "has a step log that no run can have"),
        (lambda folder: (folder / "runs.txt").write_text(""), "lists no run"),
        (lambda folder: (folder / "runs.txt").unlink(), "lists no run"),
    ],
)
def test_a_harmed_record_is_named_and_does_not_count(
    folder: Path, capsys: pytest.CaptureFixture[str], harm: Callable[[Path], None], word: str
) -> None:
    kept(a_run(Path("runs")))
    harm(folder)
    config, known = plain(compose(WORDS)), Records()
    assert known.find(config, RunDir(Path("none"))) is None
    known.tell()
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("not counted: ")
    assert str(folder / RUNS) in line
    assert word in line
    assert main(["check"]) == 1
    assert "0 of 1 records" in capsys.readouterr().out
    assert compare([str(folder)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_class_that_a_record_names_is_not_imported(folder: Path) -> None:
    run = a_run(Path("runs"), callbacks={"x": {"_target_": "os.mkdir", "path": "owned"}})
    record = kept(run)
    assert Records().get(record.identity) == record
    frame()
    assert not Path("owned").exists()


def test_a_killed_process_leaves_the_old_file(folder: Path) -> None:
    """Killed as the new file is put in place of the old one, the list is still of the old one."""
    first = kept(a_run(Path("runs")))
    second = a_run(Path("runs"), [*WORDS, "seed=1"])
    code = (
        "import os, signal, sys, pathlib\n"
        "from chimera.rundir import records\n"
        "os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        "records.add([records.of_run(pathlib.Path(sys.argv[1]))])\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(second)])
    assert done.returncode == -signal.SIGKILL
    assert records.records(folder) == [first]
    kept(second)
    assert len(records.records(folder)) == 2


def test_records_that_are_not_listed_yet_are_listed_when_added_again(folder: Path) -> None:
    run = a_run(Path("runs"))
    record = kept(run)
    (folder / LIST).write_text("identity\n")
    assert found(WORDS) is None
    assert add([of_run(run)]) == []
    assert found(WORDS) == record


def test_another_folder_is_named_by_the_environment(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept(a_run(Path("runs")))
    shutil.move(folder.parent, "elsewhere")
    assert found(WORDS) is None
    monkeypatch.setenv("CHIMERA_RECORDS", "elsewhere")
    assert found(WORDS) is not None


def test_a_frame_has_settings_and_results(folder: Path) -> None:
    for rate in (0.5, 0.25):
        kept(a_run(Path("runs"), [*WORDS, f"optim.lr={rate}"]))
    table = frame().set_index("optim.lr")
    assert dict(table["val/perplexity"]) == {0.5: 12.5, 0.25: 12.5}
    assert set(table["choices.mixer"]) == {"retnet"}
    assert set(table["scale"]) == {"smoke"}
    assert len(frame("bitnet_qdyt/norms")) == 0


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("file:///home/me/a b", "file:path/to/a b"),
        ("x=/home/me/y,/z", "x=path/to/y,path/to/z"),
        ("data.path=/home/ada/texts/glue", "data.path=path/to/glue"),
        ("a=[/x/y.txt,/z]", "a=[path/to/y.txt,path/to/z]"),
        *((text, text) for text in ("https://host/x", "data=glue", "lr=1/2", "./a/b")),
    ],
)
def test_a_path_of_one_machine_is_not_kept(text: str, kept: str) -> None:
    assert portable(text) == kept


@pytest.mark.skipif(CHECKOUT is None, reason="an installed package has no records")
def test_committed_records_are_whole() -> None:
    """Each is of the run that its configuration says; lists and records agree; none is twice."""
    folders = records.folders([EXPERIMENTS])
    everything = [record for folder in folders for record in records.records(folder)]
    assert len(everything) >= 2532
    assert max(Counter(record.identity for record in everything).values()) == 1
    for folder in folders:
        text = (folder / LIST).read_text().splitlines()[1:]
        ours = [records._summary(record) for record in everything if record.folder == folder]
        assert [line.split("\t") for line in text] == ours
    size = sum((folder / name).stat().st_size for folder in folders for name in (RUNS, LIST))
    assert size < 12e6


RECORD: dict[str, Any] = {
    "steps": 1000,
    "validations": [[600, 5.5]],
    "metrics": {"val/loss": 5.25},
    "epochs": {"1": {"step": 600, "loss": 5.5}},
}


def test_the_last_validation_is_the_one_that_the_metrics_are_of() -> None:
    assert validated(RECORD) == [(600, 5.5), (1000, 5.25)]
    assert validated(RECORD | {"validations": []}) == [(1000, 5.25)]


@pytest.mark.parametrize(
    "other",
    [
        {"validations": [[500, 5.75], [1000, 5.25]]},  # validated at the last step anyway
        {"metrics": {"val/score": 0.5}},
        {"epochs": {"1": {"step": 600, "loss": 5.5, "score": 0.5}}},  # metrics of the best epoch
    ],
)
def test_no_point_is_drawn_twice_or_in_another_place(other: dict[str, Any]) -> None:
    record = RECORD | other
    assert validated(record) == [(step, loss) for step, loss in record["validations"]]


def test_a_run_without_a_record_has_none() -> None:
    assert validated({}) == []
