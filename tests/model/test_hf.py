"""Hugging Face models through Chimera's interfaces: equal outputs, padding, decoding."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForMaskedLM, AutoTokenizer

from chimera.data.corpus.labelled import Example
from chimera.data.encode.examples import encode
from chimera.data.tokenizer.base import load
from chimera.data.tokenizer.own import Own
from chimera.errors import UserError
from chimera.model.assemble import build_model
from chimera.model.classifier import Classifier, pooled
from chimera.model.hf import HuggingFaceModel
from chimera.model.hf_settings import HuggingFace
from tests.kit import close, ragged
from tests.model.hf_folders import ENCODERS, KINDS, folder


class Choices:
    names = {"mixer": "attention", "norm": "layernorm", "quant": "none", "ffn": "mlp"}  # noqa: RUF012

    @staticmethod
    def adapter(model: nn.Module) -> nn.Module:
        return model


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("hf")
    return {kind: folder(kind, root / kind) for kind in KINDS}


def made(place: Path, *, causal: bool | None = None, vocab_size: int = 1) -> HuggingFaceModel:
    settings = HuggingFace(name=str(place), max_len=32)
    settings.check()
    return build_model(settings, Choices, vocab_size=vocab_size, causal=causal).double().eval()


@pytest.mark.parametrize("kind", [*KINDS])
def test_logits_and_hidden_states_equal_transformers(kind: str, folders: dict[str, Path]) -> None:
    head = AutoModelForMaskedLM if kind in ENCODERS else AutoModelForCausalLM
    theirs = head.from_pretrained(folders[kind]).double().eval()
    body = AutoModel.from_pretrained(folders[kind]).double().eval()
    ours = made(folders[kind])
    ids = torch.randint(6, 18, (3, 11))
    mask = ragged((11, 7, 4), left=False)
    ids = ids.masked_fill(~mask, 0)
    wanted = theirs(input_ids=ids, attention_mask=mask.long()).logits
    found = ours(ids, mask).logits
    close(found[mask], wanted[mask], 1e-12)
    index = torch.tensor([2, 0, 13])
    close(ours(ids, mask, index=index).logits, wanted.flatten(0, 1)[index], 1e-12)
    hidden = body(input_ids=ids, attention_mask=mask.long()).last_hidden_state
    close(ours.backbone(ids, mask).y[mask], hidden[mask], 1e-12)
    assert ours.causal == (kind not in ENCODERS)


@pytest.mark.parametrize("kind", [*KINDS])
def test_padding_changes_no_logits(kind: str, folders: dict[str, Path]) -> None:
    classifier = Classifier(made(folders[kind]).backbone, 3).double().eval()
    short = torch.randint(6, 18, (1, 5))
    padded = torch.cat([short, torch.zeros(1, 6, dtype=torch.long)], 1)
    mask = ragged((5, 11), left=False)[:1]
    segments = torch.zeros_like(padded)
    wanted = classifier(short, None, segments[:, :5]).logits
    close(classifier(padded, mask, segments).logits, wanted, 1e-10)
    assert classifier.pool == ("first" if kind in ENCODERS else "last")


def test_pooling() -> None:
    x = torch.arange(24.0).reshape(2, 4, 3)
    mask = torch.tensor([[False, True, True, False], [True, True, True, True]])
    assert torch.equal(pooled(x, mask, "first"), torch.stack([x[0, 1], x[1, 0]]))
    assert torch.equal(pooled(x, mask, "last"), torch.stack([x[0, 2], x[1, 3]]))
    close(pooled(x, mask, "mean"), torch.stack([x[0, 1:3].mean(0), x[1].mean(0)]), 1e-6)
    assert torch.equal(pooled(x, None, "last"), x[:, 3])


@pytest.mark.parametrize("left", [False, True])
def test_decoding_in_parts_equals_the_full_pass(left: bool, folders: dict[str, Path]) -> None:
    ours = made(folders["llama"])
    ids, mask = torch.randint(4, 18, (2, 9)), ragged((9, 6), left=left)
    whole = ours(ids, mask).logits
    state, parts = ours.init_state(2), []
    for start, stop in ((0, 4), (4, 5), (5, 9)):
        out = ours(ids[:, start:stop], mask[:, start:stop], state=state)
        state = out.state
        parts.append(out.logits)
    close(torch.cat(parts, 1)[mask], whole[mask], 1e-10)


def test_segments_reach_the_models_that_use_them(folders: dict[str, Path]) -> None:
    assert {k: made(f).backbone.reads_segments for k, f in folders.items()} == {
        "bert": True,
        "roberta": False,
        "deberta": False,
        "llama": False,
    }
    classifier = Classifier(made(folders["bert"]).backbone, 2).double().eval()
    ids, segments = torch.randint(6, 18, (1, 6)), torch.tensor([[0, 0, 0, 1, 1, 1]])
    one, other = (classifier(ids, None, s).logits for s in (segments, 0 * segments))
    assert not torch.allclose(one, other)


@pytest.mark.parametrize("kind", [*KINDS])
def test_the_tokenizer_adds_the_special_tokens_of_transformers(
    kind: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    ours = Own(path=str(folders[kind])).build([])
    theirs = AutoTokenizer.from_pretrained(folders[kind])
    texts = "the cat sees one house", "a red dog sleeps"
    one, two = (
        encode([Example(texts[0], second, 0, 0)], ours, 64).row(0).tolist()
        for second in (None, texts[1])
    )
    assert one == theirs(texts[0])["input_ids"]
    assert two == theirs(*texts)["input_ids"]
    ours.save(tmp_path)
    again = load(tmp_path)
    assert (again.template, again.special, again.vocab_size) == (
        ours.template,
        ours.special,
        ours.vocab_size,
    )
    kept = Own(path=str(tmp_path))
    kept.check()
    assert kept.build([]).sha256 == ours.sha256
    assert (ours.mask_id is None) == (kind == "llama")


def test_every_weight_has_a_gradient(folders: dict[str, Path]) -> None:
    for kind, place in folders.items():
        classifier = Classifier(made(place).backbone, 2).double()
        ids, segments = torch.randint(6, 18, (4, 9)), torch.ones(4, 9, dtype=torch.long)
        logits = classifier(ids, None, segments).logits
        torch.nn.functional.cross_entropy(logits, torch.tensor([0, 1, 1, 0])).backward()
        without = [n for n, p in classifier.named_parameters() if p.grad is None]
        assert not without, (kind, without)


@pytest.mark.parametrize(
    ("kind", "causal", "vocab_size", "says"),
    [
        ("llama", False, 1, "is a llama, a decoder; this task needs an encoder"),
        ("bert", True, 1, "is a bert, an encoder; this task needs a decoder"),
        ("bert", None, 999, "has 20 tokens, but the tokenizer has 999; use tokenizer=own"),
    ],
)
def test_a_model_that_does_not_fit_the_task_is_refused(
    kind: str, causal: bool | None, vocab_size: int, says: str, folders: dict[str, Path]
) -> None:
    with pytest.raises(UserError, match=says):
        made(folders[kind], causal=causal, vocab_size=vocab_size)


def test_the_loss_in_parts_equals_that_of_all_logits(folders: dict[str, Path]) -> None:
    ours, ids = made(folders["llama"]), torch.randint(4, 18, (2, 9))
    index, targets = torch.arange(16), torch.randint(4, 18, (16,))
    wanted = torch.nn.functional.cross_entropy(ours(ids, index=index).logits, targets)
    out = ours(ids, index=index, targets=targets, at_once=40)
    close(out.loss, wanted, 1e-10)
    assert 0 <= float(out.accuracy) <= 1


def test_more_positions_than_the_model_has_are_refused(folders: dict[str, Path]) -> None:
    reach = {"bert": 66, "roberta": 65}
    for kind, place in folders.items():
        if kind not in reach:
            made(place).check_length(1000)
            continue
        made(place).check_length(reach[kind])
        with pytest.raises(UserError, match=f"has {reach[kind]} positions"):
            made(place).check_length(reach[kind] + 1)
        with pytest.raises(
            UserError, match=f"has {reach[kind]} positions, fewer than model.max_len=67"
        ):
            build_model(
                HuggingFace(name=str(place), max_len=67), Choices, vocab_size=1, causal=None
            )


def test_a_missing_model_or_an_unusable_component_is_refused(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=r"is not on this machine .*hf download owner/name"):
        HuggingFace(name="owner/name").check()
    with pytest.raises(UserError, match=r"has no config\.json and no model\.safetensors"):
        HuggingFace(name=str(tmp_path)).check()
    other = type("C", (), {"names": {**Choices.names, "mixer": "mamba"}})
    with pytest.raises(UserError, match="mixer=mamba cannot be used with model=hf"):
        build_model(
            HuggingFace(name=str(folders["bert"]), max_len=9), other, vocab_size=1, causal=None
        )
