"""Data loader that resumes at the next batch after any interruption, on any number of processes.

The order of an epoch is a function of (seed, epoch), and a sample is a function of (epoch, index).
So the complete state is (epoch, samples returned to all processes). Batches that workers have
prepared but the loader has not returned do not count. The processes (`chimera.world`) share a batch
of `batch_size` samples evenly: rank r of w takes every w-th sample, starting with the r-th, so the
samples of a step do not depend on w. Lightning saves and restores the state through `state_dict`
and `load_state_dict`. Because the loader has a length, Lightning itself prefetches no batch.

Random streams (`stream`) are functions of (purpose, seed, epoch, index). They are counter-based
(Philox 4×64, doi 10.1145/2063384.2063405): the key is (seed, epoch), the upper half of the counter
is (purpose, index), so streams do not overlap. A sample does not depend on the process that draws
it or on earlier draws: any worker or resumed run draws the same numbers.

Up to `LARGEST_ARRAY` samples the order of an epoch is a shuffled array. Above, it is a permutation
that is computed for the requested positions alone, so that memory does not grow with the data: a
Feistel network on the least even number of bits that holds all positions (Luby and Rackoff, doi
10.1137/0217022). A result that is no position is permuted again until it is one ("cycle walking":
Black and Rogaway, doi 10.1007/3-540-45760-7_9).
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import IntEnum
from functools import partial
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import DataLoader, Sampler

from chimera import world
from chimera.errors import UserError

#: Most samples whose order is an array: 32 MiB.
LARGEST_ARRAY = 1 << 22
#: Batches that a thread makes ahead.
AHEAD = 2
_ROUNDS = 8

Positions = npt.NDArray[np.int64]
#: Maps positions [n] in the epoch to numbers of samples [n].
Order = Callable[[Positions], Positions]


class Purpose(IntEnum):
    """Use of a stream; different uses share no random numbers."""

    ORDER = 0
    MASK = 1


def stream(purpose: Purpose, seed: int, epoch: int, index: int = 0) -> np.random.Generator:
    """Make the random generator of these four numbers, each at least 0."""
    key = np.array([seed, epoch], dtype=np.uint64)
    counter = np.array([0, 0, purpose, index], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=counter))


class Streams:
    """Streams of one purpose and seed, as `stream` makes them, in a tenth of the time.

    They share one generator: drawing from one ends the one before it.

    Args:
        purpose, seed: of the streams.
    """

    def __init__(self, purpose: Purpose, seed: int) -> None:
        self._generator = stream(purpose, seed, 0)
        self._start: Any = self._generator.bit_generator.state

    def __call__(self, epoch: int, index: int) -> np.random.Generator:
        """The stream of an epoch and an index."""
        self._start["state"]["key"][1] = epoch
        self._start["state"]["counter"][3] = index
        self._generator.bit_generator.state = self._start
        return self._generator


def order_of(samples: int, seed: int, epoch: int) -> Order:
    """Make the order of an epoch of `samples` samples."""
    if samples > LARGEST_ARRAY:
        return Permutation(samples, seed, epoch)
    shuffled: Positions = stream(Purpose.ORDER, seed, epoch).permutation(np.arange(samples))
    return shuffled.__getitem__


class Permutation:
    """Pseudo-random permutation of 0 … size − 1 without an array of that length.

    Args:
        size: number of positions, below 2⁶².
        seed, epoch, index: choose the permutation.
    """

    def __init__(self, size: int, seed: int, epoch: int, index: int = 0) -> None:
        self.size = size
        self.half = np.uint64(max(1, -(-(size - 1).bit_length() // 2)))  # bits of each half
        self.mask = np.uint64((1 << int(self.half)) - 1)
        numbers = stream(Purpose.ORDER, seed, epoch, index)
        self.keys = numbers.integers(0, 1 << 64, _ROUNDS, dtype=np.uint64)

    def __call__(self, positions: Positions) -> Positions:
        """Numbers [n] of the samples at positions [n]."""
        values = self._network(np.asarray(positions, dtype=np.uint64))
        while (outside := values >= self.size).any():
            values[outside] = self._network(values[outside])
        return values.astype(np.int64)

    def _network(self, values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        left = values >> self.half
        right = values & self.mask
        for key in self.keys:
            left, right = right, left ^ (_mixed(right + key) & self.mask)
        return (left << self.half) | right


def _mixed(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The finaliser of SplitMix64 (doi 10.1145/2714064.2660195)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


Key = tuple[int, int]
Sample = TypeVar("Sample", covariant=True)
Batch = dict[str, Any]


class Samples(Protocol[Sample]):
    """Samples by (epoch, index); the same key always gives the same sample."""

    def __len__(self) -> int: ...

    def __getitem__(self, key: Key) -> Sample: ...


class InOrder:
    """Samples of a sequence by (epoch, index); the same in all epochs."""

    def __init__(self, samples: Sequence[Any]) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, key: Key) -> Any:
        return self.samples[key[1]]


class ResumableLoader:
    """Loader of which an iteration returns one epoch, or the rest of an unfinished epoch.

    So interruptions do not change the stream of batches. This also holds when Lightning resumes at
    the end of an epoch and starts the next epoch twice. In a fixed order (validation, test) each
    iteration is a whole epoch instead.

    Args:
        samples: source of samples.
        batch_size: samples per batch, all ranks together.
        collate: makes a batch of samples.
        seed: of the order.
        shuffle: use a new order in each epoch; otherwise the order of `samples`, from the first.
        drop_last: leave out the last, incomplete batch; otherwise it is smaller. A rank without a
            share of it gets its first sample in a batch with `void`, of which nothing counts: all
            ranks have the same number of batches, and each sample counts once.
        num_workers: number of processes that make batches.
        name: of the data, for error messages.

    Raises:
        UserError: fewer samples than a batch, or a batch that the ranks cannot share evenly.
    """

    def __init__(
        self,
        samples: Samples[Any],
        batch_size: int,
        collate: Callable[[list[Any]], Batch],
        *,
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = True,
        num_workers: int = 0,
        name: str = "the training split",
    ) -> None:
        self.samples = samples
        self.batch_size = batch_size
        self.seed = seed
        self._collate = collate
        self.name = name
        self.shuffle = shuffle
        self.drop_last = drop_last
        self.rank = world.rank()
        self.world_size = world.world_size()
        if batch_size % self.world_size:
            raise UserError(
                f"data.batch_size={batch_size} cannot be shared evenly by {self.world_size}"
                f" processes; use a multiple of {self.world_size}"
            )
        self._epoch = self._returned = 0  # number of the epoch; batches of it that were returned
        self._limit: int | None = None  # batches of an epoch
        self._repeat = False
        if len(self) == 0:
            raise UserError(
                f"{name} has {len(samples)} sequences, fewer than a batch of"
                f" {batch_size}; lower data.batch_size or data.seq_len, or give"
                " more text"
            )
        self.threaded = torch.cuda.is_available() and num_workers == 0
        self._kept = False
        self._plan = _Plan()
        self._loader: DataLoader[Any] = DataLoader(
            samples,  # type: ignore[arg-type]  # a map-style data set whose keys are (epoch, index)
            batch_sampler=self._plan,
            collate_fn=collate,
            num_workers=num_workers,
            persistent_workers=num_workers > 0,
            pin_memory=torch.cuda.is_available(),
            # Without its own generator it would draw from torch's global one and change the model's
            # dropout.
            generator=torch.Generator(),
        )

    def undivided(self) -> ResumableLoader:
        """Loader of the same batches from the first, of which this process gets all samples."""
        loader = type(self)(
            self.samples,
            self.batch_size,
            self._collate,
            seed=self.seed,
            shuffle=self.shuffle,
            drop_last=self.drop_last,
            name=self.name,
        )
        loader.rank = 0
        loader.world_size = 1
        loader.limit(self._limit, repeat=self._repeat)
        return loader

    @property
    def epoch(self) -> int:
        """Number of the current epoch or, before its first batch, of the next one."""
        return self._epoch

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self._epoch = epoch
        self._returned = 0

    def __len__(self) -> int:
        """Number of batches of a whole epoch."""
        full, rest = divmod(len(self.samples), self.batch_size)
        batches = full + (rest > 0 and not self.drop_last)
        return batches if self._limit is None else min(self._limit, batches)

    def limit(self, batches: int | None, *, repeat: bool = False) -> None:
        """Make an epoch of fewer batches.

        Args:
            batches: of an epoch; None takes all.
            repeat: return the batches of epoch 0 in every epoch, the same samples in each.
        """
        self._limit = batches
        self._repeat = repeat

    def __iter__(self) -> Iterator[Batch]:
        # As a generator this runs only when the first batch is requested, so a state can still be
        # loaded after Lightning has called iter().
        if self._returned >= len(self):
            self.epoch += 1
        elif not self.shuffle:
            self._returned = 0
        self._plan.start(self._batches(0 if self._repeat else self._epoch, self._returned))
        batches: Iterator[Batch] = iter(self._loader)
        self._keep_queues(batches)
        if self.threaded:
            batches = ahead(batches)
        rest = len(self.samples) % self.batch_size
        for batch in batches:
            self._returned += 1
            if self._returned == len(self) and not self.drop_last and 0 < rest <= self.rank:
                batch["void"] = True
            yield batch

    def _keep_queues(self, batches: Any) -> None:
        """Keep the queues to the workers open until the workers are told to end.

        A garbage collection of a cycle (a Lightning Trainer is in one) finalizes the queues before
        torch's iterator. The iterator could then tell its workers nothing and would wait 5 s for
        each of them.
        """
        if not self._kept and (queues := list(getattr(batches, "_index_queues", ()))):
            self._kept = True
            weakref.finalize(self, queues.clear).atexit = False

    def state_dict(self) -> dict[str, int]:
        """Epoch, samples of it returned to all ranks, and settings on which the order depends."""
        samples = min(self._returned * self.batch_size, len(self.samples))
        return {"epoch": self._epoch, "samples_handed_out": samples, **self._shape()}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue from the state of another loader of the same data.

        Raises:
            UserError: the loaders differ in data, batch size or seed.
        """
        self.check_state(state)
        self._epoch = state["epoch"]
        self._returned = -(-state["samples_handed_out"] // self.batch_size)

    def check_state(self, state: dict[str, int]) -> None:
        """Refuse the state of a loader of other data, batch size or seed.

        Raises:
            UserError: naming what differs.
        """
        for key, value in self._shape().items():
            if state[key] != value:
                raise UserError(
                    f"cannot resume: the checkpoint has {key}={state[key]} for the training data,"
                    f" this run has {value}; use the old setting or overwrite=true"
                )

    def _shape(self) -> dict[str, int]:
        return {"batch_size": self.batch_size, "samples": len(self.samples), "seed": self.seed}

    def _order(self, epoch: int) -> Order:
        """Order of all samples in an epoch, all ranks together."""
        return order_of(len(self.samples), self.seed, epoch)

    def _batches(self, epoch: int, first: int) -> Iterator[list[Key]]:
        """Keys of this rank's share of each batch of an epoch, from batch `first` on."""
        size = self.batch_size
        last = len(self.samples)
        order = self._order(epoch) if self.shuffle else _same
        for start in range(first * size, len(self) * size, size):
            batch = order(np.arange(start, min(start + size, last)))
            own = batch[self.rank :: self.world_size]
            yield [(epoch, int(index)) for index in (own if len(own) else batch[:1])]


def ahead(batches: Iterator[Batch]) -> Iterator[Batch]:
    """The same batches, of which a thread makes the next ones meanwhile.

    A thread pays where the main one waits for a GPU; pinned memory is of the main one's device.
    """
    device = torch.cuda.current_device() if torch.cuda.is_available() else None
    known: Any = {} if device is None else {"initializer": partial(torch.cuda.set_device, device)}
    with ThreadPoolExecutor(1, "batches", **known) as thread:
        waiting = deque(thread.submit(next, batches, None) for _ in range(AHEAD))
        while (batch := waiting.popleft().result()) is not None:
            waiting.append(thread.submit(next, batches, None))
            yield batch


def _same(positions: Positions) -> Positions:
    return positions


def shareable(batch_size: int) -> int:
    """Largest batch size up to `batch_size` that the ranks share evenly; at least one per rank."""
    ranks = world.world_size()
    return max(1, batch_size // ranks) * ranks


class _Plan(Sampler[list[Key]]):
    """Batches that the DataLoader fetches next, made one by one.

    It is replaced for each epoch, while the DataLoader and its worker processes stay.
    """

    def __init__(self) -> None:
        self._batches: Iterator[list[Key]] = iter(())

    def start(self, batches: Iterator[list[Key]]) -> None:
        """Set the batches of the next iteration."""
        self._batches = batches

    def __iter__(self) -> Iterator[list[Key]]:
        return self._batches
