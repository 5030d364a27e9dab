"""What people do with a model of the hub, done with an exported folder."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import HfApi
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    Trainer,
    TrainingArguments,
)

from chimera.contract_tests import zoo
from tests.export.folders import folder, sentences

#: A layer in two directions has its tensors under two names; a router's rows follow its members.
CHOICES = {"plain": {}, "shared": {"mixer": "delta"}, "routed": {"mixer": "routed", "ffn": "moe"}}
TERNARY = {"mixer": "retnet", "quant": "bitnet158", "norm": "qdyt"}


def same(a: Any, b: Any) -> bool:
    """Whether two models have the same tensors and the same logits, bit for bit."""
    first, second, ids = a.state_dict(), b.state_dict(), zoo.tokens(2, 9)
    assert first.keys() == second.keys()
    with torch.no_grad():
        equal = torch.equal(a(ids)[0], b(ids)[0])
    return equal and all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("kind", ["plain", "ternary", "packed", "shared", "routed"])
def test_saved_and_loaded_again_it_is_the_same(kind: str, tmp_path: Path) -> None:
    choices = CHOICES.get(kind, TERNARY)
    settings = {"two_way": "shared"} if kind == "shared" else {}
    ours = folder(tmp_path / "out", pack=kind == "packed", settings=settings, **choices)
    model = AutoModelForMaskedLM.from_pretrained(tmp_path / "out", trust_remote_code=True)
    ids = zoo.tokens(2, 9)
    with torch.no_grad():
        if kind == "packed":  # our kernel sums in another order, and activations are rounded
            a, b = (copy.deepcopy(each).double()(ids).logits for each in (model, ours))
            torch.testing.assert_close(a, b, atol=1e-10, rtol=1e-10)
        else:
            assert torch.equal(model(ids).logits, ours(ids).logits)
    model.save_pretrained(tmp_path / "again")
    again = AutoModelForMaskedLM.from_pretrained(tmp_path / "again", trust_remote_code=True)
    assert same(model, again)
    code = {file.name for file in (tmp_path / "out").glob("*.py")}
    assert {file.name for file in (tmp_path / "again").glob("*.py")} == code
    saved = (tmp_path / "again/model.safetensors").stat().st_size
    assert saved == pytest.approx((tmp_path / "out/model.safetensors").stat().st_size, rel=0.02)
    if kind == "packed":
        assert not [p for p in model.backbone.blocks.parameters() if p.ndim == 2]
    else:
        assert all(p.requires_grad for p in again.parameters())


def test_a_base_model_gives_hidden_states(tmp_path: Path) -> None:
    ours = folder(tmp_path / "out", mixer="interleaved", settings={"loops": 2})
    model = AutoModel.from_pretrained(tmp_path / "out", trust_remote_code=True)
    ids = zoo.tokens(2, 9)
    with torch.no_grad():
        out = model(ids, output_hidden_states=True)
        assert torch.equal(out.last_hidden_state, ours.backbone(ids).y)
    assert len(out.hidden_states) == model.config.num_hidden_layers + 1 == 5
    assert torch.equal(out.hidden_states[-1], out.last_hidden_state)
    assert len({float(h.sum()) for h in out.hidden_states}) == 5
    assert not model.blocks[0]._forward_hooks
    with pytest.raises(ValueError, match="takes input_ids"):
        model(inputs_embeds=out.last_hidden_state)


@pytest.mark.parametrize("tied", [True, False])
def test_embeddings_are_got_set_and_resized(tied: bool, tmp_path: Path) -> None:
    folder(tmp_path / "out", settings={"tie_head": tied})
    model = AutoModelForMaskedLM.from_pretrained(tmp_path / "out", trust_remote_code=True)
    table = model.get_input_embeddings()
    assert (model.get_output_embeddings().weight is table.weight) is tied
    assert model.config.tie_word_embeddings is tied
    size = len(table.weight)
    ids = zoo.tokens(1, 5)
    with torch.no_grad():
        before = model(ids).logits
        model.resize_token_embeddings(size + 3)
        assert model(ids).logits.shape[-1] == model.config.vocab_size == size + 3
        assert torch.equal(model(ids).logits[..., :size], before)
    model.save_pretrained(tmp_path / "wider")
    wider = AutoModelForMaskedLM.from_pretrained(tmp_path / "wider", trust_remote_code=True)
    assert same(model, wider)
    model.set_input_embeddings(torch.nn.Embedding(size + 3, 32))
    with torch.no_grad():
        model.get_input_embeddings().weight.copy_(torch.randn(32))
        logits = model(ids).logits
    # One row for all tokens makes all positions equal; as the tied head it makes all logits equal.
    assert torch.allclose(logits, logits[:, :1].expand_as(logits), atol=1e-5)
    assert torch.allclose(logits, logits[..., :1].expand_as(logits), atol=1e-5) is tied


def test_a_new_head_is_initialised_and_the_body_is_the_files(tmp_path: Path) -> None:
    ours = folder(tmp_path / "out", **TERNARY)
    model = AutoModelForSequenceClassification.from_pretrained(
        tmp_path / "out", num_labels=3, trust_remote_code=True
    )
    assert torch.equal(model.backbone.embedding.weight, ours.backbone.embedding.weight)
    weight = model.classifier.out.weight
    assert weight.shape == (3, 32)
    assert 0.01 < float(weight.std()) < 0.03
    out = model(zoo.tokens(2, 9), labels=torch.tensor([0, 2]))
    out.loss.backward()
    assert out.logits.shape == (2, 3)
    assert all(p.grad is not None for p in model.parameters())


def test_half_precision_and_tables_that_no_file_holds(tmp_path: Path) -> None:
    for choices in ({"mixer": "sliding_window", "position": "alibi"}, {"position": "sinusoidal"}):
        ours = folder(tmp_path / "out", causal=True, **choices)
        load = AutoModelForCausalLM.from_pretrained
        model = load(tmp_path / "out", trust_remote_code=True)
        half = load(tmp_path / "out", trust_remote_code=True, dtype=torch.bfloat16)
        with torch.no_grad():
            want = ours(zoo.tokens(2, 9)).logits
            assert torch.equal(model(zoo.tokens(2, 9)).logits, want)
            got = half(zoo.tokens(2, 9)).logits
        assert got.dtype == torch.bfloat16
        torch.testing.assert_close(got.float(), want, atol=0.3, rtol=0.1)


def data(to: Path, *, masked: bool) -> tuple[Any, Any, Any]:
    """Tokenizer, encoded sentences and what makes batches of them."""
    tokenizer = AutoTokenizer.from_pretrained(to, trust_remote_code=True)
    rows = [{"input_ids": ids} for ids in tokenizer(sentences())["input_ids"]]
    return tokenizer, rows, DataCollatorForLanguageModeling(tokenizer, mlm=masked)


def trained(model: Any, to: Path, *, masked: bool, rate: float = 5e-3) -> list[float]:
    """Losses of twenty steps of transformers' Trainer."""
    tokenizer, rows, collator = data(to, masked=masked)
    how = TrainingArguments(
        output_dir=str(to / "trainer"), max_steps=20, per_device_train_batch_size=16,
        learning_rate=rate, logging_steps=1, report_to=[], use_cpu=True, save_steps=20,
        disable_tqdm=True, seed=0,
    )  # fmt: skip
    trainer = Trainer(
        model, how, train_dataset=rows, data_collator=collator, processing_class=tokenizer
    )
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


@pytest.mark.parametrize("causal", [True, False])
def test_trainer_trains(causal: bool, tmp_path: Path) -> None:
    folder(tmp_path / "out", causal=causal, mixer="routed", ffn="moe")
    kind = AutoModelForCausalLM if causal else AutoModelForMaskedLM
    model = kind.from_pretrained(tmp_path / "out", trust_remote_code=True)
    losses = trained(model, tmp_path / "out", masked=not causal)
    assert len(losses) == 20
    assert sum(losses[-4:]) < 0.8 * sum(losses[:4])
    checkpoint = tmp_path / "out/trainer/checkpoint-20"
    assert same(model.eval(), kind.from_pretrained(checkpoint, trust_remote_code=True))


def test_auxiliary_losses_are_in_the_loss(tmp_path: Path) -> None:
    folder(tmp_path / "out", causal=True, ffn="moe")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out", trust_remote_code=True)
    model.train()
    ids = zoo.tokens(2, 9)
    losses = []
    for factor in (0.0, 1.0):
        model.config.auxiliary = {"balance": factor}
        losses.append(float(model(ids, labels=ids).loss))
    balance = float(model.backbone(ids).auxiliary["balance"])
    assert losses[1] - losses[0] == pytest.approx(balance, rel=1e-3)


def test_peft_trains_low_ranks_on_top(tmp_path: Path) -> None:
    from peft import LoraConfig, PeftModel, get_peft_model

    # A norm with statistics of the training would keep them; an adapter's file has none.
    folder(tmp_path / "out", causal=True, mixer="retnet", quant="bitnet158")

    def load() -> Any:
        return AutoModelForCausalLM.from_pretrained(tmp_path / "out", trust_remote_code=True)

    config = LoraConfig(target_modules="all-linear", r=4, init_lora_weights=False)
    model = get_peft_model(load(), config)
    losses = trained(model, tmp_path / "out", masked=False, rate=2e-2)
    assert sum(losses[-4:]) < sum(losses[:4])
    model.eval().save_pretrained(tmp_path / "lora")
    again = PeftModel.from_pretrained(load(), tmp_path / "lora").eval()
    plain, ids = load(), zoo.tokens(2, 9)
    with torch.no_grad():
        assert torch.equal(again(ids).logits, model(ids).logits)
        assert not torch.equal(again(ids).logits, plain(ids).logits)
    prompt = zoo.tokens(1, 4)
    new = again.generate(input_ids=prompt, max_new_tokens=3, min_new_tokens=3, do_sample=False)
    assert new.shape[1] == 7


def test_a_checkpointed_pass_has_the_same_gradients(tmp_path: Path) -> None:
    folder(tmp_path / "out", causal=True, mixer="interleaved")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out", trust_remote_code=True)
    ids = zoo.tokens(2, 9)
    gradients = []
    for _ in range(2):
        model.zero_grad()
        model.train()(ids, labels=ids).loss.backward()
        gradients.append([p.grad.clone() for p in model.parameters()])
        model.activation_checkpointing_enable()
    assert model.backbone.gradient_checkpointing
    assert all(torch.allclose(a, b) for a, b in zip(*gradients, strict=True))


ALONE = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("chimera", "hydra", "lightning", "jaxtyping", "pydantic"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
folder = sys.argv[1]
model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
ids = tokenizer("the cat", return_tensors="pt").input_ids
print(ids[0].tolist(), model.generate(ids, max_new_tokens=5, do_sample=False)[0].tolist())
model.save_pretrained(sys.argv[2])
assert not [name for name in sys.modules if name.partition(".")[0] == "chimera"]
"""


def pushed(part: Any, monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """What `push_to_hub` of a model or a tokenizer would send, by name in the repository."""
    sent: dict[str, bytes] = {}

    def create(self: HfApi, repo_id: str, **_: Any) -> Any:
        return type("Url", (), {"repo_id": repo_id})()

    def commit(self: HfApi, repo_id: str, operations: Any, **_: Any) -> Any:
        for operation in operations:
            with operation.as_file() as file:
                sent[operation.path_in_repo] = file.read()
        return type("Commit", (), {"commit_url": "", "oid": "0"})()

    monkeypatch.setattr(HfApi, "create_repo", create)
    monkeypatch.setattr(HfApi, "create_commit", commit)
    monkeypatch.setattr(HfApi, "create_branch", lambda *a, **k: None)
    part.push_to_hub("someone/model")
    return sent


@pytest.mark.parametrize("way", ["exported", pytest.param("pushed", marks=pytest.mark.slow)])
def test_the_folder_needs_nothing_of_this_package(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither here nor for a stranger who downloads what `push_to_hub` sent."""
    place, start = tmp_path / "out", tmp_path / way
    folder(place, causal=True, **TERNARY)
    model = AutoModelForCausalLM.from_pretrained(place, trust_remote_code=True)
    tokenizer = AutoTokenizer.from_pretrained(place, trust_remote_code=True)
    files = pushed(model, monkeypatch)
    wanted = {file.name for file in place.glob("*.py")}
    assert wanted | {"config.json", "generation_config.json", "model.safetensors"} <= set(files)
    start.mkdir()
    if way == "pushed":
        files |= pushed(tokenizer, monkeypatch)
    else:
        files = {file.name: file.read_bytes() for file in place.iterdir()}
    for name, contents in files.items():
        assert "/" not in name  # transformers' loader resolves no folders
        (start / name).write_bytes(contents)
    words = [sys.executable, "-P", "-c", ALONE, str(start), str(tmp_path / "again")]
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "again", trust_remote_code=True)
    ids = tokenizer("the cat", return_tensors="pt").input_ids
    made = again.generate(ids, max_new_tokens=5, do_sample=False)[0].tolist()
    assert done.stdout.split("\n")[-2] == f"{ids[0].tolist()} {made}"
