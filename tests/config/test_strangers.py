"""Parts of one's own, from a folder of one's own: nothing of the project is changed."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from chimera.cli.train import main as train
from chimera.config.groups import groups
from chimera.config.tables import load, tables
from chimera.contract_tests.__main__ import main as contract
from chimera.errors import UserError
from chimera.paths import CONF
from tests import forks
from tests.config.folders_kit import folders

#: File to contents, below the stranger's folder; `conf/` is what `--config-dir` names.
FILES = {
    "mine.py": '''
"""A mixer, a norm, a callback, a logger and a data set."""
from dataclasses import dataclass
from pathlib import Path

import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers.logger import DummyLogger

from chimera.contract import CAUSAL, Mixer, Norm, Out
from chimera.data.corpus.text import Text


class RunningMean(Mixer):
    """Mean of the tokens so far. [b t d] to [b t d]."""

    component = "running_mean"
    directions = CAUSAL
    source = "mine"

    def __init__(self, site, parts, *, gain: float = 1.0):
        super().__init__()
        self.gain = gain
        self.proj = parts.linear(site.dim, site.dim, bias=False, role="out")

    def forward(self, x, ctx, state=None):
        real = torch.ones_like(x[..., :1]) if ctx.mask is None else ctx.mask[..., None].to(x.dtype)
        return Out(self.proj(self.gain * (x * real).cumsum(1) / real.cumsum(1).clamp(min=1)), state)


class Half(Norm):
    """Half of x. [b t d] to [b t d]."""

    def __init__(self, dim: int, *, by: float = 0.5):
        super().__init__()
        self.by = torch.nn.Parameter(torch.full((dim,), by))

    def forward(self, x, mask=None):
        return x * self.by


class Count(Callback):
    def __init__(self, *, to: str):
        self.to, self.steps = to, 0

    def on_train_batch_end(self, *given):
        self.steps += 1

    def on_fit_end(self, *given):
        Path(self.to).write_text(str(self.steps))


class Sink(DummyLogger):
    def __init__(self, *, to: str):
        super().__init__()
        self.to = Path(to)

    def log_metrics(self, metrics, step=None):
        with self.to.open("a") as file:
            file.write(f"{step} {sorted(metrics)}\\\\n")


@dataclass(frozen=True, kw_only=True)
class Birds(Text):
    """Text about birds."""

    def fingerprint(self):
        return "birds-" + super().fingerprint()

    def splits(self):
        splits = super().splits().items()
        return {split: [text.replace("more", "bird") for text in texts] for split, texts in splits}
''',
    "conf/data/birds.yaml": (CONF / "data/text.yaml")
    .read_text(encoding="utf-8")
    .replace("chimera.data.corpus.text.Text", "mine.Birds"),
    "conf/logger/sink.yaml": "_target_: mine.Sink\nto: ???\n",
    "conf/mixer/running_mean.yaml": (
        "# The mean of the tokens so far.\n_target_: mine.RunningMean\n_partial_: true\ngain: 1.0\n"
    ),
    "conf/norm/half.yaml": "_target_: mine.Half\n_partial_: true\nby: 0.5\n",
    "conf/mypaper/means.yaml": (
        "# @package _global_\n"
        "table:\n  title: Means\n  source: mine, Table 1\n  metric: val/perplexity\n"
        "  better: lower\n  reference: plain\n  note: two rows\n"
        "hydra:\n  sweeper:\n    params:\n      +mypaper/means: glob(*)\n"
    ),
    "conf/mypaper/means/plain.yaml": (
        "# @package _global_\n# Plain\ndefaults:\n  - override /mixer: attention\n"
    ),
    "conf/mypaper/means/mean.yaml": (
        "# @package _global_\n# Mean\ndefaults:\n  - override /mixer: running_mean\n"
    ),
    "text.txt": "A line of words to learn from, once more and again.\n\n" * 300,
}


@pytest.fixture
def stranger(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
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


def test_a_mixer_a_norm_and_a_callback_train_from_another_folder(
    stranger: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with folders(monkeypatch):
        own = [
            f"--config-dir={stranger}/conf",
            "mixer=running_mean",
            "mixer.gain=0.5",
            "norm=half",
            "+callbacks.count._target_=mine.Count",
            f"+callbacks.count.to={stranger}/count.txt",
        ]
        run = f"run_dir={stranger}/run"
        assert train([*own, *quiet(stranger), "logger=none", run]) == 0
        assert (stranger / "count.txt").read_text() == "2"
        record = json.loads((stranger / "run/run.json").read_text())
        assert record["choices"]["mixer"] == "running_mean"
        assert record["choices"]["norm"] == "half"


def test_a_data_set_and_a_logger_train_from_another_folder(
    stranger: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with folders(monkeypatch):
        own = [f"--config-dir={stranger}/conf", "logger=sink", f"logger.to={stranger}/sink.txt"]
        words = [word.replace("data=text", "data=birds") for word in quiet(stranger)]
        assert train([*own, *words, f"run_dir={stranger}/run"]) == 0
    assert "train/loss" in (stranger / "sink.txt").read_text()
    words = json.loads((stranger / "run/tokenizer/huggingface.json").read_text())["model"]["vocab"]
    assert "bird" in words
    assert "more" not in words


#: What `python -m chimera.contract_tests` does.
CONTRACT = "import runpy; runpy.run_module('chimera.contract_tests', run_name='__main__')"


def test_the_contract_tests_run_on_them(stranger: Path) -> None:
    """A right mixer passes, a norm that averages over padding fails, in one process."""
    mine = stranger / "mine.py"
    mine.write_text(mine.read_text().replace("x * self.by", "x * self.by - x.mean(1, True)"))
    words = [f"--config-dir={stranger}/conf", "mixer=running_mean", "norm=half"]
    done = forks.run("-c", CONTRACT, *words, "-rfE", "-k", "padding or future", cwd=stranger)
    assert done.returncode == 1, done.stdout[-3000:] + done.stderr
    failed = re.findall(r"^FAILED (.*?)(?: - .*)?$", done.stdout, re.M)
    assert len(failed) == 2
    assert all("TestEveryPart::test_padding" in test and "norm-half" in test for test in failed)
    assert re.search(r"2 failed, \d+ passed", done.stdout)


def test_a_part_to_test_that_does_not_exist_is_one_line(
    stranger: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with folders(monkeypatch):
        assert contract([f"--config-dir={stranger}/conf", "norm=hafl"]) == 2
        assert "did you mean 'half'?" in capsys.readouterr().err
        assert contract(["nrom=half"]) == 2
        assert "did you mean 'norm'?" in capsys.readouterr().err


def test_a_table_of_ones_own_is_listed_and_its_rows_run(
    stranger: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with folders(monkeypatch, stranger / "conf"):
        assert "mypaper/means" in tables()
        assert [row.name for row in load("mypaper/means").rows] == [
            "plain",
            "mean",
        ]  # reference first
        row = ["+mypaper/means=mean", *quiet(stranger), "logger=none"]
        assert train([*row, f"run_dir={stranger}/row"]) == 0
        record = json.loads((stranger / "row/run.json").read_text())
        assert record["choices"]["mixer"] == "running_mean"
    assert "mypaper/means" not in tables()


def test_hydras_search_path_is_read(stranger: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with folders(monkeypatch):
        words = [f"hydra.searchpath=[file://{stranger}/conf]", "mixer=running_mean", "mixer.gain=x"]
        assert train(words) == 2  # found, and its value refused
        assert "running_mean" in groups()["mixer"]


def test_mistakes_are_one_line(
    stranger: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with folders(monkeypatch):
        assert train(["--config-dir=/nowhere", "mixer=x"]) == 2
        assert "--config-dir=/nowhere is no folder" in capsys.readouterr().err
    (stranger / "conf/mixer/retnet.yaml").write_text("_target_: mine.RunningMean\n")
    with folders(monkeypatch, stranger / "conf"):
        with pytest.raises(UserError, match="mixer=retnet exists already"):
            groups()
        (stranger / "conf/mixer/retnet.yaml").unlink()
