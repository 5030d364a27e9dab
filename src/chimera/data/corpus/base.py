"""What a corpus is: a frozen dataclass whose fields are the keys of `conf/data/<name>.yaml`."""

# Without `from __future__ import annotations`: dataclasses that inherit these fields would look
# the names of their types up in modules of their own.

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from chimera.data.source.splits import Splits
from chimera.types import NonNegativeInt, PositiveInt


@dataclass(frozen=True, kw_only=True)
class Data:
    """Settings that every choice of `data=` has.

    Args:
        batch_size: sequences per micro-batch, of all processes together.
        seq_len: tokens per sequence.
        num_workers: processes that make batches; 0 makes them in the training process.
        cache_dir: where downloads, tokenizers and token ids are kept between runs.
        max_bytes: about how much text is used, over all splits; None uses all.
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
    """Text in documents."""

    @property
    def cache(self) -> Path: ...

    def check(self) -> None:
        """Refuse a text that is missing, within milliseconds.

        Raises:
            UserError: what is missing and what to do.
        """

    def fingerprint(self) -> str:
        """A hash that changes whenever `splits` would; much cheaper than reading them."""

    def splits(self) -> Splits:
        """The documents of each split, always the same ones in the same order."""
