"""Trained runs, exported by the command, in transformers' pipelines."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import ModelCard
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    pipeline,
)

from chimera.cli.finished import export, generate
from chimera.cli.train import main as train
from chimera.export import load
from chimera.paths import ROOT
from chimera.rundir.directory import RunDir
from chimera.train.restore import restore
from tests.data.glue import cola
from tests.export.folders import QUIET, sentences

SMALL = ["model.dim=32", "model.depth=2", "model.max_len=32"]
SMALL += ["trainer.max_steps=30", "optim.lr=5e-3"]


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of each head, with the default tokenizer, and their exports in `<name>-hf`."""
    root = tmp_path_factory.mktemp("pipelines")
    (root / "text.txt").write_text("\n".join(sentences(600)))
    cola(root / "cola")
    text = ["data=text", f"data.path={root}/text.txt", "tokenizer.vocab_size=330", *SMALL]
    tune = ["preset=finetune", "data=glue", f"data.path={root}/cola", "trainer.max_steps=2"]
    kinds = {
        "masked": [*text, "task=mlm"],
        "causal": [*text, "task=causal_lm", "mixer=retnet", "position=none"],
        "classes": [*tune, f"init_from={root}/masked"],
        "lora": [*tune, f"init_from={root}/masked", "adapter=lora", "optim.lr=0.1"],
    }
    for name, words in kinds.items():
        more = [f"data.cache_dir={root}/cache", f"run_dir={root}/{name}"]
        assert train([*words, *QUIET, *more]) == 0, name
        keep = ["adapter=keep"] if name == "lora" else []
        assert export([f"run={root}/{name}", f"to={root}/{name}-hf", *keep]) == 0, name
    return root


@pytest.mark.slow
def test_fill_mask(exports: Path) -> None:
    pipe = pipeline("fill-mask", str(exports / "masked-hf"), trust_remote_code=True)
    found: Any = pipe(f"the cat {pipe.tokenizer.mask_token} a big red dog", top_k=3)
    model, tokenizer = load(exports / "masked-hf")
    before, after = tokenizer.encode(["the cat", "a big red dog"])
    ids = [tokenizer.cls_id, *before, tokenizer.mask_id, *after, tokenizer.sep_id]
    logits = model(torch.tensor([ids])).logits[0, 1 + len(before)]
    best = logits.softmax(-1).topk(3)
    assert [row["token"] for row in found] == best.indices.tolist()
    assert [row["score"] for row in found] == pytest.approx(best.values.tolist(), rel=1e-4)


def test_text_generation_is_our_greedy_text(exports: Path) -> None:
    pipe = pipeline("text-generation", str(exports / "causal-hf"), trust_remote_code=True)
    for prompt in ("the cat", "a big red", ""):
        written = io.StringIO()
        words = [f"run={exports}/causal", f"prompt={prompt}", "greedy=true", "max_new=12"]
        with contextlib.redirect_stdout(written):
            assert generate(words) == 0
        found: Any = pipe(prompt, max_new_tokens=12, do_sample=False)
        assert found[0]["generated_text"].strip() == written.getvalue().strip()
    assert len(written.getvalue().split()) > 2
    several: Any = pipe(["the cat", "a big red dog sees"], batch_size=2, max_new_tokens=6)
    assert len(several) == 2


def test_feature_extraction(exports: Path) -> None:
    for name in ("masked", "causal", "classes"):
        place = str(exports / f"{name}-hf")
        pipe = pipeline("feature-extraction", place, trust_remote_code=True)
        features: Any = pipe("the cat sees", return_tensors=True)
        ids = pipe.tokenizer("the cat sees", return_tensors="pt").input_ids
        model: Any = load(exports / f"{name}-hf").model
        assert torch.equal(features, model.backbone(ids).y)


def test_a_fine_tuned_run_classifies(exports: Path) -> None:
    place = exports / "classes-hf"
    theirs = AutoModelForSequenceClassification.from_pretrained(place, trust_remote_code=True)
    ours = restore(RunDir(exports / "classes")).task.model.eval()
    tokenizer = AutoTokenizer.from_pretrained(place, trust_remote_code=True)
    batch = tokenizer(["the cat sees", "a dog under one tree and it runs"], padding=True,
                      return_tensors="pt")  # fmt: skip
    with torch.no_grad():
        got = theirs(**batch).logits
        assert torch.equal(got, ours(batch.input_ids, batch.attention_mask.bool()).logits)
    pipe: Any = pipeline("text-classification", str(place), trust_remote_code=True)
    best = [row["label"] for row in pipe(["the cat sees", "a dog under one tree and it runs"])]
    assert best == [theirs.config.id2label[i] for i in got.argmax(-1).tolist()]


def test_what_transformers_saved_comes_back(exports: Path, tmp_path: Path) -> None:
    place = exports / "masked-hf"
    theirs = AutoModelForSequenceClassification.from_pretrained(
        place, num_labels=3, trust_remote_code=True
    )
    theirs.save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(place, trust_remote_code=True).save_pretrained(tmp_path)
    ours, ids = load(tmp_path), torch.arange(5, 25).view(2, 10)
    with torch.no_grad():
        assert torch.equal(ours.model(ids).logits, theirs(ids).logits)
    text = "the cat sees"
    assert ours.tokenizer.encode([text])[0].tolist() == (
        load(place).tokenizer.encode([text])[0].tolist()
    )


def test_peft_adds_an_adapter_that_is_beside_the_weights(exports: Path) -> None:
    from peft import PeftModel

    base = AutoModelForSequenceClassification.from_pretrained(
        exports / "lora-hf", trust_remote_code=True
    )
    ours = load(exports / "lora-hf").model
    ids = torch.arange(5, 25).view(2, 10)
    with torch.no_grad():
        without = base(ids).logits
        theirs = PeftModel.from_pretrained(base, exports / "lora-hf/adapter").eval()
        assert torch.allclose(theirs(ids).logits, ours(ids).logits, atol=1e-6)
        assert not torch.allclose(without, ours(ids).logits, atol=1e-3)


def test_the_card_has_the_numbers_and_the_way_in(exports: Path) -> None:
    for name, task in (("masked", "fill-mask"), ("causal", "text-generation")):
        card = ModelCard.load(exports / f"{name}-hf/README.md")
        record = RunDir(exports / name).record()
        assert card.data.pipeline_tag == task
        assert card.data.library_name == "transformers"
        results = {each.metric_type: each.metric_value for each in card.data.eval_results}
        numbers = {k: v for k, v in record["metrics"].items() if isinstance(v, int | float)}
        assert results == {k: v for k, v in numbers.items() if v == v}
        assert len(results) > 2
        assert "- `tokenizer=sentencepiece`" in card.text
        assert "`launcher=" not in card.text
        code = card.text.split("```python\n")[1].split("```")[0]
        written = io.StringIO()
        with contextlib.redirect_stdout(written):
            exec(code.replace("<this folder>", str(exports / f"{name}-hf")), {})
        assert written.getvalue().strip()


def test_every_line_of_the_page_runs(
    exports: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In order, each block with the names of those before it."""
    (tmp_path / "exported").mkdir()
    names = {"causal": "causal", "masked": "masked", "tuned": "lora"}
    for link, name in names.items():
        (tmp_path / "exported" / link).symlink_to(exports / f"{name}-hf")
    monkeypatch.chdir(tmp_path)
    scope: dict[str, Any] = {}
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/guide/export.md").read_text(), re.S)
    assert len(blocks) == 3
    with contextlib.redirect_stdout(io.StringIO()):
        for block in blocks:
            exec(block, scope)
    assert (tmp_path / "exported/lora/adapter_model.safetensors").is_file()
