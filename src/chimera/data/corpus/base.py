"""Base of the corpora: frozen dataclasses whose fields are the keys of `conf/data/<name>.yaml`."""

# No `from __future__ import annotations`: a dataclass that inherits these fields would resolve
# their types in its own module, where the names are not imported.

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from chimera.data.source.splits import Splits
from chimera.types import NonNegativeInt, PositiveInt


@dataclass(frozen=True, kw_only=True)
class Data:
    """Settings of all choices of `data=`.

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
        return Path(self.cache_dir).expanduser()


class Corpus(Protocol):
    """Text divided into documents."""

    @property
    def cache(self) -> Path: ...

    def check(self) -> None:
        """Check within milliseconds that the text is available.

        Raises:
            UserError: what is missing and what to do.
        """

    def fingerprint(self) -> str:
        """Hash that changes when the result of `splits` would; much cheaper than reading them."""

    def splits(self) -> Splits:
        """Documents of each split, always the same in the same order."""
