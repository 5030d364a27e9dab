"""A loader that can stop anywhere and go on with the very next batch, on any number of processes.

The order of an epoch is a function of (seed, epoch), and a sample of (epoch, index), so the whole
state is (epoch, samples handed out to all processes). Batches that workers prepared ahead do not
count. A batch of `batch_size` samples is shared evenly by the processes (`chimera.world`): rank r
of w takes every w-th sample from the r-th on, so the samples of a step do not depend on w.
Lightning saves and restores the state through `state_dict` and `load_state_dict`; as the loader has
a length, Lightning fetches no batch ahead itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol, Self, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import DataLoader, Sampler

from chimera import world
from chimera.data.batch.streams import Purpose, stream
from chimera.data.corpus.base import Data
from chimera.errors import UserError

Key = tuple[int, int]
Sample = TypeVar("Sample", covariant=True)
Batch = dict[str, Any]


class Samples(Protocol[Sample]):
    """Samples by (epoch, index); the same key always gives the same sample."""

    def __len__(self) -> int: ...

    def __getitem__(self, key: Key) -> Sample: ...


class ResumableLoader:
    """An iteration is an epoch, or what is left of one that was not finished.

    The stream of batches therefore does not depend on how often, and where, it is interrupted: not
    by a resume, nor by Lightning, which on resuming at the end of an epoch begins the next one
    twice. In a fixed order (validation, test) every iteration is a whole epoch instead.

    Args:
        samples: where samples come from.
        batch_size: samples per batch of all ranks together.
        collate: makes a batch of samples.
        seed: of the order.
        shuffle: a new order every epoch; otherwise the samples' own, always from the first.
        drop_last: leave out what does not fill a batch; otherwise the last batch is smaller, and
            ranks that have a sample less take one from the beginning.
        num_workers: processes that make batches.
        name: of the data, in errors.

    Raises:
        UserError: not enough samples for one batch, or a batch that ranks cannot share evenly.
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
        self.samples, self.batch_size, self.seed = samples, batch_size, seed
        self.shuffle, self.drop_last = shuffle, drop_last
        self.rank, self.world_size = world.rank(), world.world_size()
        if batch_size % self.world_size:
            raise UserError(
                f"data.batch_size={batch_size} cannot be shared evenly by {self.world_size}"
                f" processes; use a multiple of {self.world_size}"
            )
        self._epoch = self._handed_out = 0  # batches of this epoch
        if len(self) == 0:
            raise UserError(
                f"{name} has {len(samples)} sequences, fewer than a batch of"
                f" {batch_size}; lower data.batch_size or data.seq_len, or give"
                " more text"
            )
        self._plan = _Plan()
        self._loader: DataLoader[Any] = DataLoader(
            samples,  # type: ignore[arg-type]  # a map-style dataset, by keys of ours
            batch_sampler=self._plan,
            collate_fn=collate,
            num_workers=num_workers,
            persistent_workers=num_workers > 0,
            pin_memory=torch.cuda.is_available(),
            # Of its own: it would draw from torch's global one and so shift the model's dropout.
            generator=torch.Generator(),
        )

    @classmethod
    def of(
        cls,
        samples: Samples[Any],
        settings: Data,
        collate: Callable[[list[Any]], Batch],
        *,
        train: bool = False,
        seed: int = 0,
        name: str,
    ) -> Self:
        """A loader with the settings' batch size and workers.

        Args:
            samples, collate, seed, name: as of the constructor.
            settings: a choice of `data=`.
            train: shuffle and leave out the last, smaller batch; otherwise all in order.
        """
        return cls(
            samples,
            settings.batch_size,
            collate,
            seed=seed,
            shuffle=train,
            drop_last=train,
            num_workers=settings.num_workers,
            name=name,
        )

    @property
    def epoch(self) -> int:
        """The epoch that is under way or, before the first batch, comes."""
        return self._epoch

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self._epoch, self._handed_out = epoch, 0

    def __len__(self) -> int:
        """Batches of a whole epoch."""
        full, rest = divmod(len(self.samples), self.batch_size)
        return full + (rest > 0 and not self.drop_last)

    def __iter__(self) -> Iterator[Batch]:
        # A generator: nothing happens before the first batch is asked for, so that a state may
        # still be loaded after Lightning has called iter().
        if self._handed_out >= len(self):
            self.epoch += 1
        elif not self.shuffle:
            self._handed_out = 0
        self._plan.batches = self._batches()[self._handed_out :]
        for batch in self._loader:
            self._handed_out += 1
            yield batch

    def state_dict(self) -> dict[str, int]:
        """Epoch, samples of it that were handed out to all ranks, and what that depends on."""
        handed_out = min(self._handed_out * self.batch_size, len(self.samples))
        return {"epoch": self._epoch, "samples_handed_out": handed_out, **self._shape()}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on from where another loader of the same data was.

        The first release counted `handed_out` batches, of `batch_size` samples on each of
        `world_size` ranks.

        Raises:
            UserError: the data or the batch size is another one.
        """
        if "handed_out" in state:
            batch_size = state["batch_size"] * state["world_size"]
            samples = min(state["handed_out"] * batch_size, state["samples"])
            state = {**state, "batch_size": batch_size, "samples_handed_out": samples}
        for key, value in self._shape().items():
            if state[key] != value:
                raise UserError(
                    f"cannot resume: the checkpoint was made with {key}={state[key]} of the"
                    f" training data, now it is {value}; use the old setting or overwrite=true"
                )
        self._epoch = state["epoch"]
        self._handed_out = -(-state["samples_handed_out"] // self.batch_size)

    def _shape(self) -> dict[str, int]:
        return {
            "batch_size": self.batch_size,
            "samples": len(self.samples),
            "seed": self.seed,
        }

    def _share(self, epoch: int) -> list[int]:
        """Indices of this rank's samples, in order."""
        order = self._order(epoch)
        spare = len(order) % self.world_size
        if spare and not self.drop_last:
            order = np.append(order, np.resize(order, self.world_size - spare))
        return [int(index) for index in order[self.rank :: self.world_size]]

    def _order(self, epoch: int) -> npt.NDArray[np.int64]:
        """All samples in the order of an epoch, of all ranks together."""
        order = np.arange(len(self.samples))
        if self.shuffle:
            order = stream(Purpose.ORDER, self.seed, epoch).permutation(order)
        return order

    def _batches(self) -> list[list[Key]]:
        keys = [(self._epoch, index) for index in self._share(self._epoch)]
        size = self.batch_size // self.world_size
        starts = range(0, len(self) * size, size)
        return [keys[start : start + size] for start in starts]


def shareable(batch_size: int) -> int:
    """The largest batch of at most `batch_size` samples that all ranks can share evenly."""
    ranks = world.world_size()
    return max(1, batch_size // ranks) * ranks


class _Plan(Sampler[list[Key]]):
    """What the DataLoader is to fetch next; exchanged under it, as its workers live on."""

    def __init__(self) -> None:
        self.batches: list[list[Key]] = []

    def __iter__(self) -> Iterator[list[Key]]:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)
