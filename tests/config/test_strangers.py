"""The parts of docs/guide/own-parts.md, from a folder of one's own: the project is not changed."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from chimera.cli.main import main
from chimera.cli.train import main as train
from chimera.config.compose import compose, plain
from chimera.config.groups import groups
from chimera.config.tables import load, tables
from chimera.config.trusted_config import recorded
from chimera.contract_tests.__main__ import main as contract
from chimera.errors import UserError
from chimera.paths import ROOT
from chimera.rundir.directory import RunDir
from chimera.train.check import check_settings
from tests import forks
from tests.config.folders_kit import folders

PAGE = (ROOT / "docs/guide/own-parts.md").read_text(encoding="utf-8")
#: File to contents, below the stranger's folder; `conf/` is what `--config-dir` names.
FILES = dict(re.findall(r"^`([\w/]+\.\w+)`\n\n```\w+\n(.*?)^```", PAGE, flags=re.M | re.S))
COMMANDS = [line for block in re.findall(r"^```bash\n(.*?)^```", PAGE, flags=re.M | re.S)
            for line in block.splitlines()]  # fmt: skip
TEXT = "A line of words to learn from, once more and again.\n\n" * 300


@pytest.fixture
def stranger(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (tmp_path / "text.txt").write_text(TEXT)
    shout = FILES["shout.py"].replace("text.upper()", 'text.replace("more", "bird")')
    (tmp_path / "shout.py").write_text(shout)  # the tokenizer below has no capitals
    return tmp_path


def quiet(folder: Path) -> list[str]:
    return [
        "scale=smoke",
        "data=text",
        f"data.path={folder}/text.txt",
        f"data.cache_dir={folder}/cache",
        "tokenizer=word",
        "trainer.max_steps=2",
        "trainer.progress=none",
    ]


def test_the_parts_of_the_page_train_from_another_folder(
    stranger: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mixer, a norm, a callback with a number per step, a data set and a logger."""
    with folders(monkeypatch):
        own = [
            *(f"--config-dir={stranger}/conf", "mixer=running_mean", "mixer.gain=0.5", "norm=half"),
            "+callbacks.norm._target_=weight_norm.WeightNorm",
            *("logger=sink", f"logger.to={stranger}/sink.txt"),
        ]
        words = [word.replace("data=text", "data=shout") for word in quiet(stranger)]
        assert train([*own, *words, f"run_dir={stranger}/run"]) == 0
    record = json.loads((stranger / "run/run.json").read_text())
    assert (record["choices"]["mixer"], record["choices"]["norm"]) == ("running_mean", "half")
    with pytest.raises(UserError, match=f"trained with --config-dir={stranger}/conf"):
        recorded(RunDir(stranger / "run"))
    logged = (stranger / "sink.txt").read_text()
    assert "train/loss" in logged
    assert "stats/weight_norm" in logged
    words = json.loads((stranger / "run/tokenizer/huggingface.json").read_text())["model"]["vocab"]
    assert "bird" in words
    assert "more" not in words


#: What `python -m chimera.contract_tests` does.
CONTRACT = "import runpy; runpy.run_module('chimera.contract_tests', run_name='__main__')"


def test_the_contract_tests_run_on_them(stranger: Path) -> None:
    """A right mixer passes, a norm that averages over padding fails, in one process."""
    mine = stranger / "half.py"
    mine.write_text(mine.read_text().replace("x * self.by", "x * self.by - x.mean(1, True)"))
    words = [f"--config-dir={stranger}/conf", "mixer=running_mean", "norm=half"]
    done = forks.run("-c", CONTRACT, *words, "-rfE", "-k", "padding or future", cwd=stranger)
    assert done.returncode == 1, done.stdout[-3000:] + done.stderr
    failed = re.findall(r"^FAILED (.*?)(?: - .*)?$", done.stdout, re.M)
    assert len(failed) == 2
    assert all("TestEveryPart::test_padding" in test and "norm-half" in test for test in failed)
    assert re.search(r"2 failed, \d+ passed", done.stdout)


def test_a_table_and_a_preset_of_ones_own(stranger: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with folders(monkeypatch, stranger / "conf"):
        pattern = ["mixer=pattern", "mixer.cycle=[running_mean,attention]", "position=none"]
        check_settings(plain(compose(pattern)))  # a member is called later, as a mixer is
        assert "mypaper/means" in tables()
        assert [row.name for row in load("mypaper/means").rows] == ["plain", "mean"]
        row = ["+mypaper/means=mean", *quiet(stranger), "logger=none"]
        assert train([*row, f"run_dir={stranger}/row"]) == 0
        record = json.loads((stranger / "row/run.json").read_text())
        assert record["choices"]["mixer"] == "running_mean"
        preset = plain(compose(["preset=mine", "scale=small"]))
        assert (preset["model"]["depth"], preset["optim"]["lr"]) == (3, 1e-3)
        own = plain(compose(["optim=nesterov"]))
        check_settings(own)
        assert own["optim"]["optimizer"]["momentum"] == 0.9
    assert "mypaper/means" not in tables()


def test_the_page_shows_every_file() -> None:
    assert len(FILES) == 15
    assert "_partial_" not in PAGE  # the groups set it


@pytest.mark.slow
@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_of_the_page_runs(
    line: str, stranger: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the stranger's folder; training at smoke scale, of two steps."""
    program, *words = shlex.split(line.removeprefix("PYTHONPATH=. "))
    monkeypatch.chdir(stranger)
    monkeypatch.setenv("CHIMERA_RUNS", str(stranger / "runs"))
    if words[:2] == ["-m", "chimera.contract_tests"]:
        return  # test_the_contract_tests_run_on_them
    assert program == "chimera"
    monkeypatch.syspath_prepend(str(stranger))
    small = [*quiet(stranger), *([] if "logger" in line else ["logger=none"])]
    sweep = ["sweep", "--config-dir=conf", "+mypaper=means", "seed=0,1", *small]
    with folders(monkeypatch):
        if words[0] in ("sweep", "list"):
            assert main(sweep if words[0] == "sweep" else words) == 0
        elif words[0] == "report":
            assert main(sweep) == 0
            assert main([*words, "scale=smoke"]) == 0
        else:
            given = {word.partition("=")[0] for word in words}
            added = [word for word in small if word.partition("=")[0] not in given]
            assert main([*words, *added]) == 0
    assert "list" in words or [*(stranger / "runs").glob("*/run.json")]


def test_mistakes_are_one_line(
    stranger: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    own = f"--config-dir={stranger}/conf"
    for command, words, said in (
        (train, ["--config-dir=/nowhere", "mixer=x"], "--config-dir=/nowhere is no folder"),
        (
            train,
            [f"hydra.searchpath=[file://{stranger}/conf]", "norm=half", "norm.by=x"],
            "norm.by",
        ),
        (contract, [own, "norm=hafl"], "did you mean 'half'?"),
        (contract, ["nrom=half"], "did you mean 'norm'?"),
    ):
        with folders(monkeypatch):
            assert command(words) == 2
        err = capsys.readouterr().err
        assert err.count("\n") == 1
        assert said in err
    (stranger / "conf/mixer/retnet.yaml").write_text("_target_: running_mean.RunningMean\n")
    with (
        folders(monkeypatch, stranger / "conf"),
        pytest.raises(UserError, match="mixer=retnet exists already"),
    ):
        groups()
