"""Hydra's own switches: shown, honoured, or refused by name."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from chimera.cli.train import main
from chimera.config.compose import compose, plain
from chimera.paths import ROOT
from chimera.rundir.directory import RunDir
from tests.data.kit import sentences

#: Command lines of all kinds: parts, values, scales, presets, rows, data, tasks, adapters, loggers.
LINES = [
    "",
    "scale=small preset=bert_base",
    "scale=paper preset=bitnet_qdyt_large",
    "preset=titan_bert_ultra_2048 scale=small quant=none",
    "task=causal_lm mixer=liza position=rope scale=small",
    "mixer=pattern mixer.cycle=[retnet,mamba,attention]",
    "+bitnet_qdyt/norms=static_tanh scale=small",
    "+saidl/backbone=mlm scale=smoke",
    "optim=finetune optim.lr=1e-4 trainer.max_epochs=2",
    "optim.optimizer._target_=torch.optim.SGD +optim.optimizer.momentum=0.9",
    "optim.schedule._target_=chimera.optim.schedule.wsd +optim.schedule.decay=0.2",
    "~adapter ~optim.rates.norm ~callbacks.gradients",
    "++optim.lr=0.003 ++mixer=mqa",
    "logger=none launcher=submitit launcher.partition=gpu",
    "precision=bf16 model.gradient_checkpointing=true model.loops=3 scale=smoke",
    "name=mine run_dir=runs/mine workers=3 overwrite=true",
    "+callbacks.early._target_=lightning.pytorch.callbacks.EarlyStopping"
    " +callbacks.early.monitor=val/loss",
]


def shown(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """What `--cfg job` prints."""
    assert main([*words, "--cfg", "job"]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("line", LINES)
def test_the_shown_configuration_is_the_config_yaml_of_the_run(
    line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = line.split()
    printed = shown(words, capsys)
    monkeypatch.setattr("chimera.rundir.directory.environment", dict)  # it loads torch
    RunDir(tmp_path).start(plain(compose(words)), words)
    assert printed == (tmp_path / "config.yaml").read_text()


@pytest.mark.parametrize("words", [["scale=smoke"], ["preset=bert_tiny", "trainer.max_steps=2"]])
def test_a_run_writes_the_configuration_that_was_shown(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text.txt").write_text("\n\n".join(sentences(200)))
    words = [*words, "data=text", f"data.path={tmp_path}/text.txt", "tokenizer=word"]
    words += ["model.dim=16", "model.depth=1", "model.heads=2", "model.max_len=16", "logger=none"]
    words += ["data.batch_size=4", "trainer.limit_test_batches=1", "trainer.accelerator=cpu"]
    words += [f"data.cache_dir={tmp_path}/cache", f"run_dir={tmp_path}/run"]
    printed = shown(words, capsys)
    assert main(words) == 0
    assert (tmp_path / "run/config.yaml").read_text() == printed


def test_a_package_is_a_part_of_what_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    whole = yaml.safe_load(shown(["scale=smoke"], capsys))
    for flags in (["--package", "optim"], ["-p", "optim.rates"], ["--package=_global_"]):
        assert main(["scale=smoke", "-c", "job", "--resolve", *flags]) == 0
        node = whole
        for part in flags[-1].removeprefix("--package=").split("."):
            node = node if part == "_global_" else node[part]
        assert yaml.safe_load(capsys.readouterr().out) == node


@pytest.mark.parametrize(
    ("topic", "says"),
    [
        ("defaults", ["conf", "scale/smoke", "data/pydocs"]),
        ("defaults-tree", ["mixer: retnet", "scale: smoke"]),
        ("searchpath", ["experiments", "main"]),
        ("config", ["max_steps: 12"]),
    ],
)
def test_info_tells_how_a_run_is_composed(topic: str, says: list[str]) -> None:
    words = ["--info", topic, "scale=smoke", "mixer=retnet"]
    code = "import sys; from chimera.cli.train import main; sys.exit(main(sys.argv[1:]))"
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not [text for text in says if text not in done.stdout], done.stdout


def test_the_shell_completes_groups_choices_and_keys() -> None:
    def completed(typed: str) -> set[str]:
        line = f"python train.py {typed}"
        env = os.environ | {"COMP_LINE": line, "COMP_POINT": str(len(line))}
        words = [sys.executable, str(ROOT / "train.py"), "-sc", "query=bash"]
        done = subprocess.run(words, capture_output=True, text=True, env=env)
        assert done.returncode == 0, done.stderr
        return set(done.stdout.split())

    assert completed("mixer=re") == {"mixer=retnet"}
    assert "optim.lr=" in completed("optim.l")
    assert "@hydra.main" in (ROOT / "train.py").read_text()  # the script looks for it


def test_the_shell_gets_its_script(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-sc", "install=bash"]) == 0
    assert "complete -o nospace" in capsys.readouterr().out
