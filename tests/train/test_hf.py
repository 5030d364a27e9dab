"""Hugging Face models on the command line: tasks, adapters, one task after another."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from chimera.cli.eval import main as evaluate
from chimera.cli.train import main as train
from chimera.rundir.checkpoint_io import load
from tests.data.glue import cola, mnli
from tests.model.hf_folders import KINDS, folder

QUIET = ["logger=none", "trainer.progress=none", "trainer.accelerator=cpu", "data.batch_size=8"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("hf")
    cola(mnli(root / "data"))
    for kind in KINDS:
        folder(kind, root / kind)
    (root / "text.txt").write_text("\n".join(["the cat sees a big red dog under one tree"] * 300))
    return root


def tune(place: Path, to: Path, task: str, *more: str) -> list[str]:
    data = ["data=glue", f"data.task={task}", f"data.path={place}/data", "trainer.max_epochs=1"]
    data += [f"data.cache_dir={place}/cache", "model.max_len=32"]
    return ["preset=finetune", *data, *QUIET, f"run_dir={to}", *more]


@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=[pytest.mark.slow] * bool(i % 2)) for i, k in enumerate(KINDS)]
)
def test_fine_tuning(kind: str, place: Path, tmp_path: Path) -> None:
    words = tune(place, tmp_path / "run", "cola", f"init_from={place}/{kind}")
    assert train(words) == 0
    record = json.loads((tmp_path / "run/run.json").read_text())
    assert record["name"] == f"cola-{kind}"
    assert record["steps"] == 10
    assert record["choices"]["tokenizer"] == "own"
    assert {"pretrained", "head"} < set(record["parameters"])


@pytest.mark.parametrize(
    ("kind", "task"), [pytest.param("bert", "mlm", marks=pytest.mark.slow), ("llama", "causal_lm")]
)
def test_language_modelling(kind: str, task: str, place: Path, tmp_path: Path) -> None:
    data = ["data=text", f"data.path={place}/text.txt", f"data.cache_dir={place}/cache"]
    model = ["model=hf", f"model.name={place}/{kind}", "model.max_len=32"]
    more = ["trainer.max_steps=3", f"run_dir={tmp_path}/run", *QUIET]
    assert train([f"task={task}", *data, *model, *more]) == 0
    found = json.loads((tmp_path / "run/run.json").read_text())["metrics"]
    assert found["val/perplexity"] > 1

    # Fine-tuning starts from the weights and the tokenizer of this run.
    frozen = ["optim.lr=1e-12", "optim.eps=1"]
    words = tune(place, tmp_path / "tuned", "cola", f"init_from={tmp_path}/run", *frozen)
    assert train([*words, "trainer.max_steps=1"]) == 0
    before = load(tmp_path / "run/checkpoints/last.ckpt")["state_dict"]
    after = load(tmp_path / "tuned/checkpoints/last.ckpt")["state_dict"]
    prefix = {"bert": "model.model.bert.", "llama": "model.model.model."}[kind]
    body = [name.removeprefix(prefix) for name in before if name.startswith(prefix)]
    assert len(body) > 10
    for name in body:
        assert torch.allclose(before[prefix + name], after[f"model.backbone.inner.{name}"])


@pytest.mark.slow
def test_a_second_task_with_an_adapter_starts_from_the_first(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = tune(place, tmp_path / "mnli", "mnli", f"init_from={place}/bert", "optim.lr=1e-2")
    assert train(first) == 0
    start = [f"init_from={tmp_path}/mnli", "adapter=lora", "adapter.targets=['*.query']"]
    assert train(tune(place, tmp_path / "cola", "cola", *start)) == 0
    mnli_ = load(tmp_path / "mnli/checkpoints/best.ckpt")["state_dict"]
    after = load(tmp_path / "cola/checkpoints/last.ckpt")["state_dict"]
    name = "model.backbone.inner.encoder.layer.1.attention.self.query"
    assert torch.equal(mnli_[f"{name}.weight"], after[f"{name}.base.weight"])
    assert after["model.classifier.out.weight"].shape == (2, 32)  # not MNLI's three
    record = json.loads((tmp_path / "cola/run.json").read_text())
    assert "adapter" in record["parameters"]
    capsys.readouterr()
    assert evaluate([f"run={tmp_path}/cola"]) == 0
    assert train(tune(place, tmp_path / "x", "cola", f"init_from={tmp_path}/cola")) == 2
    assert "was trained with adapter=lora; merge it first" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["task=mlm", "model=hf", "model.name={place}/llama"], "this task needs an encoder"),
        (["task=causal_lm", "model=hf", "model.name={place}/bert"], "this task needs a decoder"),
        (["model=hf", "model.name={place}/bert", "mixer=mamba"], "cannot be used with model=hf"),
        (
            ["model=hf", "model.name={place}/nothing"],
            "does not exist; name a folder, or owner/name",
        ),
        (["model=hf", "model.name={place}/bert", "model.dim=3"], "model.dim is no key"),
    ],
)
def test_bad_settings_give_one_line(
    words: list[str], says: str, place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    filled = [word.format(place=place) for word in words]
    assert train([*filled, *QUIET, "model.max_len=32", f"run_dir={tmp_path}/run"]) == 2
    assert says in capsys.readouterr().err.splitlines()[-1]
