"""Base of the corpora: frozen dataclasses whose fields are the keys of `conf/data/<name>.yaml`."""

# No `from __future__ import annotations`: a dataclass that inherits these fields would resolve
# their types in its own module, where the names are not imported.

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from chimera.data.source.splits import Sources
from chimera.errors import UserError
from chimera.safe_io import expanded
from chimera.types import NonNegativeInt, PositiveInt


@dataclass(frozen=True, kw_only=True)
class Data:
    """A choice of `data=`: text that is divided into train, valid and test, and its settings.

    Args:
        batch_size: sequences per micro-batch, all processes together.
        seq_len: tokens per sequence.
        num_workers: number of processes that make batches; 0 makes them in the training process.
        cache_dir: folder of harvested text, tokenizers and token ids, shared by runs.
        max_bytes: approximate size of the text, all splits together; None uses all.
    """

    batch_size: PositiveInt = 16
    seq_len: PositiveInt = 128
    num_workers: NonNegativeInt = 0
    cache_dir: str = "~/.cache/chimera"
    max_bytes: PositiveInt | None = None

    @property
    def cache(self) -> Path:
        """`cache_dir` with `~` expanded."""
        return expanded(self.cache_dir)

    @property
    def where(self) -> str:
        """Where the text is from, for messages."""
        return "the data set"

    def check(self) -> None:
        """Check within milliseconds that the text is available.

        Raises:
            UserError: what is missing and what to do.
        """
        raise NotImplementedError

    def fingerprint(self) -> str:
        """Hash that changes when the text would; much cheaper than reading it."""
        raise NotImplementedError

    def sources(self) -> Sources:
        """Parts of the splits that the text has, in a fixed order; missing splits are made."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class PackedText(Data):
    """Text whose documents are packed one after the other.

    Args:
        boundaries: `reset` keeps documents apart: each is a row of its own, with empty states and
            position 0 at its start. `attention` does the same without rows of their own, for
            mixers that mask the other documents of a block. `none` lets blocks run on over the
            ends of documents.
    """

    boundaries: Literal["none", "attention", "reset"] = "none"


@dataclass(frozen=True, kw_only=True)
class StreamedText(PackedText):
    """Text that may be larger than memory.

    Args:
        deduplicate: keep only one of equal documents; test comes before valid and valid before
            train.
        processes: processes that read and encode text; None takes as many as there are cores.
    """

    deduplicate: bool = False
    processes: PositiveInt | None = None

    @property
    def variant(self) -> tuple[str, ...]:
        """Part of the fingerprint; empty for the defaults."""
        return ("once",) if self.deduplicate else ()


def unfit(task: str, corpus: object, needs: str, instead: str) -> UserError:
    """The error for a corpus that a task cannot use.

    Args:
        task: a choice of `task=`.
        corpus: a choice of `data=`.
        needs: what the task needs of the corpus.
        instead: choices of `data=` that have it.
    """
    name = type(corpus).__name__.lower()
    return UserError(f"task={task} needs {needs}, and data={name} has none; use {instead}")
