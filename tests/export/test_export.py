"""An exported folder gives the logits of the run it came from, by either way of loading it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
)

from chimera.adapter.shared.low_rank import adapted
from chimera.cli.finished import export
from chimera.cli.train import main as train
from chimera.export import load
from chimera.generate import text as generating
from chimera.generate.settings import Generation
from chimera.generate.text import decode
from chimera.model.decode import pad_left
from chimera.quant.shared.packing import packed as pack_model
from chimera.rundir.directory import RunDir
from chimera.train.restore import restore
from tests.data.glue import cola
from tests.export.folders import QUIET
from tests.model.hf_folders import folder

HEADS: dict[str, Any] = {
    "ChimeraForMaskedLM": AutoModelForMaskedLM,
    "ChimeraForSequenceClassification": AutoModelForSequenceClassification,
    "ChimeraBodyForMaskedLM": AutoModelForMaskedLM,
    "ChimeraBodyForCausalLM": AutoModelForCausalLM,
    "ChimeraBodyForSequenceClassification": AutoModelForSequenceClassification,
}
SMALL = ["model.dim=32", "model.depth=2", "model.max_len=32"]
TUNE = ["preset=finetune", "data=glue", "trainer.max_steps=2", "trainer.val_check_interval=1"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of every kind that is exported: a language model, classifiers, adapters, a body."""
    root = tmp_path_factory.mktemp("export")
    cola(root / "data")
    folder("bert", root / "bert")
    folder("llama", root / "llama")
    (root / "text.txt").write_text("\n".join(["the cat sees a big red dog under one tree"] * 300))
    text = ["data=text", f"data.path={root}/text.txt", "tokenizer=word", "trainer.max_steps=2"]
    body = ["model=hf", "tokenizer=own", "model.max_len=32"]
    tune = [*TUNE, f"data.path={root}/data", "optim.lr=0.1"]
    ternary = ["mixer=retnet", "quant=bitnet158", "norm=qdyt", "position=none"]
    mamba = ["mixer=mamba", "position=none", "task.causal=true"]
    # Every weight of an adapter is away from its start after a step of 0.1.
    kinds: dict[str, list[str]] = {
        "lm": [*text, *SMALL, *ternary],
        "rope": [*text, *SMALL, "position=rope", "mixer=interleaved"],
        "classes": [*tune, *SMALL, "tokenizer=word", *mamba],
        "body": [*tune, f"init_from={root}/bert", "model.max_len=32"],
        "body_masked": [*text, *body, f"model.name={root}/bert", "task=mlm"],
        "body_causal": [*text, *body, f"model.name={root}/llama", "task=causal_lm"],
        "grafted": [*text, *body, f"model.name={root}/llama", "task=causal_lm", "adapter=liza"],
        "body_lora": [*tune, f"init_from={root}/bert", "model.max_len=32", "adapter=lora"],
        "ternary_lora": [*tune, f"init_from={root}/lm", "adapter=lora"],
    }
    for name, words in kinds.items():
        more = [f"data.cache_dir={root}/cache", f"run_dir={root}/{name}"]
        assert train([*words, *QUIET, *more]) == 0, name
    return root


def answer(model: Any, vocab_size: int) -> torch.Tensor:
    torch.manual_seed(1)
    ids = torch.randint(4, vocab_size, (3, 9))
    mask = torch.arange(9) < torch.tensor([9, 6, 4])[:, None]
    with torch.no_grad():
        logits = model(ids, mask).logits
    return logits if logits.ndim == 2 else logits[mask]


def of_run(path: Path) -> torch.Tensor:
    run = restore(RunDir(path))
    return answer(run.task.model.eval(), run.tokenizer.vocab_size)


@pytest.mark.parametrize("name", ["lm", "rope", "classes", "body", "body_masked", "body_causal"])
def test_the_logits_are_the_runs(name: str, runs: Path, tmp_path: Path) -> None:
    assert export([f"run={runs}/{name}", f"to={tmp_path}/out"]) == 0
    found = load(tmp_path / "out")
    wanted = of_run(runs / name)
    assert torch.equal(answer(found.model, found.tokenizer.vocab_size), wanted)
    about = json.loads((tmp_path / "out/config.json").read_text())
    theirs = HEADS[about["architectures"][0]].from_pretrained(
        tmp_path / "out", trust_remote_code=True
    )
    assert torch.equal(answer(theirs, found.tokenizer.vocab_size), wanted)
    assert about.get("label2id") == (None if wanted.shape[-1] > 2 else {"0": 0, "1": 1})
    card = (tmp_path / "out/README.md").read_text()
    record = json.loads((runs / name / "run.json").read_text())
    assert record["identity"] in card
    assert all(f"| {metric} |" in card for metric in record["metrics"])


@pytest.mark.filterwarnings("ignore:.*embeddings are no longer tied")
def test_a_trained_table_leaves_the_tied_head_as_peft_leaves_it(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only the embedding is trained; merged and saved, the head keeps the matrix that it had."""
    from peft import LoraConfig, get_peft_model

    assert export([f"run={runs}/rope", f"to={tmp_path}/out"]) == 0
    model = AutoModelForMaskedLM.from_pretrained(tmp_path / "out", trust_remote_code=True)
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    how = LoraConfig(target_modules="all-linear", r=2, modules_to_save=["embedding"])
    tuned = get_peft_model(model, how)
    ids = torch.arange(4, 12)[None]
    tuned(ids, labels=ids).loss.backward()
    torch.optim.SGD([p for p in tuned.parameters() if p.requires_grad], 5.0).step()
    wanted = tuned.eval()(ids).logits
    merged = tuned.merge_and_unload()
    torch.testing.assert_close(merged(ids).logits, wanted, atol=1e-5, rtol=1e-5)
    merged.save_pretrained(tmp_path / "saved")
    AutoTokenizer.from_pretrained(tmp_path / "out").save_pretrained(tmp_path / "saved")
    again = AutoModelForMaskedLM.from_pretrained(tmp_path / "saved", trust_remote_code=True)
    for found in (again, load(tmp_path / "saved").model):
        assert torch.equal(found(ids).logits, merged(ids).logits)
    text = ["data=text", f"data.path={runs}/text.txt", f"run_dir={tmp_path}/x", *QUIET]
    capsys.readouterr()
    text += [f"data.cache_dir={runs}/cache", f"tokenizer.path={tmp_path}/saved"]
    assert train([f"init_from={tmp_path}/saved", *text]) == 2
    assert "add model.tie_head=false" in capsys.readouterr().err


@pytest.mark.parametrize(("how", "tolerance"), [("merge", 1e-5), ("keep", 0.0)])
def test_a_graft_stays_in_the_model(how: str, tolerance: float, runs: Path, tmp_path: Path) -> None:
    assert export([f"run={runs}/grafted", f"to={tmp_path}/out", f"adapter={how}"]) == 0
    found = load(tmp_path / "out")
    wanted = of_run(runs / "grafted")
    got = answer(found.model, found.tokenizer.vocab_size)
    torch.testing.assert_close(got, wanted, atol=tolerance, rtol=tolerance)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "out", trust_remote_code=True)
    if how == "keep":
        theirs = PeftModel.from_pretrained(theirs, tmp_path / "out/adapter").eval()
    got = answer(theirs, found.tokenizer.vocab_size)
    torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-5)


def test_peft_adds_a_runs_adapter_to_its_base(runs: Path) -> None:
    base = AutoModelForCausalLM.from_pretrained(runs / "llama")
    tuned = PeftModel.from_pretrained(base, runs / "grafted/adapter")
    assert tuned.peft_config["default"].base_model_name_or_path == str(runs / "llama")
    file = load_file(runs / "grafted/adapter/adapter_model.safetensors")
    theirs = {n.replace(".default", ""): t for n, t in tuned.state_dict().items() if "lora_" in n}
    assert theirs.keys() == file.keys()
    assert all(torch.equal(theirs[name], tensor) for name, tensor in file.items())


#: Says what a graft's folder computes in a process that has no way to this package.
BARE = """
import json, sys
sys.path.append(sys.argv[1])  # libraries, without the path files of `site`
try:
    import chimera
except ModuleNotFoundError:
    pass
else:
    raise SystemExit("the package is here")
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, pipeline

def load(folder):
    model, told = AutoModelForCausalLM.from_pretrained(
        folder, trust_remote_code=True, output_loading_info=True
    )
    assert not any(told.values()), told
    return model

folder, again = sys.argv[2:4]
model, tokenizer = load(folder), AutoTokenizer.from_pretrained(folder)
ids = tokenizer(["the cat sees", "a big red dog under"], padding=True, return_tensors="pt")
said = {"max_new_tokens": 12, "do_sample": False}
made = model.generate(**ids, **said)
assert torch.equal(made, model.generate(**ids, use_cache=False, **said))
loss = model(**ids, labels=ids.input_ids).loss
loss.backward()
model.save_pretrained(again)
tokenizer.save_pretrained(again)
assert torch.equal(load(again)(**ids).logits, model(**ids).logits)
text = pipeline("text-generation", again, trust_remote_code=True)("the cat sees", **said)
new = made[:, ids.input_ids.shape[1] :].tolist()
print(json.dumps({"new": new, "loss": float(loss), "text": text[0]["generated_text"]}))
"""


@pytest.mark.slow
def test_a_graft_leaves_the_house(runs: Path, tmp_path: Path) -> None:
    """In a process without this package: generate, loss, saved again, pipeline."""
    assert export([f"run={runs}/grafted", f"to={tmp_path}/out"]) == 0
    libraries = str(Path(torch.__file__).parents[1])
    words = [sys.executable, "-S", "-P", "-c", BARE, libraries, "out", "again"]
    env = {"PATH": os.environ["PATH"], "HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, env=env, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    run = restore(RunDir(runs / "grafted"))
    model, own = run.task.model.eval(), run.tokenizer
    opening = own.opening(packed=run.task.plain_text)
    texts = own.encode(["the cat sees", "a big red dog under"])
    prompts = [[*opening, *map(int, ids)] for ids in texts]
    settings = Generation(run="x", greedy=True, max_new=12)
    for prompt, new in zip(prompts, found["new"], strict=True):
        steps = decode(model, [prompt], settings, pad_id=own.pad_id, end_id=own.sep_id)
        want = [int(step[0]) for step in steps]
        assert new[: len(want)] == want
    said: list[str] = []
    generating.write(
        replace(settings, run=str(runs / "grafted"), prompt="the cat sees"), said.append
    )
    # This tokenizer has no decoder: the pipeline puts no space between prompt and continuation.
    assert found["text"].replace(" ", "") == "".join("".join(said).split())
    card = (tmp_path / "out/README.md").read_text()
    assert f"The base is `{runs}/llama`, trained on with data `text`. LiZAttention" in card


@pytest.mark.parametrize("name", ["body_causal", "grafted"])
def test_a_text_begins_here_as_there(
    name: str, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pretrained decoder's text begins by its template."""
    assert export([f"run={runs}/{name}", f"to={tmp_path}/out"]) == 0
    theirs = AutoTokenizer.from_pretrained(tmp_path / "out")
    asked: list[list[int]] = []

    def told(model: Any, prompts: list[list[int]], *_: Any, **how: Any) -> Any:
        asked.extend(prompts)
        return iter(())

    monkeypatch.setattr(generating, "decode", told)
    shown: list[str] = []
    generating.write(Generation(run=str(runs / name), prompt="the cat"), shown.append)
    assert asked == [theirs("the cat")["input_ids"]]
    assert asked[0][0] == theirs.bos_token_id == load(tmp_path / "out").tokenizer.template.start[0]


@pytest.mark.parametrize("name", ["body", "body_masked", "body_causal"])
def test_a_body_is_saved_again_and_trained(name: str, runs: Path, tmp_path: Path) -> None:
    assert export([f"run={runs}/{name}", f"to={tmp_path}/out"]) == 0
    kind = json.loads((tmp_path / "out/config.json").read_text())["architectures"][0]
    assert "from chimera" not in (tmp_path / "out/modeling_chimera.py").read_text()
    model = HEADS[kind].from_pretrained(tmp_path / "out", trust_remote_code=True)
    wanted = of_run(runs / name)
    model.save_pretrained(tmp_path / "again")
    again = HEADS[kind].from_pretrained(tmp_path / "again", trust_remote_code=True)
    assert torch.equal(answer(again, load(tmp_path / "out").tokenizer.vocab_size), wanted)
    ids = torch.arange(4, 14).view(2, 5)
    labels = torch.tensor([0, 1]) if name == "body" else ids
    again.train()(ids, labels=labels).loss.backward()
    assert all(p.grad is not None for p in again.parameters())
    base = AutoModel.from_pretrained(tmp_path / "out", trust_remote_code=True)
    assert base(ids).last_hidden_state.shape == (2, 5, 32)
    if name == "body_causal":
        ours = restore(RunDir(runs / name)).task.model.eval()
        settings = Generation(run="x", greedy=True, max_new=5)
        prompts = [[4, 5, 6, 7], [8, 9]]
        want = torch.stack(list(decode(ours, prompts, settings, pad_id=0, end_id=None)), 1)
        padded, mask = pad_left(prompts, 0)
        model.generation_config.eos_token_id = None
        new = model.generate(padded, attention_mask=mask.long(), max_new_tokens=5, do_sample=False)
        assert torch.equal(new[:, 4:], want)


def test_an_export_replaces_only_one_that_is_as_it_was(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What transformers trained and saved into the folder is the user's."""

    def files() -> dict[Path, bytes]:
        return {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}

    words = [f"run={runs}/rope", f"to={tmp_path}/out"]
    assert export(words) == 0
    before = files()
    assert export([*words, "packed=true"]) == 2
    assert "has no ternary or 8-bit weights" in capsys.readouterr().err
    assert files() == before
    assert export(words) == 0
    assert files() == before
    model = AutoModelForMaskedLM.from_pretrained(tmp_path / "out", trust_remote_code=True)
    model(torch.arange(4, 8)[None], labels=torch.arange(4, 8)[None]).loss.backward()
    torch.optim.SGD(model.parameters(), 0.1).step()
    model.save_pretrained(tmp_path / "out")
    (tmp_path / "link").symlink_to(tmp_path / "out")
    saved = files()
    for name in ("out", "link"):
        assert export([f"run={runs}/rope", f"to={tmp_path}/{name}"]) == 2
        assert capsys.readouterr().err.count("\n") == 1
    assert files() == saved


def is_packed(folder: Path, run: Path) -> None:
    """Check that an exported folder holds the run's packed model, with the run's logits.

    Logits are compared in float64. In float32 the packed layers differ from the run's in the last
    bit, and a last bit before an 8-bit rounding moves an activation by a whole grid step.
    """
    found, source = load(folder), restore(RunDir(run)).task.model.eval()
    wanted, got = pack_model(source).state_dict(), found.model.state_dict()
    assert got.keys() == wanted.keys()
    assert all(torch.equal(got[name], wanted[name]) for name in wanted)
    exact, size = source.double(), found.tokenizer.vocab_size
    torch.testing.assert_close(
        answer(pack_model(exact), size), answer(exact, size), atol=1e-10, rtol=1e-10
    )


def test_ternary_weights_are_packed_to_the_same_logits(runs: Path, tmp_path: Path) -> None:
    for pack in ("false", "true"):
        assert export([f"run={runs}/lm", f"to={tmp_path}/{pack}", f"packed={pack}"]) == 0
    plain, packed = (tmp_path / p / "model.safetensors" for p in ("false", "true"))
    is_packed(tmp_path / "true", runs / "lm")
    # 1.6 bits in place of 32, of the part that is ternary.
    ternary = sum(t.numel() for n, t in load_file(plain).items() if ".mixer." in n and t.ndim == 2)
    saved = plain.stat().st_size - packed.stat().st_size
    assert saved > 0.9 * ternary * (4 - 0.2)


def test_an_adapter_is_merged_kept_or_alone(runs: Path, tmp_path: Path) -> None:
    wanted = of_run(runs / "body_lora")
    for how in ("merge", "keep", "alone"):
        assert export([f"run={runs}/body_lora", f"to={tmp_path}/{how}", f"adapter={how}"]) == 0
    merged, kept = load(tmp_path / "merge"), load(tmp_path / "keep")
    size = merged.tokenizer.vocab_size
    assert not adapted(merged.model)
    assert adapted(kept.model)
    torch.testing.assert_close(answer(merged.model, size), wanted, atol=1e-5, rtol=1e-5)
    assert torch.equal(answer(kept.model, size), wanted)
    assert not (tmp_path / "merge/adapter").exists()
    assert not (tmp_path / "alone/model.safetensors").exists()
    assert (tmp_path / "alone/adapter/adapter_model.safetensors").exists()


def test_what_cannot_be_merged_stays_beside(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert export([f"run={runs}/ternary_lora", f"to={tmp_path}/out", "packed=true"]) == 0
    assert "kept separate" in capsys.readouterr().out
    assert adapted(load(tmp_path / "out").model)
    is_packed(tmp_path / "out", runs / "ternary_lora")


@pytest.mark.slow
def test_training_starts_from_an_exported_folder(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tune = [*TUNE, f"data.path={runs}/data", f"data.cache_dir={runs}/cache", *QUIET]
    for name in ("lm", "body_lora"):
        assert export([f"run={runs}/{name}", f"to={tmp_path}/{name}"]) == 0
        start = [f"init_from={tmp_path}/{name}", f"run_dir={tmp_path}/run_{name}"]
        assert train([*tune, *start]) == 0
    record = json.loads((tmp_path / "run_body_lora/run.json").read_text())
    assert record["choices"]["model"] == "hf"
    assert export([f"run={runs}/grafted", f"to={tmp_path}/grafted"]) == 0
    text = [f"data.path={runs}/text.txt", f"data.cache_dir={runs}/cache", *QUIET]
    text += ["task=causal_lm", "data=text", "trainer.max_steps=1", "optim.lr=1e-12"]
    assert train([*text, f"init_from={tmp_path}/grafted", f"run_dir={tmp_path}/run"]) == 0
    weights = restore(RunDir(tmp_path / "run")).task.model.model.state_dict()
    file = load_file(tmp_path / "grafted/model.safetensors")
    assert all(torch.allclose(weights[name], file[name]) for name in weights)
    export([f"run={runs}/lm", f"to={tmp_path}/packed", "packed=true"])
    capsys.readouterr()
    assert train([*tune, f"init_from={tmp_path}/packed", f"run_dir={tmp_path}/x"]) == 2
    assert "is packed, so its weights cannot be trained" in capsys.readouterr().err


def test_their_tokenizer_gives_our_ids(runs: Path, tmp_path: Path) -> None:
    assert export([f"run={runs}/classes", f"to={tmp_path}/out"]) == 0
    ours = load(tmp_path / "out").tokenizer
    theirs = AutoTokenizer.from_pretrained(tmp_path / "out", trust_remote_code=True)
    text = "the cat sees one house"
    ids = theirs(text, text)["input_ids"]
    middle = ours.encode([text])[0].tolist()
    assert ids == [ours.cls_id, *middle, ours.sep_id, *middle, ours.sep_id]
    assert theirs.pad_token_id == ours.pad_id


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["run={runs}/lm"], "to= is missing; write python export.py run="),
        (["run={runs}/lm", "to={to}", "packed=maybe"], "it takes true or false"),
        (["run={runs}/data", "to={to}"], "holds no config.yaml"),
        (["run={runs}/lm", "to={runs}"], "contains bert, which no export wrote"),
        (["run={runs}/rope", "to={to}", "packed=true"], "has no ternary or 8-bit weights"),
        (["run={runs}/lm", "to={to}", "adapter=alone"], "this run has no adapter"),
    ],
)
def test_what_cannot_be(
    words: list[str], says: str, runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert export([word.format(runs=runs, to=tmp_path / "out") for word in words]) == 2
    assert says in capsys.readouterr().err
    assert not (tmp_path / "out/config.json").exists()
