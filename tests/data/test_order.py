"""The order of an epoch: a permutation, with and without an array."""

import numpy as np
import pytest

from chimera.data.batch import order
from chimera.data.batch.order import Permutation, Purpose, order_of, stream
from tests.data.test_loader import make, take


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
    monkeypatch.setattr(order, "LARGEST_ARRAY", 10)
    whole = take(make(), 12)
    first = make()
    take(first, 7)
    second = make()
    second.load_state_dict(first.state_dict())
    assert take(second, 5) == whole[7:]
    assert sorted(row[1] for batch in whole[:5] for row in batch) != list(range(20))
    assert len({row[1] for batch in whole[:5] for row in batch}) == 20
