"""Mixtures: shares and passes, the same on any number of processes, and what is refused."""

from collections import Counter
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from chimera.data.batch import causal
from chimera.data.batch.mlm import MLMDataModule
from chimera.data.batch.packed import Mix
from chimera.data.corpus.base import Data
from chimera.data.corpus.mixture import Mixture, Recipe
from chimera.data.corpus.text import Text
from chimera.data.encode.packing import MixedTokens, PackedTokens
from chimera.data.encode.prepare import Prepared, prepare
from chimera.errors import UserError
from tests.data.kit import Numbers, packed, small_piece, splits_of
from tests.data.test_splits import long, write


@pytest.mark.parametrize(
    ("recipe", "sizes", "counts"),
    [
        (Recipe(None, (1, 1)), [30, 10], [30, 10]),
        (Recipe(None, (0.5, 4)), [30, 10], [15, 40]),
        (Recipe((1, 1), (1, 1)), [30, 10], [10, 10]),
        (Recipe((3, 1), (1, 1)), [30, 10], [30, 10]),
        (Recipe((0.5, 0.5), (1, 3)), [30, 10], [30, 30]),
        (Recipe((0.9, 0.1), (1, 1)), [9, 1000], [9, 1]),
        (Recipe((1, 1e-6), (1, 1)), [10, 10], [10, 1]),
    ],
)
def test_blocks_of_each_source(recipe: Recipe, sizes: list[int], counts: list[int]) -> None:
    mix = Mix(recipe, sizes, seed=0)
    assert mix.counts == counts
    assert len(mix) == sum(counts)
    found = Counter(mix.locate(0, index)[0] for index in range(len(mix)))
    assert [found[source] for source in range(len(sizes))] == counts


def test_whole_passes_take_every_block_and_incomplete_ones_others_in_each_epoch() -> None:
    mix = Mix(Recipe(None, (2.3, 1)), [100, 5], seed=0)
    epochs = [Counter(mix.locate(epoch, i) for i in range(len(mix))) for epoch in range(2)]
    for found in epochs:
        assert Counter(found.values()) == {2: 70, 3: 30, 1: 5}
    thrice = [{key for key, count in found.items() if count == 3} for found in epochs]
    assert thrice[0] != thrice[1]
    assert [mix.locate(0, i) for i in range(len(mix))] == [
        mix.locate(0, i) for i in range(len(mix))
    ]


def rows(folder: Path, *sizes: int) -> tuple[PackedTokens, ...]:
    """Rows whose ids tell their source: thousands, and their position."""
    folders = [folder / str(number) for number in range(len(sizes))]
    for each in folders:
        each.mkdir()
    ids = (1000 * number + np.arange(size) for number, size in enumerate(sizes, 1))
    return tuple(map(packed, folders, ids))


def starts(batch) -> list[int]:
    return batch["ids"][:, 0].tolist()


@pytest.mark.parametrize("world", [2, 4])
def test_any_number_of_processes_takes_the_same_blocks(world: int, tmp_path, monkeypatch) -> None:
    tokens = MixedTokens(rows(tmp_path, 201, 401, 81), Recipe((0.5, 0.3, 0.2), (2, 1, 3.5)))
    settings = Data(batch_size=8, seq_len=5)

    def loader():
        prepared = Prepared(Numbers(), {"train": tokens}, {})
        module = causal.CausalDataModule(settings, small_piece(), 3, prepared=prepared)
        return module.train_dataloader()

    alone = [starts(batch) for epoch in range(3) for batch in loader_of(loader(), epoch)]
    shares = []
    for rank in range(world):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", str(world))
        one = loader()
        shares.append([starts(batch) for epoch in range(3) for batch in loader_of(one, epoch)])
    for whole, *parts in zip(alone, *shares, strict=True):
        assert [start for group in zip(*parts, strict=True) for start in group] == whole
    monkeypatch.undo()
    resumed, state = loader(), loader()
    list(islice(state, 4))
    resumed.load_state_dict(state.state_dict())
    assert [starts(batch) for batch in resumed] == alone[4 : len(state)]
    by_source = Counter(start // 1000 for batch in alone for start in batch)
    assert by_source[1] / sum(by_source.values()) == pytest.approx(0.5, abs=0.02)


def loader_of(loader, epoch: int):
    loader.epoch = epoch
    return loader


def text(folder: Path) -> list[dict[str, object]]:
    for seed, count in enumerate((60, 40)):
        write(folder / "text" / f"{seed}.txt", long(count, seed))
    return [{"path": str(folder / "text" / f"{seed}.txt")} for seed in (0, 1)]


def test_sources_are_packed_on_their_own_with_one_tokenizer(tmp_path: Path, monkeypatch) -> None:
    first, second = text(tmp_path)
    given = {"cache_dir": str(tmp_path / "cache"), "seq_len": 16, "batch_size": 4}
    data = prepare(Mixture(sources=[first, second], **given), small_piece())
    train = data.splits["train"]
    assert [len(row) for row in train.rows] == [
        source["train"]["tokens"] for source in data.report["sources"].values()
    ]
    assert data.report["splits"]["test"]["tokens"] == len(data.splits["test"])
    decoded = data.tokenizer.decode(data.splits["valid"].ids[:])
    expected = [d for source in (first, second) for d in splits_of(Text(**source))["valid"]]
    assert decoded.split() == " ".join(expected).split()
    monkeypatch.setattr(Text, "sources", lambda _: pytest.fail("read again"))
    weighted = Mixture(sources=[{**first, "weight": 0.8}, {**second, "weight": 0.2}], **given)
    assert prepare(weighted, small_piece()).report == data.report
    module = MLMDataModule(weighted, small_piece(), seed=1)
    blocks = module.train_dataloader().samples
    counts = [
        sum(blocks.blocks.mix.locate(0, i)[0] == s for i in range(len(blocks))) for s in (0, 1)
    ]
    assert counts[0] == pytest.approx(4 * counts[1], abs=3)
    assert [blocks[0, i].number for i in (0, len(blocks) - 1)] == [0, len(blocks) - 1]
    assert len(module.val_dataloader().samples) == len(data.splits["valid"]) // 16
    for kind in (MLMDataModule, causal.CausalDataModule):
        saved, again = (kind(weighted, small_piece()) for _ in range(2))
        saved.save_test(tmp_path / "test.npz")
        again.load_test(tmp_path / "test.npz")
        for one, other in zip(saved.test_dataloader(), again.test_dataloader(), strict=True):
            assert one["targets"].equal(other["targets"])


@pytest.mark.parametrize(
    ("sources", "said"),
    [
        ([], r"needs data.sources, such as 'data.sources=\[\{path: a.txt"),
        ([{"weight": 1}], r"data.sources\[0\] needs path="),
        ([{"path": "a.txt", "wieght": 1}], "wieght is no key of a source; did you mean 'weight'?"),
        ([{"path": "a.txt", "weight": 0}], r"sources\[0\].weight=0 is not allowed; it takes a num"),
        ([{"path": "a.txt", "epochs": "two"}], "epochs=two is not allowed"),
        ([{"path": "a.txt", "stream": "yes"}], "stream=yes is not allowed; it takes true or false"),
        ([{"path": "a.txt", "weight": 1}, {"path": "a.txt"}], "every source a weight, or none"),
        ([{"path": "a.txt"}, {"path": "no.txt"}], "data.path=no.txt does not exist"),
    ],
)
def test_what_is_wrong_is_told(sources, said: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("a")
    with pytest.raises(UserError, match=said):
        Mixture(sources=sources).check()


def test_a_bound_is_shared_by_the_sources() -> None:
    sources = [{"path": "a"}, {"path": "b", "max_bytes": 7}, {"path": "c", "max_bytes": 99}]
    bounds = [corpus.max_bytes for corpus in Mixture(sources=sources).corpora.values()]
    assert bounds == [None, 7, 99]
    bounded = Mixture(sources=sources, max_bytes=30)
    assert [corpus.max_bytes for corpus in bounded.corpora.values()] == [10, 7, 10]
