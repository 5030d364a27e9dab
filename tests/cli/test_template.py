"""Every line of docs/reference/lightning-hydra-template.md does what the page says."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from chimera.cli.train import main
from chimera.config.compose import compose, plain
from chimera.errors import UserError
from chimera.paths import ROOT
from chimera.sweep import run_sweep as sweeps
from chimera.train.check import check_settings
from tests.train import tiny

TEXT = (ROOT / "docs/reference/lightning-hydra-template.md").read_text()
ROWS = re.findall(r"^\| `(python train.py[^`]*)` \| (.*?) \|(.*)\|$", TEXT, flags=re.M)
WORKS = [there for there, answer, _ in ROWS if answer.startswith("works")]
WORKS += [use for *_, cell in ROWS for use in re.findall(r"`(python train.py[^`]*)`", cell)]
REFUSED = [
    (there, answer.removeprefix("refused: ").replace("`", ""))
    for there, answer, _ in ROWS
    if answer.startswith("refused: ")
]
#: What a machine may not have.
NEEDS = ("trainer=gpu", "logger=mlflow", "logger=tensorboard", "submitit", "ckpt_path")


def words(line: str) -> list[str]:
    return shlex.split(line)[2:]


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CHIMERA_RUNS", str(tmp_path / "runs"))
    return tmp_path


def test_the_page_has_commands_of_both_kinds() -> None:
    assert len(ROWS) == TEXT.count("\n| `python train.py")
    assert len(WORKS) >= 40
    assert len(REFUSED) >= 25
    assert len(ROWS) == len(REFUSED) + sum(answer.startswith("works") for _, answer, _ in ROWS)


@pytest.mark.parametrize("line", dict.fromkeys(WORKS))
def test_a_line_that_works_is_composed_and_checked(
    line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], place: Path
) -> None:
    (place / "name.ckpt").write_bytes(b"")
    overrides = [word.replace("/path/to/ckpt/", "") for word in words(line)]
    if "-m" in overrides:
        jobs = planned(overrides, monkeypatch)
        assert len(jobs) > 1
        for job in jobs:
            check_settings(plain(compose(job)))
    elif any(word.startswith("--") for word in overrides):
        assert main(overrides) == 0
        assert capsys.readouterr().out
    else:
        check_settings(plain(compose(overrides)))


def planned(overrides: list[str], monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Overrides of the jobs of a sweep, which are not started."""
    jobs: list[list[str]] = []

    def compose_jobs(batch: Sequence[Sequence[str]], composed: object) -> list[Any]:
        jobs.extend(map(list, batch))
        raise UserError("planned")

    monkeypatch.setattr(sweeps, "compose_jobs", compose_jobs)
    monkeypatch.setattr("chimera.sweep.slurm.Submitit.check", lambda _: None)
    assert main(overrides) == 2
    return jobs


@pytest.mark.parametrize(("line", "says"), REFUSED)
def test_a_line_that_is_refused_says_what_to_use(
    line: str, says: str, capsys: pytest.CaptureFixture[str], place: Path
) -> None:
    assert main(words(line)) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert says in err
    assert list(place.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "line", [w for w in dict.fromkeys(WORKS) if "-m " not in w and not any(n in w for n in NEEDS)]
)
def test_a_line_that_works_trains(line: str, place: Path) -> None:
    tiny.write(place)
    overrides = words(line)
    chosen = {word.partition("=")[0].lstrip("+") for word in overrides}
    small = [w for w in tiny.LINE if w.partition("=")[0] not in chosen | {"mixer"}]
    small += ["data.batch_size=1"] if any("limit_" in key for key in chosen) else []
    end = [] if "trainer.max_epochs" in chosen or "debug" in chosen else ["trainer.max_steps=4"]
    flags = any(word.startswith("--") for word in overrides)
    data = place if flags else place / "run"
    run_dir = [] if flags or "run_dir" in chosen else [f"run_dir={data}"]
    assert main([*small, *end, *overrides, *run_dir]) == 0
    if not flags:
        assert tiny.state(place / "x" if "run_dir" in chosen else data) == "DONE"
