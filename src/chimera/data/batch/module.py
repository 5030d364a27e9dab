"""Base of the data modules, which make loaders of train, validation and test from a corpus.

Each kind of batch has a subclass. A module works with and without a Lightning Trainer. It prepares
tokenizer and ids at the first use:

    for batch in CausalDataModule(PyDocs(), SentencePiece()).train_dataloader(): ...

The loaders are `ResumableLoader`s. Lightning saves and restores their state with the fit loop.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import lightning.pytorch as pl

from chimera.data.batch.loader import Batch, ResumableLoader, Samples, shareable
from chimera.data.encode.prepare import Prepared, prepare
from chimera.data.source.splits import Split
from chimera.data.tokenizer.base import TokenizerSettings

#: Samples and the collation that makes a batch of them.
Loadable = tuple[Samples[Any], Callable[[list[Any]], Batch]]


def real_tokens(batch: Batch) -> int:
    """Number of tokens of a batch that are no padding."""
    mask = batch.get("mask")
    return batch["ids"].numel() if mask is None else int(mask.sum())


class DataModule(pl.LightningDataModule):
    """Loaders of one corpus. Each loader is made once; all requests return the same object.

    Args:
        corpus: a choice of `data=`: text, batch size and sequence length.
        tokenizer: a choice of `tokenizer=`.
        seed: of the order of the training examples.
        prepared: tokenizer and splits to use instead of preparing them from the corpus.
    """

    #: Makes the batches of train.
    train_loader: type[ResumableLoader] = ResumableLoader

    def __init__(
        self,
        corpus: Any,
        tokenizer: TokenizerSettings,
        seed: int = 0,
        *,
        prepared: Prepared | None = None,
    ) -> None:
        super().__init__()
        self.corpus = corpus
        self.tokenizer_settings = tokenizer
        self.seed = seed
        self.test_file: Path | None = None
        self._prepared = prepared
        self._loaders: dict[Split, ResumableLoader] = {}

    @property
    def prepared(self) -> Prepared:
        """Tokenizer, splits and report; prepared, or read from the cache, at the first access."""
        if self._prepared is None:
            self._prepared = self._prepare()
        return self._prepared

    def prepare_data(self) -> None:
        """Fill the cache; Lightning calls this in one process before `setup` in all processes."""
        if self.test_file is None:
            _ = self.prepared

    def setup(self, stage: str | None = None) -> None:
        """Make the loaders of a stage: fit, validate or test; None makes all.

        Raises:
            UserError: a split has less than a batch, or data that the task cannot use.
        """
        splits: dict[str | None, tuple[Split, ...]] = {
            "fit": ("train", "valid"),
            "validate": ("valid",),
            "test": ("test",),
            None: ("train", "valid", "test"),
        }
        for split in splits.get(stage, ()):
            self._loader(split)

    def train_dataloader(self) -> ResumableLoader:
        """Loader of shuffled whole batches."""
        return self._loader("train")

    def val_dataloader(self) -> ResumableLoader:
        """Loader of the whole valid split in a fixed order."""
        return self._loader("valid")

    def test_dataloader(self) -> ResumableLoader:
        """Loader of the whole test split, or of the file given to `load_test`, in a fixed order."""
        return self._loader("test")

    def save_test(self, file: Path) -> None:
        """Write the test set to a file, so that the test can be repeated without the corpus."""
        raise NotImplementedError

    def load_test(self, file: Path) -> None:
        """Use the test set of a file that `save_test` wrote, without the corpus."""
        self.test_file = file
        self._loaders.pop("test", None)

    def lengthened(self, length: int) -> Self:
        """Same data in sequences of `length` tokens, with about as many tokens per batch."""
        tokens = self.corpus.batch_size * self.corpus.seq_len
        batch_size = shareable(max(1, tokens // length))
        data = copy.copy(self)
        data.corpus = replace(self.corpus, seq_len=length, batch_size=batch_size)
        data._loaders = {}
        return data

    def on_before_batch_transfer(self, batch: Batch, dataloader_idx: int) -> Batch:
        """Count the batch's real tokens, while its mask is on the host; Lightning calls this."""
        return {**batch, "tokens": real_tokens(batch)}

    def _prepare(self) -> Prepared:
        return prepare(self.corpus, self.tokenizer_settings)

    @property
    def boundaries(self) -> str:
        """`data.boundaries`; data sets of single texts have no such key."""
        return str(getattr(self.corpus, "boundaries", "none"))

    def _samples(self, split: Split) -> Loadable:
        """Samples of a split and their collation."""
        raise NotImplementedError

    def _stored(self, file: Path) -> Loadable:
        """Samples of a file that `save_test` wrote, and their collation."""
        raise NotImplementedError

    def _loader(self, split: Split) -> ResumableLoader:
        if split not in self._loaders:
            train = split == "train"
            file = self.test_file if split == "test" else None
            samples, collate = self._samples(split) if file is None else self._stored(file)
            self._loaders[split] = (self.train_loader if train else ResumableLoader)(
                samples,
                self.corpus.batch_size,
                collate,
                seed=self.seed,
                shuffle=train,
                drop_last=train,
                num_workers=self.corpus.num_workers,
                name=f"the {split} split" if file is None else str(file),
            )
        return self._loaders[split]
