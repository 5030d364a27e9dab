"""Documents that are kept apart give what each would give alone."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from chimera.contract_tests import zoo
from chimera.data.batch.causal import CausalDataModule
from chimera.data.batch.collate import PIECE, documents_of
from chimera.data.batch.mlm import MLMDataModule
from chimera.data.corpus.base import PackedText
from chimera.data.encode.packing import PackedTokens
from chimera.data.encode.prepare import Prepared
from chimera.errors import UserError
from chimera.model.documents import check_documents
from tests.data.kit import Numbers, packed

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
