"""Synthetic data sets: who knows the rule is always right, from what stands before the answer."""

from collections.abc import Callable
from dataclasses import replace
from itertools import groupby, pairwise
from typing import Any

import numpy as np
import pytest
import yaml

from chimera.config.hydra_calls import make
from chimera.data.batch.synthetic import SyntheticDataModule
from chimera.data.corpus.synthetic.base import UNASKED, Sequences, Synthetic
from chimera.data.corpus.synthetic.languages import END
from chimera.data.corpus.synthetic.tracking import elements
from chimera.data.tokenizer.symbols import Symbols
from chimera.data.tokenizer.word import Words
from chimera.errors import UserError
from tests.data.kit import ROOT

FILES = sorted((ROOT / "conf/data/mad").glob("*.yaml"))
NAMES = [file.stem for file in FILES]
#: Sequences that a test looks at.
FEW = 24


def corpus(name: str, **settings: Any) -> Synthetic:
    node = yaml.safe_load((ROOT / f"conf/data/mad/{name}.yaml").read_text())
    made = make({**node, "cache_dir": "unused", "samples": 600, "held_out": FEW, **settings})
    assert isinstance(made, Synthetic)
    made.check()
    return made


def mqar(prompt: list[int], data: Any) -> int:
    listed = [s for s in prompt if s]
    half = (data.vocabulary - 1) // 2
    values = {k: v for k, v in pairwise(listed) if k <= half < v}
    return values[prompt[-1]]


def fuzzy_recall(prompt: list[int], data: Any) -> int:
    half = (data.vocabulary - 1) // 2
    runs = [tuple(run) for _, run in groupby(prompt, lambda s: s > half)]
    begun = runs.pop() if prompt[-1] > half else ()
    pairs = dict(zip(runs[:-1:2], runs[1::2], strict=False))
    return int(pairs[runs[-1]][len(begun)])


def induction(prompt: list[int], data: Any) -> int:
    return prompt[prompt.index(prompt[-1]) + 1]


def selective_copy(prompt: list[int], data: Any) -> int:
    end = prompt.index(data.vocabulary - 1)
    return [s for s in prompt[:end] if s][len(prompt) - end - 1]


def parity(prompt: list[int], data: Any) -> int:
    return 1 + prompt.count(2) % 2


def s5(prompt: list[int], data: Any) -> int:
    things = list(range(5))
    for factor in prompt:
        things = [elements()[factor - 1][thing] for thing in things]
    return 1 + elements().index(tuple(things))


SOLVERS: dict[str, Callable[[list[int], Any], int]] = {
    solver.__name__: solver
    for solver in (mqar, fuzzy_recall, induction, selective_copy, parity, s5)
}


def asked(sequences: Sequences, rows: int = FEW) -> list[tuple[int, int]]:
    return [(int(r), int(t)) for r, t in np.argwhere(sequences.targets[:rows] != UNASKED)]


@pytest.mark.parametrize("name", SOLVERS)
def test_the_prompt_decides_the_answer(name: str) -> None:
    data = corpus(name)
    sequences = data.sequences("test")
    places = asked(sequences, 6)
    assert len(places) >= 6
    for row, t in places:
        answer = SOLVERS[name](sequences.ids[row, : t + 1].tolist(), data)
        assert answer == sequences.targets[row, t], (row, t)


def test_facts_of_the_training_split_answer_the_test() -> None:
    data = corpus("memorisation", samples=2048)
    facts = {}
    train = data.sequences("train")
    for row, t in asked(train, 2048):
        facts[tuple(train.ids[row, t - 2 : t])] = train.targets[row, t]
    assert len(facts) == data.facts  # type: ignore[attr-defined]
    test = data.sequences("test")
    assert all(facts[tuple(test.ids[r, t - 2 : t])] == test.targets[r, t] for r, t in asked(test))
    assert (test.ids[test.targets != UNASKED] == 0).all()  # a blank asks


def test_compression_asks_for_the_sequence_itself() -> None:
    sequences = corpus("compression").sequences("test")
    where = sequences.targets != UNASKED
    assert (sequences.targets[where] == sequences.ids[where]).all()
    assert where[:, :-1].all()
    assert not where[:, -1].any()


def test_what_a_string_showed_is_right_in_later_strings() -> None:
    data = corpus("regbench")
    sequences = data.sequences("test")
    assert sequences.right is not None
    known = right = 0
    for ids, targets, legal in zip(*sequences[:2], sequences.right, strict=True):
        followers: dict[tuple[int, ...], int] = {}
        prefix: tuple[int, ...] = ()
        for symbol, target, bits in zip(
            ids.tolist(), targets.tolist(), legal.tolist(), strict=True
        ):
            prefix = () if symbol == END else (*prefix, symbol)
            if target == UNASKED:
                continue
            assert bits >> target & 1
            if prefix in followers:
                known, right = known + 1, right + (bits >> followers[prefix] & 1)
            followers[prefix] = target
    assert known > 5 * FEW
    assert right == known


@pytest.mark.parametrize("name", NAMES)
def test_a_sequence_depends_on_seed_split_and_number_alone(name: str) -> None:
    data = corpus(name)
    more = replace(data, samples=700).sequences("train")
    for few, many in zip(data.sequences("train"), more, strict=True):
        assert (few is None) == (many is None)
        if few is not None and many is not None:
            np.testing.assert_array_equal(few, many[:600])
    drawn = {split: data.sequences(split) for split in ("valid", "test")}
    other = replace(data, data_seed=1).sequences("test")
    assert not np.array_equal(drawn["valid"].ids, drawn["test"].ids)
    assert not np.array_equal(drawn["test"].ids, other.ids)
    # No test sequence was trained on; short ones would be, which longer tests prevent.
    length = data.test_len
    trained = {row.tobytes() for row in replace(data, seq_len=length).sequences("train").ids}
    assert not any(row.tobytes() in trained for row in drawn["test"].ids)


@pytest.mark.parametrize("name", NAMES)
def test_symbols_and_groups_are_within_their_bounds(name: str) -> None:
    data = corpus(name)
    for split, length in (("train", data.seq_len), ("test", data.test_len)):
        sequences = data.sequences(split)
        assert sequences.ids.shape[1] == length
        assert sequences.ids.min() >= 0
        assert sequences.ids.max() < data.vocabulary
        assert sequences.targets.max() < data.vocabulary
        where = sequences.targets != UNASKED
        assert where.any(1).all()  # no sequence asks for nothing
        groups = set(sequences.groups[where].tolist())
        assert groups <= set(range(len(data.groups)))
        assert split == "train" or groups == set(range(len(data.groups)))
    assert set(data.judged) <= set(data.groups)
    assert 0 < data.chance < 1


@pytest.mark.parametrize("name", NAMES)
def test_a_vocabulary_or_length_that_does_not_do_is_refused(name: str) -> None:
    with pytest.raises(UserError, match=r"data\.vocabulary=1 is too small"):
        corpus(name, vocabulary=1)
    with pytest.raises(UserError, match=r"data\.test_len=1 is too short"):
        corpus(name, test_len=1)


def test_batches_hold_what_is_asked_and_the_test_set_is_kept(tmp_path) -> None:
    data = SyntheticDataModule(corpus("regbench", batch_size=10), Symbols(size=20))
    sequences = data.prepared.splits["test"]
    batches = list(data.test_dataloader())
    assert [len(batch["ids"]) for batch in batches] == [10, 10, 4]
    np.testing.assert_array_equal(
        np.concatenate([batch["targets"] for batch in batches]),
        sequences.targets[sequences.targets != UNASKED],
    )
    data.save_test(tmp_path / "test.npz")
    again = SyntheticDataModule(corpus("regbench", batch_size=10, data_seed=5), Symbols(size=20))
    again.load_test(tmp_path / "test.npz")
    for batch, stored in zip(batches, again.test_dataloader(), strict=True):
        assert all((batch[key] == stored[key]).all() for key in batch if key != "mask")
    longer = data.lengthened(200)
    assert next(iter(longer.test_dataloader()))["ids"].shape == (10, 200)


def test_other_tokenizers_and_too_few_symbols_are_refused() -> None:
    with pytest.raises(UserError, match="add tokenizer=symbols"):
        SyntheticDataModule(corpus("parity"), Words()).prepare_data()
    with pytest.raises(UserError, match=r"tokenizer.size=2 is less than data.vocabulary=3"):
        SyntheticDataModule(corpus("parity"), Symbols(size=2)).prepare_data()
