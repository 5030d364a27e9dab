"""`python train.py … | head`: a reader that closes the pipe ends no command."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from chimera.cli.command import exit_code
from chimera.cli.finished import evaluate
from chimera.cli.train import main as train
from chimera.paths import ROOT
from tests.train import tiny


@pytest.fixture
def nobody_reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Both standard streams are pipes whose readers are gone."""
    streams = []
    for name in ("stdout", "stderr"):
        reading, writing = os.pipe()
        os.close(reading)
        streams.append(os.fdopen(writing, "w", buffering=1))
        monkeypatch.setattr(sys, name, streams[-1])
    yield
    monkeypatch.undo()
    for stream in streams:
        stream.close()  # raises if something is still buffered for the pipe


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("home")
    tiny.write(folder)
    return folder


def test_a_run_that_nobody_listens_to_is_done_and_can_be_tested(
    home: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.chdir(home)
    line = [*tiny.LINE, "trainer.max_steps=4", "trainer.log_every_n_steps=1"]
    line += ["trainer.progress=lines", "trainer.enable_model_summary=true"]
    assert train([*line, "run_dir=heard"]) == 0
    request.getfixturevalue("nobody_reads")
    assert train([*line, "run_dir=unheard"]) == 0
    assert tiny.state(home / "unheard") == "DONE"
    assert tiny.same(home / "unheard", home / "heard")
    assert train([*line, "run_dir=unheard"]) == 0  # «done already»
    assert evaluate(["run=unheard"]) == 0


@pytest.mark.parametrize("words", ["--help", "list", "list tables", "--cfg job", "--info defaults"])
def test_what_is_only_printed_ends_well(words: str, nobody_reads: None) -> None:
    assert train(words.split()) == 0


def test_an_error_keeps_its_exit_code(nobody_reads: None) -> None:
    assert train(["mixer=retnett"]) == 2


def head(command: str, home: Path) -> str:
    """First line that `python train.py <command> | head -1` prints; it ends well and in silence."""
    whole = f"{sys.executable} {ROOT / 'train.py'} {command} | head -1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", whole], cwd=home, capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stdout.count("\n") == 1
    assert done.stderr == ""
    return done.stdout


def test_head_of_the_help(home: Path) -> None:
    assert head("--help", home).startswith("python train.py [group=choice")


@pytest.mark.slow
def test_head_of_a_run(home: Path) -> None:
    ours = [word for word in tiny.LINE if not word.startswith("data.cache_dir")]  # said if twice
    words = " ".join(f"'{word}'" for word in [*ours, "trainer.max_steps=2"])
    line = head(f"{words} data.cache_dir=new run_dir=piped 2>&1", home)
    assert line.startswith("data: ")
    assert tiny.state(home / "piped") == "DONE"


def test_a_broken_pipe_elsewhere_is_an_error() -> None:
    """For instance to a worker of a loader, which has died."""

    def command() -> None:
        reading, writing = os.pipe()
        os.close(reading)
        os.write(writing, b"x")

    with pytest.raises(BrokenPipeError):
        exit_code(command)
