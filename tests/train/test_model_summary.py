"""What `python train.py show` tells of a run before it starts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from chimera.cli.train import main
from chimera.config.compose import compose, plain
from chimera.train.model_summary import overview, text, vocabulary_of
from tests.train import tiny


@pytest.fixture
def line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    tiny.write(tmp_path)
    monkeypatch.chdir(tmp_path)
    return list(tiny.LINE)


def test_the_sums_agree_with_the_run(line: list[str], tmp_path: Path) -> None:
    found = overview(plain(compose([*line, "quant=bitnet158"])))
    parameters = found["parameters"]
    assert parameters["total"] == sum(n for k, n in parameters.items() if k != "total")
    assert found["bytes"]["total"]["parameters"] == parameters["total"]
    assert found["bytes"]["total"]["packed"] < found["bytes"]["total"]["fp32"]
    memory = found["memory"]
    assert memory["total"] == sum(size for part, size in memory.items() if part != "total")
    assert memory["weights"] == 4 * parameters["total"]
    assert memory["activations"] > 0
    shown = text(found)
    assert f"{parameters['total']:,}" in shown
    assert "MFLOP per token" in shown
    assert not (tmp_path / "runs").exists()


def test_memory_and_disk_count_the_state_of_the_chosen_optimiser(line: list[str]) -> None:
    def of(*words: str) -> tuple[float, dict[str, float]]:
        found = overview(plain(compose([*line, *words])))
        assert (
            found["disk"]["checkpoint"] == found["memory"]["weights"] + found["memory"]["optimiser"]
        )
        return found["memory"]["optimiser"] / found["trained"]["parameters"], found["disk"]

    assert of()[0] == 8
    assert of("optim=lion")[0] == 4
    assert 4 < of("optim=muon")[0] < 8
    kept = ["trainer.checkpoint_keep=2", "trainer.checkpoint_keep_best=3", "trainer.max_epochs=4"]
    disk = of(*kept, "trainer.max_steps=1000", "trainer.checkpoint_keep_epochs=null")[1]
    assert (disk["newest"], disk["best"], disk["epoch"]) == (2, 3, 4)
    assert disk["total"] == 9 * disk["checkpoint"]


def test_activations_grow_with_the_batch_and_shrink_when_recomputed(line: list[str]) -> None:
    def kept(*more: str) -> float:
        shape = ["mixer=attention", "model.depth=8", "model.dim=128", *more]
        size = overview(plain(compose([*line, *shape])))["memory"]["activations"]
        assert isinstance(size, float)
        return size

    plainly = kept()
    assert kept("data.batch_size=8") == pytest.approx(2 * plainly)
    assert kept("model.gradient_checkpointing=true") < 0.7 * plainly


def test_the_command_prints_each_format(
    line: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", *line, "format=json"]) == 0
    assert json.loads(capsys.readouterr().out)["flops"]["length"] == 16
    assert main(["show", *line, "format=mermaid"]) == 0
    assert capsys.readouterr().out.startswith("flowchart TB")


def test_the_vocabulary_of_a_body_is_its_own() -> None:
    words = ["+tptt/variants=v_n1", "scale=small"]
    config = plain(compose(words))
    assert vocabulary_of(config) == 259
    assert vocabulary_of(plain(compose(["tokenizer.vocab_size=77"]))) == 77
