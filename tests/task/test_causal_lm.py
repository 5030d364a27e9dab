"""Causal language modelling: the loss equals its definition, training lowers it, longer lengths."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
import torch.nn.functional as F

from chimera.config.settings import Model, Optim
from chimera.contract_tests import zoo
from chimera.data.batch.causal import CausalDataModule
from chimera.data.corpus.base import Data
from chimera.data.encode.prepare import Prepared, prepare
from chimera.errors import UserError
from chimera.task.causal_lm import CausalLM
from tests.data.kit import Toy, small_piece
from tests.kit import QUIET

SHAPE = Model(dim=32, depth=1, heads=4, max_len=16, head_transform=False)
GIVEN = Data(batch_size=4, seq_len=16)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    return prepare(Toy(count=300), small_piece(), tmp_path_factory.mktemp("cache"))


@pytest.fixture
def module(data: Prepared) -> CausalDataModule:
    return CausalDataModule(GIVEN, small_piece(), prepared=data)


@pytest.fixture
def build(data: Prepared) -> Callable[..., CausalLM]:
    def made(steps: int = 30, position: str = "rope", **options: Any) -> CausalLM:
        vocab = data.tokenizer.vocab_size
        model = zoo.model(SHAPE, causal=True, vocab_size=vocab, position=position)
        return CausalLM(model, Optim(lr=1e-2), steps, vocab, **options)

    return made


def trainer(folder: Path, steps: int = 30, **more: Any) -> pl.Trainer:
    return pl.Trainer(max_steps=steps, default_root_dir=folder, **QUIET, **more)


def naive(task: CausalLM, ids: list[int], length: int) -> float:
    """Mean loss of a text in blocks of `length`, computed token by token from the definition."""
    losses = []
    for start in range(0, len(ids) - 1, length):
        block = torch.tensor([ids[start : start + length]])
        logits = task.model(block).logits[0]
        for place, follows in enumerate(ids[start + 1 : start + length + 1]):
            losses.append(F.cross_entropy(logits[place], torch.tensor(follows)).item())
    return sum(losses) / len(losses)


def test_training_lowers_the_loss_and_validation_equals_the_definition(
    build: Callable[..., CausalLM], data: Prepared, module: CausalDataModule, tmp_path: Path
) -> None:
    task, run = build(longer=[2, 4]), trainer(tmp_path)
    before = run.validate(task, datamodule=module, verbose=False)[0]
    run.fit(task, module.train_dataloader())
    after = run.validate(task, datamodule=module, verbose=False)[0]
    assert after["val/perplexity"] < 0.7 * before["val/perplexity"]
    assert after["val/perplexity"] == pytest.approx(math.exp(after["val/loss"]))
    assert 0 < after["val/accuracy"] < 1
    more = task.extra_metrics(run, module)
    ids = data.splits["valid"].ids.tolist()
    task.eval()
    with torch.no_grad():
        assert after["val/loss"] == pytest.approx(naive(task, ids, 16), rel=1e-5)
        for factor in (2, 4):
            want = naive(task, ids, 16 * factor)
            assert more[f"val/loss_{factor}x"] == pytest.approx(want, rel=1e-5)
    assert more["val/loss_2x"] != after["val/loss"]


def test_the_unigram_baseline_is_computed_on_the_validation_tokens(
    build: Callable[..., CausalLM], data: Prepared, module: CausalDataModule
) -> None:
    task = build()
    counts = torch.bincount(
        torch.from_numpy(data.splits["train"].ids.astype("int64")),
        minlength=data.tokenizer.vocab_size,
    )
    p = (counts + 1).double() / (counts + 1).sum()
    targets = torch.cat([b["targets"] for b in module.val_dataloader()])
    found = task.baselines(module, None)["val/unigram_perplexity"]
    assert found == pytest.approx(float((-p[targets].log().mean()).exp()))


def test_the_loss_in_parts_equals_the_whole_loss(
    build: Callable[..., CausalLM], data: Prepared, module: CausalDataModule
) -> None:
    whole, parts = build(), build(logits_at_once=5 * data.tokenizer.vocab_size)
    parts.load_state_dict(whole.state_dict())
    batch = next(iter(module.train_dataloader()))
    a, b = whole.training_step(batch, 0), parts.training_step(batch, 0)
    assert torch.allclose(a["loss"], b["loss"])
    assert torch.equal(a["accuracy"], b["accuracy"])


def test_auxiliary_losses_are_weighted(data: Prepared, module: CausalDataModule) -> None:
    vocab = data.tokenizer.vocab_size
    model = zoo.model(SHAPE, causal=True, vocab_size=vocab, ffn="moe")
    task = CausalLM(model, Optim(lr=1e-2), 3, vocab, weights={"balance": 0.5})
    batch = next(iter(module.train_dataloader()))
    out = task.training_step(batch, 0)
    assert out["loss"].item() == pytest.approx(
        (out["task_loss"] + 0.5 * out["aux"]["balance"]).item()
    )


def test_learned_positions_refuse_longer_texts_before_training(
    build: Callable[..., CausalLM], module: CausalDataModule
) -> None:
    build(position="learned").configure_for(module, "fit")
    with pytest.raises(UserError, match="max_len=16 positions, but the sequence has 64"):
        build(position="learned", longer=[2, 4]).configure_for(module, "fit")
    with pytest.raises(UserError, match="max_len=16"):
        build(position="learned").configure_for(module.lengthened(32), "fit")


def test_batches_of_longer_sequences_have_as_many_tokens(module: CausalDataModule) -> None:
    assert module.lengthened(32).corpus == Data(batch_size=2, seq_len=32)
    assert module.lengthened(1024).corpus == Data(batch_size=1, seq_len=1024)
    assert module.corpus == GIVEN


def test_measuring_cost_changes_no_weight(
    build: Callable[..., CausalLM], module: CausalDataModule
) -> None:
    task = build(cost_at=[8, 16])
    before = {k: v.clone() for k, v in task.state_dict().items()}
    found = task.extra_metrics(trainer(Path()), module)
    keys = ("tokens_per_second", "latency_ms", "allocated_mb")
    assert set(found) == {f"cost/{key}@{t}" for key in keys for t in (8, 16)}
    assert all(value > 0 for value in found.values())
    assert all(torch.equal(v, before[k]) for k, v in task.state_dict().items())


def test_dynamic_scaling_changes_only_sequences_beyond_the_trained_length() -> None:
    plain = zoo.model(SHAPE, causal=True, position="rope").eval()
    for scaling in ("linear", "ntk", "yarn"):
        scaled = zoo.model(SHAPE, causal=True, position="rope").eval()
        for block in scaled.backbone.blocks:
            block.mixer.position.scaling, block.mixer.position.dynamic = scaling, True
        short, long = zoo.tokens(2, 16), zoo.tokens(2, 32)
        assert torch.equal(scaled(short).logits, plain(short).logits)
        assert not torch.allclose(scaled(long).logits, plain(long).logits)
        for block in scaled.backbone.blocks:
            position = block.mixer.position
            position.dynamic, position.factor = False, 2.0
        fixed = scaled(long).logits
        for block in scaled.backbone.blocks:
            block.mixer.position.dynamic = True
        torch.testing.assert_close(scaled(long).logits, fixed, rtol=1e-5, atol=1e-5)
