"""The run store: what a record holds, when it counts, and what a stranger's record cannot do."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from chimera.callback.log.step_log import FIELDS
from chimera.config.compose import compose, plain
from chimera.config.trusted_config import recorded
from chimera.errors import UserError
from chimera.rundir.directory import RunDir
from chimera.rundir.identity import identity
from chimera.rundir.keep import ROWS, add, portable
from chimera.rundir.store import FILES, LARGEST, STATUS, Store, beside, check, digest, intact

WORDS = ["scale=smoke", "mixer=retnet"]


def a_run(folder: Path, words: list[str] | None = None, **changes: Any) -> Path:
    """A finished run with invented results; `changes` are of its configuration."""
    config = plain(compose(words or WORDS)) | changes
    run = folder / f"{config['name']}-{identity(config)}"
    run.mkdir(parents=True)
    (run / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    (run / "overrides.txt").write_text("".join(f"{word}\n" for word in words or WORDS))
    (run / "status.json").write_text(json.dumps({"state": "DONE", "host": "here", "pid": 1}))
    about = {"processor": "Test", "git": {"commit": "a" * 40}, "packages": {"torch": "2", "x": "1"}}
    (run / "environment.json").write_text(json.dumps(about))
    record = {
        "identity": identity(config),
        "metrics": {"val/perplexity": 12.5, "val/loss": 2.5},
        "data": {"cache": "/home/me/.cache/chimera/tokens/1", "splits": {}},
    }
    (run / "run.json").write_text(json.dumps(record))
    rows = [",".join(FIELDS)]
    for step in range(1, 1001):
        rows.append(
            f"2026-01-01T00:00:00+00:00,0,{step},{step},{step / 7},0.5,1e-3,1.0,1.0,0.0,0.0"
        )
    (run / "steps.csv").write_text("\r\n".join(rows) + "\r\n")
    return run


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CHIMERA_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("CHIMERA_RUNS", str(tmp_path / "runs"))
    return tmp_path / "store"


def test_a_record_is_small_and_counts_where_the_run_is_not(store: Path, tmp_path: Path) -> None:
    run = a_run(tmp_path / "runs")
    record, new = add(run)
    assert (record, new) == (store / run.name, True)
    assert add(run) == (record, False)
    assert sum(file.stat().st_size for file in record.iterdir()) < 40_000
    config = plain(compose(WORDS))
    found = Store().find(config, identity(config))
    assert found is not None
    assert found.record()["metrics"] == {"val/perplexity": 12.5, "val/loss": 2.5}
    assert Store().find(config | {"overwrite": True}, identity(config)) is None
    other = plain(compose([*WORDS, "seed=3"]))
    assert Store().find(other, identity(other)) is None
    assert beside([run]) == []
    assert beside([]) == [record]


def test_steps_are_means_of_equal_stretches(store: Path, tmp_path: Path) -> None:
    record, _ = add(a_run(tmp_path / "runs"))
    with (record / "steps.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == list(FIELDS)
    assert len(rows) <= ROWS
    assert [int(row["global_step"]) for row in rows[:2]] == [9, 18]
    assert float(rows[0]["loss"]) == pytest.approx(sum(range(1, 10)) / 9 / 7, rel=1e-5)
    assert int(rows[-1]["global_step"]) == 1000


def test_nothing_of_this_machine_is_in_it(store: Path, tmp_path: Path) -> None:
    config = plain(compose(WORDS))
    data = config["data"] | {"cache_dir": "/home/me/my cache"}
    run = a_run(tmp_path / "runs", data=data, run_dir="/home/me/x", logger={"api_key": "s3cret"})
    (run / "overrides.txt").write_text(
        "mixer=retnet\nrun_dir=/home/me/x\nlogger.api_key=s3cret\n+callbacks.a.file=/home/me/f\n"
        "data.cache_dir=/home/me/my cache\n"
    )
    record, _ = add(run)
    text = "".join(file.read_text() for file in record.iterdir())
    for private in ("/home", "s3cret", "my cache/", "here", str(tmp_path)):
        assert private not in text
    assert (record / "overrides.txt").read_text().split() == [
        "mixer=retnet", "+callbacks.a.file=path/to/f",
    ]  # fmt: skip
    check(record)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"data": {"path": "/home/me/a.txt"}}, "data.path"),
        ({"callbacks": {"mine": {"_target_": "mine.C", "api_key": "k"}}}, "callbacks.mine.api_key"),
        ({"data": {"url": "https://me:pw@host/x"}}, "data.url"),
        ({"numerics": 1}, "numerics 1"),
    ],
)
def test_what_cannot_be_stored_is_named(
    store: Path, tmp_path: Path, changes: dict[str, Any], word: str
) -> None:
    config = plain(compose(WORDS))
    for key, value in changes.items():
        changes[key] = config[key] | value if isinstance(value, dict) else value
    with pytest.raises(UserError, match=word):
        add(a_run(tmp_path / "runs", **changes))
    assert not store.exists()


def test_only_finished_runs_and_no_second_numbers(store: Path, tmp_path: Path) -> None:
    run = a_run(tmp_path / "runs")
    (run / "status.json").write_text('{"state": "FAILED"}')
    with pytest.raises(UserError, match="is FAILED"):
        add(run)
    (run / "status.json").write_text('{"state": "DONE"}')
    add(run)
    text = (run / "run.json").read_text().replace("12.5", "11.5")
    (run / "run.json").write_text(text)
    with pytest.raises(UserError, match="overwrite=true"):
        add(run)
    record, _ = add(run, replace=True)
    assert RunDir(record).record()["metrics"]["val/perplexity"] == 11.5


def _edit(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def _sign(record: Path) -> None:
    """Checksums of the files as they are: what a stranger who knows the format would write."""
    sums = {name: digest(record / name) for name in FILES}
    (record / STATUS).write_text(json.dumps({"state": "DONE", "stored": {"sha256": sums}}))


def _changed_metric(record: Path) -> None:
    _edit(record / "run.json", "12.5", "1.5")


def _other_settings(record: Path) -> None:
    _edit(record / "config.yaml", "seed: 0", "seed: 7")
    _sign(record)


def _other_numerics(record: Path) -> None:
    _edit(record / "config.yaml", "numerics: 2", "numerics: 1")
    _sign(record)


def _object(record: Path) -> None:
    with (record / "config.yaml").open("a") as file:
        file.write("x: !!python/object/apply:os.mkdir ['owned']\n")
    _sign(record)


def _no_metrics(record: Path) -> None:
    (record / "run.json").write_text("[]")
    _sign(record)


def _link(record: Path) -> None:
    (record / "run.json").rename(record.parent / "elsewhere.json")
    (record / "run.json").symlink_to(record.parent / "elsewhere.json")


def _huge(record: Path) -> None:
    (record / "steps.csv").write_bytes(b"0" * (LARGEST + 1))
    _sign(record)


def _missing(record: Path) -> None:
    (record / "steps.csv").unlink()


@pytest.mark.parametrize(
    ("harm", "word"),
    [
        (_changed_metric, "run.json is not what was stored"),
        (_other_settings, "settings of another run"),
        (_other_numerics, "numerics 1"),
        (_object, "config.yaml cannot be read"),
        (_no_metrics, "no mapping"),
        (_link, "run.json is no file"),
        (_huge, "steps.csv has 1,048,577 bytes"),
        (_missing, "steps.csv is missing"),
    ],
)
def test_a_harmed_record_is_named_and_does_not_count(
    store: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    harm: Any,
    word: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    record, _ = add(a_run(tmp_path / "runs"))
    harm(record)
    config, found = plain(compose(WORDS)), Store()
    assert found.find(config, identity(config)) is None
    found.tell()
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("not counted: ")
    assert word in lines[0]
    assert not (tmp_path / "owned").exists()


def test_ends_of_lines_may_change(store: Path, tmp_path: Path) -> None:
    record, _ = add(a_run(tmp_path / "runs"))
    for name in FILES:
        (record / name).write_bytes((record / name).read_bytes().replace(b"\n", b"\r\n"))
    check(record)


def test_checks_are_kept_until_a_file_changes(store: Path, tmp_path: Path) -> None:
    record, _ = add(a_run(tmp_path / "runs"))
    passed: dict[str, Any] = {}
    config = plain(compose(WORDS))
    assert Store(passed=passed).find(config, identity(config)) is not None
    assert list(passed) == [str(record)]
    _changed_metric(record)
    assert Store(passed=passed).find(config, identity(config)) is None


def test_a_record_is_no_model(store: Path, tmp_path: Path) -> None:
    record, _ = add(a_run(tmp_path / "runs"))
    with pytest.raises(UserError, match=r"not a run; train it again: .* mixer=retnet"):
        recorded(RunDir(record))
    with pytest.raises(UserError, match="a record of a store already"):
        add(record)


def test_a_copied_folder_is_a_store(store: Path, tmp_path: Path) -> None:
    record, _ = add(a_run(tmp_path / "runs"))
    shutil.copytree(record, tmp_path / "other" / record.name)
    config = plain(compose(WORDS))
    assert Store(tmp_path / "other").find(config, identity(config)) is not None
    (tmp_path / "link").mkdir()
    (tmp_path / "link" / record.name).symlink_to(record)
    with pytest.raises(UserError, match="is a link"):
        intact(tmp_path / "link" / record.name)


def test_portable_texts() -> None:
    assert portable("file:///home/me/a b") == "file:path/to/a b"
    assert portable("https://host/x") == "https://host/x"
    assert portable("x=/home/me/y,/z") == "x=path/to/y,path/to/z"
