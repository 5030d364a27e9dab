"""Fine-tuning from the command line: epochs, best checkpoint, predictions, `init_from=`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from chimera.cli.eval import main as evaluate
from chimera.cli.train import main as train
from chimera.config.compose import compose, plain
from chimera.data.corpus.labelled import Example
from chimera.data.encode.examples import class_counts, encode
from chimera.errors import UserError
from chimera.rundir import checkpoints as files
from chimera.rundir.checkpoint_io import load
from chimera.rundir.identity import identity
from tests.data.glue import cola, mnli, stsb, tokenizer

QUIET = ["logger=none", "trainer.progress=none", "trainer.accelerator=cpu"]
SMALL = ["model.dim=32", "model.depth=1", "model.max_len=32", "data.batch_size=8"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with data, a cache and a language model pretrained on a few sentences."""
    folder = tmp_path_factory.mktemp("glue")
    for make in (cola, mnli, stsb):
        make(folder / "data")
    text = folder / "text.txt"
    text.write_text("\n".join(["the cat sees a big red dog and the dog runs under one tree"] * 300))
    words = ["data=text", f"data.path={text}", f"data.cache_dir={folder}/cache", "tokenizer=word"]
    words += [*SMALL, *QUIET, "trainer.max_steps=4", "trainer.val_check_interval=2"]
    assert train([*words, f"run_dir={folder}/pre"]) == 0
    return folder


def tune(place: Path, to: Path, task: str, *more: str) -> list[str]:
    data = ["data=glue", f"data.task={task}", f"data.path={place}/data"]
    data += [f"data.cache_dir={place}/cache", "data.batch_size=8", "optim.lr=3e-3"]
    return ["preset=finetune", *data, *QUIET, f"run_dir={to}", *more]


def from_scratch(place: Path, to: Path, task: str, *more: str) -> list[str]:
    return tune(place, to, task, "tokenizer=word", *SMALL, *more)


def test_epochs_best_checkpoint_and_predictions(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    words = from_scratch(place, run, "cola", "trainer.max_epochs=4", "seed=1")
    assert train(words) == 0
    record = json.loads((run / "run.json").read_text())
    assert record["steps"] == 4 * 10
    assert [step for step, _ in record["validations"]] == [10, 20, 30, 40]
    assert {"val/mcc", "val/score", "val/accuracy", "val/loss"} <= set(record["metrics"])
    assert "test/mcc" not in record["metrics"]  # GLUE's test part has no labels
    lines = (run / "predictions/CoLA.tsv").read_text().splitlines()
    assert lines[0] == "index\tprediction"
    assert [line.split("\t")[0] for line in lines[1:]] == list("0123456")
    assert {line.split("\t")[1] for line in lines[1:]} <= {"0", "1"}

    # The numbers are those of the best epoch by the task's score, not of the last.
    kept = files.read_sidecar((run / "checkpoints/best.ckpt").resolve())
    assert kept.loss is not None
    assert record["metrics"]["val/score"] == pytest.approx(-kept.loss)
    capsys.readouterr()
    assert evaluate([f"run={run}"]) == 0
    assert json.loads(capsys.readouterr().out)["step"] == kept.step


@pytest.mark.slow
@pytest.mark.parametrize(
    "pool", ["mean", *(pytest.param(p, marks=pytest.mark.slow) for p in ("first", "last"))]
)
def test_a_learnable_task_is_learned(pool: str, place: Path, tmp_path: Path) -> None:
    cola(tmp_path / "more", 640)  # sentences with «cat» are acceptable
    more = [f"data.path={tmp_path}/more", "trainer.max_epochs=3", f"task.pool={pool}"]
    assert train(from_scratch(place, tmp_path / "run", "cola", *more)) == 0
    assert json.loads((tmp_path / "run/run.json").read_text())["metrics"]["val/mcc"] > 0.9


def test_mnli_has_two_validation_and_two_test_parts(place: Path, tmp_path: Path) -> None:
    assert train(from_scratch(place, tmp_path / "run", "mnli", "trainer.max_epochs=1")) == 0
    found = json.loads((tmp_path / "run/run.json").read_text())["metrics"]
    both = found["val/accuracy"], found["val/accuracy_mismatched"]
    assert found["val/score"] == pytest.approx(sum(both) / 2)
    for name, count in (("MNLI-m", 5), ("MNLI-mm", 4)):
        lines = (tmp_path / f"run/predictions/{name}.tsv").read_text().splitlines()
        assert len(lines) == 1 + count
        assert lines[1].split("\t")[1] in ("entailment", "neutral", "contradiction")


def test_scores_are_predicted(place: Path, tmp_path: Path) -> None:
    words = from_scratch(place, tmp_path / "run", "stsb", "trainer.max_epochs=1", "mixer=mlstm")
    assert train([*words, "position=none"]) == 0
    found = json.loads((tmp_path / "run/run.json").read_text())["metrics"]
    assert -1 <= found["val/pearson"] <= 1
    # STS-B has no test part here, so the dev part is the test.
    assert found["test/pearson"] == pytest.approx(found["val/pearson"], abs=1e-6)


def test_init_from_a_run_copies_weights_and_tokenizer(place: Path, tmp_path: Path) -> None:
    more = [f"init_from={place}/pre", "trainer.max_steps=1", "optim.lr=1e-12", "optim.eps=1"]
    assert train(tune(place, tmp_path / "run", "cola", *more)) == 0
    before = load(place / "pre/checkpoints/best.ckpt")["state_dict"]
    after = load(tmp_path / "run/checkpoints/last.ckpt")["state_dict"]
    body = [name for name in before if name.startswith("model.backbone.")]
    assert len(body) > 10
    assert all(torch.allclose(before[name], after[name], atol=1e-9) for name in body)
    made = json.loads((tmp_path / "run/run.json").read_text())
    assert made["tokenizer"] == json.loads((place / "pre/run.json").read_text())["tokenizer"]


def test_init_from_is_part_of_the_identity(place: Path, tmp_path: Path) -> None:
    def of(*more: str) -> str:
        return identity(plain(compose(tune(place, tmp_path, "cola", *more))))

    (tmp_path / "linked").symlink_to(place / "pre")
    best = of(f"init_from={place}/pre")
    assert best == of(f"init_from={tmp_path}/linked", f"tokenizer.path={place}/pre/tokenizer")
    assert best != of(f"init_from={place}/pre/checkpoints/last.ckpt")
    taken = plain(
        compose(tune(place, tmp_path, "cola", f"init_from={place}/pre", "model.dropout=0.3"))
    )
    assert taken["model"]["dim"] == 32
    assert taken["model"]["dropout"] == 0.3
    small = plain(compose(tune(place, tmp_path, "cola", f"init_from={place}/pre", "scale=smoke")))
    assert small["model"]["dim"] == 32
    assert small["data"]["_target_"].endswith("Glue")  # pydocs does not stand in for labels
    assert small["trainer"]["max_steps"] == 12


def test_init_from_an_unfinished_run_is_refused(place: Path, tmp_path: Path) -> None:
    (tmp_path / "half").mkdir()
    (tmp_path / "half/config.yaml").write_text("task: {}\n")
    (tmp_path / "half/status.json").write_text('{"state": "STOPPED"}')
    with pytest.raises(UserError, match=r"is not finished \(STOPPED\)"):
        compose(tune(place, tmp_path, "cola", f"init_from={tmp_path}/half"))


def test_balanced_weights() -> None:
    rows = [Example("the cat", None, int(i < 3), i) for i in range(12)]
    part = encode(rows, tokenizer(), 16)
    counts = class_counts(part, 2)
    assert counts.tolist() == [9, 3]
    assert np.allclose(counts.sum() / (2 * counts), [12 / 18, 2.0])
