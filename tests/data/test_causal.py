"""Blocks for next-token prediction: every token is predicted once; loaders resume exactly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from chimera.data.batch import causal, stored
from chimera.data.batch.loader import ResumableLoader
from chimera.data.corpus.base import Data
from chimera.data.encode.packing import PackedTokens
from chimera.data.encode.prepare import Prepared
from chimera.errors import UserError
from tests.data.kit import Numbers, packed, small_piece


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
        monkeypatch.setattr(stored, "LARGEST_COPY", 10)
    ids = np.arange(75, dtype="<u2")
    files = []
    for start in range(0, 75, size):
        files.append(tmp_path / f"{start}.bin")
        files[-1].write_bytes(ids[start : start + size].tobytes())
    prepared = Prepared(Numbers(), {"test": PackedTokens(tuple(files), "<u2")}, {})
    module = causal.CausalDataModule(settings(), small_piece(), prepared=prepared)
    module.save_test(tmp_path / "test.npz")
    assert ("ids" in np.load(tmp_path / "test.npz").files) != referred
    for length in (7, 9, 33):
        again = causal.CausalDataModule(settings(seq_len=length), small_piece())
        again.load_test(tmp_path / "test.npz")
        targets = [t for batch in again.test_dataloader() for t in batch["targets"].tolist()]
        assert targets == list(range(1, 75))
    files[0].write_bytes(ids[:3].tobytes())
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
