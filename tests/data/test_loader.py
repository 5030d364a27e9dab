"""The stream of batches: the same for any number of workers, and resumed exactly.

Its order is a permutation in each epoch, with and without an array. Lightning's trainers resume it:
tests/task/test_plain_trainer.py.
"""

import gc
import itertools
import json
import threading
import time

import numpy as np
import pytest
import torch

from chimera.data.batch import loader as loading
from chimera.data.batch.loader import (
    Permutation,
    Purpose,
    ResumableLoader,
    Streams,
    ahead,
    order_of,
    shareable,
    stream,
)
from chimera.errors import UserError


class Noise:
    """Samples that show the key they were asked by, and a number drawn from it."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, key):
        epoch, index = key
        return epoch, index, float(stream(Purpose.MASK, 0, epoch, index).normal())


def collate(samples):
    return {"x": torch.tensor(samples, dtype=torch.float64)}


def make(*, threaded: bool = False, **change) -> ResumableLoader:
    options = {"samples": Noise(23), "batch_size": 4, "collate": collate, "seed": 3, **change}
    loader = ResumableLoader(**options)
    loader.threaded = threaded
    return loader


def endless(loader):
    """Batches, epoch after epoch, as Lightning takes them."""
    while True:
        for batch in loader:
            yield batch["x"].tolist()


def take(loader, count: int) -> list:
    return list(itertools.islice(endless(loader), count))


def test_an_epoch_is_a_permutation_of_its_own() -> None:
    loader = make()
    assert len(loader) == 5
    epochs = [[row for batch in loader for row in batch["x"].tolist()] for _ in range(2)]
    for number, rows in enumerate(epochs):
        assert {row[0] for row in rows} == {number}
        assert len({row[1] for row in rows}) == len(rows) == 20
    assert [row[1] for row in epochs[0]] != [row[1] for row in epochs[1]]


@pytest.mark.parametrize("how", [{}, {"num_workers": 2}, {"threaded": True}])
@pytest.mark.parametrize("done", [0, 1, 4, 5, 8])
def test_resumes_with_the_very_next_batch(done: int, how: dict) -> None:
    whole = take(make(), 17)
    first = make(**how)
    assert take(first, done) == whole[:done]
    state = json.loads(json.dumps(first.state_dict()))
    second = make(**how)
    second.load_state_dict(state)
    assert take(second, 17 - done) == whole[done:]


def test_a_state_may_be_loaded_after_iteration_was_set_up() -> None:
    whole = take(make(), 9)
    first = make()
    take(first, 3)
    second = make()
    ahead = iter(second)
    second.load_state_dict(first.state_dict())
    assert [batch["x"].tolist() for batch in ahead] == whole[3:5]


def test_an_epoch_left_early_is_gone_on_with() -> None:
    loader = make()
    assert [*take(loader, 2), *take(loader, 5), *take(loader, 10)] == take(make(), 17)


def test_a_fixed_order_always_starts_over() -> None:
    loader = make(shuffle=False, drop_last=False)
    assert len(loader) == 6
    for count in (2, 6, 3):
        found = [[row[1] for row in batch] for batch in take(loader, count)]
        assert found == [list(range(23))[i : i + 4] for i in range(0, 4 * count, 4)]


def test_an_epoch_can_be_set() -> None:
    loader = make()
    loader.epoch = 2
    assert take(loader, 3) == take(make(), 13)[10:]


def on_ranks(monkeypatch: pytest.MonkeyPatch, size: int, **change) -> list[ResumableLoader]:
    """The loaders that `size` processes would make."""
    loaders = []
    for rank in range(size):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", str(size))
        loaders.append(make(**change))
    return loaders


@pytest.mark.parametrize("drop_last", [True, False])
def test_ranks_share_every_batch(drop_last: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = take(make(batch_size=6, drop_last=drop_last), 4)
    ranks = on_ranks(monkeypatch, 2, batch_size=6, drop_last=drop_last)
    shares = [take(loader, 4) for loader in ranks]
    assert {len(loader) for loader in ranks} == {3 if drop_last else 4}
    for whole, first, second in zip(alone, *shares, strict=True):
        assert (first, second) == (whole[::2], whole[1::2])


@pytest.mark.parametrize(
    ("size", "samples", "workers"),
    [(1, 23, 0), (1, 23, 2), (2, 23, 0), (2, 19, 2), (3, 22, 0), (6, 19, 0), (6, 24, 0)],
)
def test_each_sample_of_a_validation_counts_once(
    size: int, samples: int, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    change = {"batch_size": 6, "shuffle": False, "drop_last": False, "num_workers": workers}
    loaders = on_ranks(monkeypatch, size, samples=Noise(samples), **change)
    epochs = [list(loader) for loader in loaders]
    assert {len(batches) for batches in epochs} == {4}  # ranks make as many forward passes
    assert all(len(batch["x"]) for batches in epochs for batch in batches)
    counted = [
        int(row[1])
        for batches in epochs
        for batch in batches
        if not batch.get("void")
        for row in batch["x"].tolist()
    ]
    assert sorted(counted) == list(range(samples))


def test_a_batch_that_ranks_cannot_share_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"batch_size=5 cannot be shared evenly by 2 processes"):
        on_ranks(monkeypatch, 2, batch_size=5)
    assert [shareable(n) for n in (1, 2, 5)] == [2, 2, 4]


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1), (2, 4)])
def test_another_number_of_ranks_goes_on_where_they_stopped(
    before: int, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = take(make(batch_size=4), 17)
    first, *_ = on_ranks(monkeypatch, before, batch_size=4)
    take(first, 7)
    states = on_ranks(monkeypatch, after, batch_size=4)
    for loader in states:
        loader.load_state_dict(first.state_dict())
    for batch, *shares in zip(whole[7:], *(take(loader, 10) for loader in states), strict=True):
        assert [row for rows in zip(*shares, strict=True) for row in rows] == batch


def test_the_global_generator_is_left_alone() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    take(make(num_workers=2), 7)
    assert torch.equal(before, torch.get_rng_state())


def test_a_state_of_other_data_is_refused() -> None:
    state = make().state_dict()
    for change in ({"batch_size": 5}, {"samples": Noise(24)}, {"seed": 4}):
        with pytest.raises(UserError, match=rf"has {next(iter(change))}="):
            make(**change).load_state_dict(state)


def test_less_than_a_batch_is_refused() -> None:
    with pytest.raises(UserError, match=r"has 3 sequences, fewer than a batch of 4; lower data\."):
        make(samples=Noise(3))


def test_workers_of_a_collected_cycle_end_at_once() -> None:
    loader = make(num_workers=2)
    take(loader, 2)
    processes = loader._loader._iterator._workers  # type: ignore[union-attr]
    cycle = [loader]
    cycle.append(cycle)
    del loader, cycle
    began = time.monotonic()
    gc.collect()
    # torch waits 5 s for each worker that is not told to end, and then kills it.
    assert time.monotonic() - began < 5
    assert [process.exitcode for process in processes] == [0, 0]


@pytest.mark.parametrize("repeat", [False, True])
def test_an_epoch_of_fewer_batches_has_a_new_order_or_repeats_and_resumes_in_its_midst(
    repeat: bool,
) -> None:
    def limited() -> ResumableLoader:
        loader = make()
        loader.limit(3, repeat=repeat)
        return loader

    whole = take(limited(), 9)
    assert len(limited()) == 3
    assert whole[:3] == take(make(), 3)
    assert (whole[:3] == whole[3:6] == whole[6:]) == repeat
    for cut in range(1, 9):
        loader, again = limited(), limited()
        before = take(loader, cut)
        again.load_state_dict(loader.state_dict())
        assert before + take(again, 9 - cut) == whole


@pytest.mark.parametrize("size", [1, 2, 3, 17, 1000, 4097])
def test_every_position_is_taken_once(size: int) -> None:
    taken = Permutation(size, seed=3, epoch=1)(np.arange(size))
    assert sorted(taken.tolist()) == list(range(size))


def test_positions_are_permuted_one_by_one_as_all_together() -> None:
    permute = Permutation(1000, 0, 0)
    positions = np.array([7, 999, 0, 7])
    np.testing.assert_array_equal(permute(positions), permute(np.arange(1000))[positions])


def test_seed_epoch_and_index_give_other_orders() -> None:
    positions = np.arange(500)
    orders = [Permutation(500, *key)(positions) for key in ((0, 0), (1, 0), (0, 1), (0, 0, 1))]
    for i, one in enumerate(orders):
        for other in orders[:i]:
            assert (one == other).mean() < 0.02  # two random orders share 1 position of 500


def test_neighbours_are_spread_evenly() -> None:
    size = 1 << 14
    numbers = Permutation(size, 0, 0)(np.arange(size))
    means = numbers.reshape(16, -1).mean(1) / size
    assert abs(means - 0.5).max() < 0.05  # of 1,024 uniform numbers: 0.009 standard deviation
    assert abs(np.corrcoef(numbers[1:], numbers[:-1])[0, 1]) < 0.05


def test_memory_does_not_grow_with_the_samples() -> None:
    permute = order_of(1 << 40, 0, 0)
    numbers = permute(np.arange(1 << 20, (1 << 20) + 64))
    assert len(set(numbers.tolist())) == 64
    assert numbers.max() > 1 << 38


def test_small_data_keep_the_shuffled_array() -> None:
    expected = stream(Purpose.ORDER, 5, 2).permutation(np.arange(23))
    np.testing.assert_array_equal(order_of(23, 5, 2)(np.arange(23)), expected)


def test_a_loader_of_many_samples_resumes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "LARGEST_ARRAY", 10)
    whole = take(make(), 12)
    first = make()
    take(first, 7)
    second = make()
    second.load_state_dict(first.state_dict())
    assert take(second, 5) == whole[7:]
    assert sorted(row[1] for batch in whole[:5] for row in batch) != list(range(20))
    assert len({row[1] for batch in whole[:5] for row in batch}) == 20


def test_a_thread_hands_on_errors_and_ends_with_its_reader() -> None:
    def batches():
        yield {"x": 0}
        raise ValueError("no more")

    found = ahead(batches())
    assert next(found) == {"x": 0}
    with pytest.raises(ValueError, match="no more"):
        next(found)
    taken = []
    unfinished = ahead({"x": taken.append(n) or n} for n in itertools.count())
    assert [next(unfinished)["x"] for _ in range(3)] == [0, 1, 2]
    unfinished.close()
    assert len(taken) <= 3 + loading.AHEAD
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("batches")]


def test_streams_of_one_generator_are_those_of_many() -> None:
    streams = Streams(Purpose.MASK, 7)
    for epoch, index in ((0, 0), (3, 5), (1 << 62, 9), (0, 1 << 40)):
        one = stream(Purpose.MASK, 7, epoch, index)
        same = streams(epoch, index)
        assert one.permutation(99).tolist() == same.permutation(99).tolist()
        assert one.random(7).tolist() == same.random(7).tolist()
        same.integers(0, 9, 3, dtype=np.uint32)  # leaves half of a draw behind
