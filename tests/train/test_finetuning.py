"""Fine-tuning from the command line: epochs, predictions, `init_from=`, Hugging Face models."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from chimera.cli.finished import evaluate
from chimera.cli.train import main as train
from chimera.config.compose import compose, plain
from chimera.data.corpus.labelled import Example
from chimera.data.encode.examples import class_counts, encode
from chimera.errors import UserError
from chimera.rundir import checkpoints as files
from chimera.rundir.checkpoint_io import load
from chimera.rundir.identity import identity
from tests.data.glue import cola, mnli, stsb, tokenizer
from tests.kit import Refused
from tests.model.hf_folders import KINDS, folder
from tests.train.tiny import record

QUIET = ["logger=none", "trainer.progress=none", "trainer.accelerator=cpu", "data.batch_size=8"]
SMALL = ["model.dim=32", "model.depth=1", "model.max_len=32"]
FROZEN = ["trainer.max_steps=1", "optim.lr=1e-12", "optim.eps=1"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with data, a cache, models of Hugging Face, and one pretrained on a few sentences."""
    root = tmp_path_factory.mktemp("tuning")
    for make in (cola, mnli, stsb):
        make(root / "data")
    for kind in KINDS:
        folder(kind, root / kind)
    text = root / "text.txt"
    text.write_text("\n".join(["the cat sees a big red dog and the dog runs under one tree"] * 300))
    words = [*on_text(root), "tokenizer=word", *SMALL, "trainer.max_steps=4"]
    assert train([*words, "trainer.val_check_interval=2", f"run_dir={root}/pre"]) == 0
    return root


def on_text(place: Path) -> list[str]:
    return ["data=text", f"data.path={place}/text.txt", f"data.cache_dir={place}/cache", *QUIET]


def tune(place: Path, to: Path, task: str, *more: str) -> list[str]:
    data = ["data=glue", f"data.task={task}", f"data.path={place}/data", "optim.lr=3e-3"]
    return [
        "preset=finetune",
        *data,
        f"data.cache_dir={place}/cache",
        *QUIET,
        f"run_dir={to}",
        *more,
    ]


def from_scratch(place: Path, to: Path, task: str, *more: str) -> list[str]:
    return tune(place, to, task, "tokenizer=word", *SMALL, *more)


def from_hf(place: Path, to: Path, task: str, start: str, *more: str) -> list[str]:
    short = ["trainer.max_epochs=1", "model.max_len=32"]
    return tune(place, to, task, f"init_from={start}", *short, *more)


def test_epochs_best_checkpoint_and_predictions(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert train(from_scratch(place, run, "cola", "trainer.max_epochs=4", "seed=1")) == 0
    facts = record(run)
    assert facts["steps"] == 4 * 10
    assert [step for step, _ in facts["validations"]] == [10, 20, 30, 40]
    assert {"val/mcc", "val/score", "val/accuracy", "val/loss"} <= set(facts["metrics"])
    assert "test/mcc" not in facts["metrics"]  # GLUE's test part has no labels
    lines = (run / "predictions/CoLA.tsv").read_text().splitlines()
    assert lines[0] == "index\tprediction"
    assert [line.split("\t")[0] for line in lines[1:]] == list("0123456")
    assert {line.split("\t")[1] for line in lines[1:]} <= {"0", "1"}

    # The numbers are those of the best epoch by the task's score, not of the last.
    kept = files.read_sidecar((run / "checkpoints/best.ckpt").resolve())
    assert kept.loss is not None
    assert facts["metrics"]["val/score"] == pytest.approx(-kept.loss)
    capsys.readouterr()
    assert evaluate([f"run={run}"]) == 0
    assert json.loads(capsys.readouterr().out)["step"] == kept.step


@pytest.mark.slow
@pytest.mark.parametrize("pool", ["mean", "first", "last"])
def test_a_learnable_task_is_learned(pool: str, place: Path, tmp_path: Path) -> None:
    cola(tmp_path / "more", 640)  # sentences with «cat» are acceptable
    more = [f"data.path={tmp_path}/more", "trainer.max_epochs=3", f"task.pool={pool}"]
    assert train(from_scratch(place, tmp_path / "run", "cola", *more)) == 0
    assert record(tmp_path / "run")["metrics"]["val/mcc"] > 0.9


def test_mnli_has_two_validation_and_two_test_parts(place: Path, tmp_path: Path) -> None:
    assert train(from_scratch(place, tmp_path / "run", "mnli", "trainer.max_epochs=1")) == 0
    found = record(tmp_path / "run")["metrics"]
    both = found["val/accuracy"], found["val/accuracy_mismatched"]
    assert found["val/score"] == pytest.approx(sum(both) / 2)
    for name, count in (("MNLI-m", 5), ("MNLI-mm", 4)):
        lines = (tmp_path / f"run/predictions/{name}.tsv").read_text().splitlines()
        assert len(lines) == 1 + count
        assert lines[1].split("\t")[1] in ("entailment", "neutral", "contradiction")


def test_scores_are_predicted(place: Path, tmp_path: Path) -> None:
    words = from_scratch(place, tmp_path / "run", "stsb", "trainer.max_epochs=1", "mixer=mlstm")
    assert train([*words, "position=none"]) == 0
    found = record(tmp_path / "run")["metrics"]
    assert -1 <= found["val/pearson"] <= 1
    # STS-B has no test part here, so the dev part is the test.
    assert found["test/pearson"] == pytest.approx(found["val/pearson"], abs=1e-6)


def test_init_from_a_run_copies_weights_and_tokenizer(place: Path, tmp_path: Path) -> None:
    assert train(tune(place, tmp_path / "run", "cola", f"init_from={place}/pre", *FROZEN)) == 0
    before = load(place / "pre/checkpoints/best.ckpt")["state_dict"]
    after = load(tmp_path / "run/checkpoints/last.ckpt")["state_dict"]
    body = [name for name in before if name.startswith("model.backbone.")]
    assert len(body) > 10
    assert all(torch.allclose(before[name], after[name], atol=1e-9) for name in body)
    assert record(tmp_path / "run")["tokenizer"] == record(place / "pre")["tokenizer"]


def test_init_from_is_part_of_the_identity(place: Path, tmp_path: Path) -> None:
    def of(*more: str) -> str:
        return identity(plain(compose(tune(place, tmp_path, "cola", *more))))

    (tmp_path / "linked").symlink_to(place / "pre")
    best = of(f"init_from={place}/pre")
    assert best == of(f"init_from={tmp_path}/linked", f"tokenizer.path={place}/pre/tokenizer")
    assert best != of(f"init_from={place}/pre/checkpoints/last.ckpt")
    words = tune(place, tmp_path, "cola", f"init_from={place}/pre")
    taken = plain(compose([*words, "model.dropout=0.3"]))
    assert (taken["model"]["dim"], taken["model"]["dropout"]) == (32, 0.3)
    small = plain(compose([*words, "scale=smoke"]))
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
    counts = class_counts(encode(rows, tokenizer(), 16), 2)
    assert counts.tolist() == [9, 3]
    assert np.allclose(counts.sum() / (2 * counts), [12 / 18, 2.0])


@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=[pytest.mark.slow] * bool(i % 2)) for i, k in enumerate(KINDS)]
)
def test_tuning_a_model_of_hugging_face(kind: str, place: Path, tmp_path: Path) -> None:
    assert train(from_hf(place, tmp_path / "run", "cola", f"{place}/{kind}")) == 0
    facts = record(tmp_path / "run")
    assert (facts["name"], facts["steps"]) == (f"cola-{kind}", 10)
    assert facts["choices"]["tokenizer"] == "own"
    assert {"pretrained", "head"} < set(facts["parameters"])


@pytest.mark.parametrize(
    ("kind", "task"), [pytest.param("bert", "mlm", marks=pytest.mark.slow), ("llama", "causal_lm")]
)
def test_language_modelling_and_then_tuning(
    kind: str, task: str, place: Path, tmp_path: Path
) -> None:
    model = ["model=hf", f"model.name={place}/{kind}", "model.max_len=32", "trainer.max_steps=3"]
    assert train([f"task={task}", *on_text(place), *model, f"run_dir={tmp_path}/run"]) == 0
    assert record(tmp_path / "run")["metrics"]["val/perplexity"] > 1

    # Fine-tuning starts from the weights and the tokenizer of this run.
    words = from_hf(place, tmp_path / "tuned", "cola", f"{tmp_path}/run", *FROZEN)
    assert train(words) == 0
    before = load(tmp_path / "run/checkpoints/last.ckpt")["state_dict"]
    after = load(tmp_path / "tuned/checkpoints/last.ckpt")["state_dict"]
    prefix = {"bert": "model.model.bert.", "llama": "model.model.model."}[kind]
    body = [name.removeprefix(prefix) for name in before if name.startswith(prefix)]
    assert len(body) > 10
    for name in body:
        assert torch.allclose(before[prefix + name], after[f"model.backbone.inner.{name}"])


@pytest.mark.slow
def test_a_second_task_with_an_adapter_starts_from_the_first(
    place: Path, tmp_path: Path, refused: Refused
) -> None:
    assert train(from_hf(place, tmp_path / "mnli", "mnli", f"{place}/bert", "optim.lr=1e-2")) == 0
    lora = ["adapter=lora", "adapter.targets=['*.query']"]
    assert train(from_hf(place, tmp_path / "cola", "cola", f"{tmp_path}/mnli", *lora)) == 0
    first = load(tmp_path / "mnli/checkpoints/best.ckpt")["state_dict"]
    after = load(tmp_path / "cola/checkpoints/last.ckpt")["state_dict"]
    name = "model.backbone.inner.encoder.layer.1.attention.self.query"
    assert torch.equal(first[f"{name}.weight"], after[f"{name}.base.weight"])
    assert after["model.classifier.out.weight"].shape == (2, 32)  # not MNLI's three
    assert "adapter" in record(tmp_path / "cola")["parameters"]
    assert evaluate([f"run={tmp_path}/cola"]) == 0
    words = from_hf(place, tmp_path / "x", "cola", f"{tmp_path}/cola")
    refused(train, words, "was trained with adapter=lora; merge it first", read=True)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("task=mlm model.name={place}/llama model.max_len=32", "this task needs an encoder"),
        ("task=causal_lm model.name={place}/bert model.max_len=32", "this task needs a decoder"),
        ("model.name={place}/bert mixer=mamba", "cannot be used with model=hf"),
        ("model.name={place}/bert model.dtype=bf16", "use an adapter, such as adapter=lora"),
        ("model.name={place}/bert model.dim=3", "model.dim is no key"),
    ],
)
def test_bad_settings_of_a_model_of_hugging_face_give_one_line(
    words: str, says: str, place: Path, tmp_path: Path, refused: Refused
) -> None:
    filled = ["model=hf", *words.format(place=place).split(), *QUIET, f"run_dir={tmp_path}/run"]
    refused(train, filled, says, read=True)
    assert not (tmp_path / "run").exists()
