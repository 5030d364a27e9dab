"""Blocks of a row of tokens, masked and for next-token prediction; documents kept apart.

Masks are exact in number, right in proportion, and a function of (seed, epoch, index) alone.
Documents that are kept apart give what each would give alone.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from chimera.contract_tests import zoo
from chimera.data.batch import causal
from chimera.data.batch import packed as packed_module
from chimera.data.batch.causal import CausalDataModule
from chimera.data.batch.collate import Example, collate
from chimera.data.batch.loader import Purpose, ResumableLoader, stream
from chimera.data.batch.mlm import MaskedBlocks, Masking, MLMDataModule
from chimera.data.batch.packed import PIECE, Blocks, documents_of
from chimera.data.corpus.base import Data, PackedText
from chimera.data.encode.packing import PackedTokens
from chimera.data.encode.prepare import Prepared
from chimera.errors import UserError
from chimera.model.documents import check_documents
from chimera.task.base import unigram_perplexity
from tests.data.kit import Numbers, Toy, packed, small_piece


def blocks(folder, *, length=16, count=40, seed: int | None = 0) -> MaskedBlocks:
    ids = np.random.default_rng(0).integers(0, 100, length * count)
    return MaskedBlocks(Blocks(packed(folder, ids), length), Masking(Numbers(), 0.15), seed)


def same(a: Example, b: Example) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("length", [1, 2, 3, 7, 10, 30, 64, 100, 127, 128, 513])
@pytest.mark.parametrize("ratio", [0.15, 0.4])
def test_exactly_so_many_are_masked(length: int, ratio: float) -> None:
    block = np.arange(5, 5 + length) % 95 + 5
    masked = Masking(Numbers(), ratio)(block, stream(Purpose.MASK, 0, 0))
    assert len(masked.positions) == max(1, round(ratio * length))
    assert len(set(masked.positions)) == len(masked.positions)
    np.testing.assert_array_equal(masked.targets, block[masked.positions])
    untouched = np.setdiff1d(np.arange(length), masked.positions)
    np.testing.assert_array_equal(masked.ids[untouched], block[untouched])


def test_special_tokens_are_neither_masked_nor_put_in() -> None:
    block = np.array([0, 1, 2, 3, 4] * 20 + [50, 60])
    for index in range(200):
        masked = Masking(Numbers(), 0.15)(block, stream(Purpose.MASK, 0, 0, index))
        assert set(masked.positions) == {100, 101}
        assert set(masked.ids[100:]) <= {4, *range(5, 100)}
    nothing = Masking(Numbers(), 0.15)(block[:100], stream(Purpose.MASK, 0, 0))
    assert len(nothing.positions) == 0


def test_eighty_ten_ten() -> None:
    block = np.full(20_000, 7)
    masked = Masking(Numbers(10_000), 1.0)(block, stream(Purpose.MASK, 0, 0))
    share = [(masked.ids == 4).mean(), (masked.ids == 7).mean()]
    assert share == pytest.approx([0.8, 0.1], abs=0.01)
    random = masked.ids[(masked.ids != 4) & (masked.ids != 7)]
    assert random.min() < 100
    assert random.max() > 9900


def test_positions_are_uniform() -> None:
    masking, block = Masking(Numbers(), 0.15), np.full(20, 7)
    counts = np.zeros(20)
    for index in range(4000):
        counts[masking(block, stream(Purpose.MASK, 0, 0, index)).positions] += 1
    assert counts / 4000 == pytest.approx(np.full(20, 0.15), abs=0.025)


def test_streams_depend_on_all_of_their_numbers_and_on_nothing_else() -> None:
    keys = [
        (purpose, seed, epoch, index)
        for purpose in Purpose
        for seed in (0, 1)
        for epoch in (0, 1)
        for index in (0, 1)
    ]
    draws = {tuple(stream(*key).integers(0, 1 << 62, 4)) for key in keys}
    assert len(draws) == len(keys)
    np.random.seed(7)
    again = {tuple(stream(*key).integers(0, 1 << 62, 4)) for key in reversed(keys)}
    assert again == draws


def test_masks_change_by_epoch_and_seed_unless_fixed(tmp_path) -> None:
    train, other = blocks(tmp_path), blocks(tmp_path, seed=1)
    assert same(train[0, 3], train[0, 3])
    assert not same(train[0, 3], train[1, 3])
    assert not same(train[0, 3], other[0, 3])
    fixed = blocks(tmp_path, seed=None)
    assert same(fixed[0, 3], fixed[1, 3])
    assert not same(fixed[0, 3], train[0, 3])


def test_a_batch_indexes_its_masked_tokens() -> None:
    examples = [
        Example(7, np.array([9, 4, 9]), np.array([1]), np.array([8])),
        Example(5, np.array([4, 9, 9]), np.array([0, 2]), np.array([6, 9])),
    ]
    batch = collate(examples, pad_id=0)
    assert batch["mask"] is None
    assert batch["indices"].tolist() == [7, 5]
    assert batch["index"].tolist() == [1, 3, 5]
    assert batch["targets"].tolist() == [8, 6, 9]
    assert batch["ids"].flatten()[batch["index"]].tolist() == [4, 4, 9]
    assert {batch[k].dtype for k in ("ids", "index", "targets", "indices")} == {torch.int64}


def test_a_ragged_batch_is_padded_and_says_where() -> None:
    examples = [
        Example(0, np.array([9, 4]), np.array([1]), np.array([8])),
        Example(1, np.array([9, 9, 4, 9]), np.array([2]), np.array([6])),
    ]
    batch = collate(examples, pad_id=0)
    assert batch["ids"].tolist() == [[9, 4, 0, 0], [9, 9, 4, 9]]
    assert batch["mask"].tolist() == [[True, True, False, False], [True] * 4]
    assert batch["ids"].flatten()[batch["index"]].tolist() == [4, 4]


@pytest.fixture
def data(tmp_path) -> Prepared:
    rng = np.random.default_rng(0)
    splits = {}
    for split, count in (("train", 1000), ("valid", 200), ("test", 165)):
        (tmp_path / split).mkdir()
        splits[split] = packed(tmp_path / split, rng.integers(0, 100, count))
    return Prepared(Numbers(), splits, {})


def module_of(data: Prepared, seed: int = 0, *, batch_size: int = 4, seq_len: int = 16):
    corpus = Toy(batch_size=batch_size, seq_len=seq_len)
    return MLMDataModule(corpus, small_piece(), seed, mask_ratio=0.15, prepared=data)


def collected(loader) -> list[dict[str, list[int]]]:
    return [{k: v.tolist() for k, v in b.items() if v is not None} for b in loader]


def test_validation_is_the_same_every_time_and_for_every_seed(data: Prepared) -> None:
    module = module_of(data)
    train, valid = module.train_dataloader(), module.val_dataloader()
    test = module.test_dataloader()
    assert (len(train), len(valid), len(test)) == (15, 3, 3)
    first = collected(valid)
    assert first == collected(valid)
    assert collected(train) != collected(train)
    assert first == collected(module_of(data, seed=1).val_dataloader())
    assert len(test.samples) == 10


def test_a_large_test_set_is_referred_to(data: Prepared, tmp_path, monkeypatch) -> None:
    module, file = module_of(data), tmp_path / "test.npz"
    monkeypatch.setattr(packed_module, "LARGEST_COPY", 10)
    module.save_test(file)
    monkeypatch.undo()
    assert "ids" not in np.load(file).files
    again = MLMDataModule(module.corpus, small_piece())
    again.load_test(file)
    assert collected(again.test_dataloader()) == collected(module.test_dataloader())


def test_what_cannot_be_masked_is_refused(data: Prepared, tmp_path) -> None:
    with pytest.raises(UserError, match=r"needs a \[MASK\] token"):
        Masking(Numbers(mask=None), 0.15)
    with pytest.raises(UserError, match="train split has 7 sequences, fewer than a batch of 8"):
        module_of(data, batch_size=8, seq_len=128).setup("fit")
    unknown = Prepared(Numbers(), {**data.splits, "valid": packed(tmp_path, np.full(40, 1))}, {})
    with pytest.raises(UserError, match="valid split holds no known word"):
        module_of(unknown, batch_size=2).setup("fit")


def test_unigram_perplexity() -> None:
    train, asked = np.array([0, 0, 0, 1], dtype=np.uint16), np.array([0, 1, 2])
    by_hand = np.exp(-np.log(np.array([4, 2, 1]) / 7).mean())
    assert unigram_perplexity(train, asked, 3) == pytest.approx(by_hand, rel=1e-12)
    uniform = unigram_perplexity(np.arange(50), np.arange(50), 50)
    assert uniform == pytest.approx(50, rel=1e-12)


def settings(**change: Any) -> Data:
    return Data(**{"batch_size": 3, "seq_len": 7, **change})


def loader(row: Any, given: Data, *, train: bool = False, seed: int = 0) -> ResumableLoader:
    """Loader of a row of tokens."""
    prepared = Prepared(Numbers(), {"train": row, "valid": row}, {})
    module = causal.CausalDataModule(given, small_piece(), seed, prepared=prepared)
    return module.train_dataloader() if train else module.val_dataloader()


@pytest.mark.parametrize("length", [1, 7, 10, 50, 99, 100, 400])
def test_every_token_but_the_first_is_predicted_once(tmp_path: Path, length: int) -> None:
    row = packed(tmp_path, np.arange(100))
    got, before = [], []
    for batch in loader(row, settings(seq_len=length)):
        real = batch["ids"].flatten() if batch["index"] is None else batch["ids"][batch["mask"]]
        before += real.tolist()
        got += batch["targets"].tolist()
    assert got == list(range(1, 100))
    assert before == list(range(99))


def test_only_the_end_of_the_row_is_padded(tmp_path: Path) -> None:
    row = packed(tmp_path, np.arange(100))
    *whole, last = loader(row, settings(seq_len=20))
    assert all(batch["mask"] is None and batch["index"] is None for batch in whole)
    assert last["mask"].sum(1).tolist() == [20, 19]
    assert torch.equal(last["index"], last["mask"].flatten().nonzero()[:, 0])


def test_training_takes_whole_blocks_in_a_new_order_each_epoch(tmp_path: Path) -> None:
    row = packed(tmp_path, np.arange(101))
    train = loader(row, settings(batch_size=2, seq_len=10), train=True)
    epochs = [[b["indices"].tolist() for b in train] for _ in range(2)]
    assert epochs[0] != epochs[1]
    for epoch in epochs:
        assert sorted(i for batch in epoch for i in batch) == list(range(10))


@pytest.mark.parametrize("size", [1 << 20, 30])
@pytest.mark.parametrize("referred", [True, False])
def test_a_saved_test_split_is_read_at_any_length(
    tmp_path: Path, size: int, referred: bool, monkeypatch
) -> None:
    """A large one is referred to in place of copied; its files may be several."""
    if referred:
        monkeypatch.setattr(packed_module, "LARGEST_COPY", 10)
    row = packed(tmp_path, np.arange(75), size)
    prepared = Prepared(Numbers(), {"test": row}, {})
    module = causal.CausalDataModule(settings(), small_piece(), prepared=prepared)
    module.save_test(tmp_path / "test.npz")
    assert ("ids" in np.load(tmp_path / "test.npz").files) != referred
    for length in (7, 9, 33):
        again = causal.CausalDataModule(settings(seq_len=length), small_piece())
        again.load_test(tmp_path / "test.npz")
        targets = [t for batch in again.test_dataloader() for t in batch["targets"].tolist()]
        assert targets == list(range(1, 75))
    packed(tmp_path, np.arange(3))
    again = causal.CausalDataModule(settings(), small_piece())
    again.load_test(tmp_path / "test.npz")
    if referred:
        with pytest.raises(UserError, match=r"0.bin, which changed; start the run's own command"):
            again.test_dataloader()
    else:
        again.test_dataloader()


@pytest.mark.parametrize("tokens", [0, 1])
def test_a_split_of_less_than_two_tokens_is_refused(tmp_path: Path, tokens: int) -> None:
    row = packed(tmp_path, np.arange(100)[:tokens]) if tokens else _Empty()
    with pytest.raises(UserError, match="0 sequences"):
        loader(row, settings())


class _Empty:
    ids = np.empty(0, dtype=np.uint16)


SEP = Numbers().sep_id
LENGTHS = (7, 1, 12, 3, 9, 5)


def documents(vocab_size: int = 64) -> list[np.ndarray]:
    """Documents of ordinary ids, each with its separator."""
    rng = np.random.default_rng(0)
    return [np.append(rng.integers(5, vocab_size, n), SEP) for n in LENGTHS]


def row(folder: Path) -> PackedTokens:
    return packed(folder, np.concatenate(documents()))


def module(kind, folder: Path, length: int, batch_size: int = 1, boundaries: str = "reset"):
    corpus = PackedText(seq_len=length, batch_size=batch_size, boundaries=boundaries)
    prepared = Prepared(Numbers(64), dict.fromkeys(("train", "valid", "test"), row(folder)), {})
    return kind(corpus, None, seed=2, prepared=prepared)


def test_documents_of_a_block() -> None:
    ids = np.array([1, 2, SEP, SEP, 4, SEP, 6])
    found = [(start, part.tolist()) for start, part in documents_of(ids, SEP)]
    assert found == [(0, [1, 2, SEP]), (3, [SEP]), (4, [4, SEP]), (6, [6])]


@pytest.mark.parametrize("mixer", zoo.names("mixer"))
def test_every_mixer_gives_the_losses_of_separate_runs(mixer: str, tmp_path: Path) -> None:
    whole = sum(LENGTHS) + len(LENGTHS)
    (batch,) = module(CausalDataModule, tmp_path, whole).val_dataloader()
    assert len(batch["ids"]) == len(LENGTHS)
    model = zoo.model(mixer=mixer, causal=True).double().eval()
    with torch.no_grad():
        logits = model(batch["ids"], batch["mask"], index=batch["index"]).logits
        start = 0
        for document in documents():
            ids = torch.from_numpy(document)[None]
            alone = model(ids[:, :-1]).logits[0]
            torch.testing.assert_close(logits[start : start + len(alone)], alone)
            assert batch["targets"][start : start + len(alone)].equal(ids[0, 1:])
            start += len(alone)
    assert start == len(batch["targets"])


@pytest.mark.parametrize("position", ["rope", "alibi", "learned", "relative"])
@pytest.mark.parametrize("length", [sum(LENGTHS) + len(LENGTHS), 16])
@pytest.mark.parametrize("kind", [CausalDataModule, MLMDataModule])
def test_masks_give_what_rows_of_their_own_give(kind, length, position, tmp_path) -> None:
    given = {"batch_size": 3, "folder": tmp_path, "length": length}
    rows, masks = (
        module(kind, boundaries=boundaries, **given).val_dataloader()
        for boundaries in ("reset", "attention")
    )
    causal = kind is CausalDataModule
    model = zoo.model(mixer="attention", position=position, causal=causal).double().eval()
    for one, other in zip(rows, masks, strict=True):
        assert one["targets"].equal(other["targets"])
        assert len(other["ids"]) < len(one["ids"])
        found = [
            model(b["ids"], b["mask"], index=b["index"], documents=b.get("documents")).logits
            for b in (one, other)
        ]
        torch.testing.assert_close(found[0].flatten(0, -2), found[1])


@pytest.mark.parametrize("mixer", zoo.names("mixer"))
def test_mixers_that_would_see_other_documents_are_refused(mixer: str, tmp_path: Path) -> None:
    model = zoo.model(mixer=mixer, causal=True).double().eval()
    ids = torch.from_numpy(np.concatenate(documents()))[None]
    ends = ids == SEP
    numbers = ends.cumsum(1) - ends.long()
    with torch.no_grad():
        alone = model(torch.from_numpy(documents()[2])[None]).logits[0]
        start = len(documents()[0]) + len(documents()[1])
        found = model(ids, documents=numbers).logits[0, start : start + len(alone)]
    if torch.allclose(found, alone, atol=1e-9):
        check_documents(model, mixer)
    else:
        with pytest.raises(UserError, match=rf"attention needs mixers .* mixer={mixer} \("):
            check_documents(model, mixer)


def test_without_boundaries_documents_do_see_each_other(tmp_path: Path) -> None:
    whole = sum(LENGTHS) + len(LENGTHS)
    (batch,) = module(CausalDataModule, tmp_path, whole, boundaries="none").val_dataloader()
    assert len(batch["ids"]) == 1
    model = zoo.model(mixer="retnet", causal=True).double().eval()
    with torch.no_grad():
        logits = model(batch["ids"]).logits[0]
        second = torch.from_numpy(documents()[2])[None, :-1]
        start = len(documents()[0]) + len(documents()[1])
        alone = model(second).logits[0]
    assert not torch.allclose(logits[start : start + len(alone)], alone, atol=1e-3)


@pytest.mark.parametrize("length", [2, 5, 16])
def test_a_causal_batch_predicts_all_but_the_first_token_of_a_piece(length, tmp_path) -> None:
    data = module(CausalDataModule, tmp_path, length, batch_size=3)
    found = [
        (int(batch["ids"].flatten()[at]), int(target))
        for batch in data.val_dataloader()
        if not batch.get("void")
        for at, target in zip(
            range(batch["ids"].numel()) if batch["index"] is None else batch["index"],
            batch["targets"],
            strict=True,
        )
    ]
    ids = np.concatenate(documents()).tolist()
    assert found == [(a, b) for a, b in pairwise(ids) if a != SEP]


def test_a_masked_batch_predicts_what_it_did(tmp_path: Path) -> None:
    apart = module(MLMDataModule, tmp_path, 16, 2)
    joined = module(MLMDataModule, tmp_path, 16, 2, "none")
    for one, other in zip(apart.val_dataloader(), joined.val_dataloader(), strict=True):
        assert one["targets"].equal(other["targets"])
        assert one["ids"].flatten()[one["index"]].equal(other["ids"].flatten()[other["index"]])
        assert one["ids"][one["mask"]].equal(other["ids"].flatten())
        assert len(one["ids"]) > len(other["ids"])
        assert len(set(one["indices"].tolist())) == len(one["indices"])
        assert {n % PIECE for n in one["indices"].tolist()} == set(other["indices"].tolist())


def test_nothing_to_predict_is_void(tmp_path: Path) -> None:
    tail = Prepared(Numbers(), {"valid": packed(tmp_path, np.array([7, 8, 9, SEP, 5]))}, {})
    for boundaries in ("reset", "attention"):
        settings = PackedText(batch_size=1, seq_len=3, boundaries=boundaries)
        *_, last = CausalDataModule(settings, None, prepared=tail).val_dataloader()
        assert last["void"]


@pytest.mark.parametrize("boundaries", ["reset", "attention"])
@pytest.mark.parametrize("kind", [CausalDataModule, MLMDataModule])
def test_the_saved_test_set_is_kept_apart_too(kind, boundaries, tmp_path: Path) -> None:
    data = module(kind, tmp_path, 16, 2, boundaries)
    data.save_test(tmp_path / "test.npz")
    again = kind(data.corpus, None)
    again.load_test(tmp_path / "test.npz")
    for one, other in zip(data.test_dataloader(), again.test_dataloader(), strict=True):
        assert one["targets"].equal(other["targets"])
        assert len(one["ids"]) == len(other["ids"])
