"""Base of the corpora of labelled texts and pairs of texts (SPEC D2)."""

# No `from __future__ import annotations`, as in `chimera.data.corpus.base`.

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from chimera.data.corpus.base import Data, unfit
from chimera.data.source.splits import SHARES, Sources


class Example(NamedTuple):
    """A text or a pair of texts.

    `label` is a class, a score or None; `row` is the number of the example in a submission.
    """

    first: str
    second: str | None
    label: float | int | None
    row: int


#: Examples by part: train, valid, test, and further parts of a task.
Examples = dict[str, list[Example]]


@dataclass(frozen=True, kw_only=True)
class Labelled(Data):
    """A corpus of labelled examples; `sources` gives its texts without labels.

    Args:
        revision: of the batches. 1: an epoch leaves out random examples where its last batch is not
            whole. None: the longest ones, as in runs of before.
    """

    revision: Literal[1] | None = 1

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the classes in the order of their numbers; empty if labels are scores."""
        raise NotImplementedError

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the official metrics; their mean is the score of the task."""
        raise NotImplementedError

    @property
    def submission(self) -> dict[str, str]:
        """Part to the name of its file in a submission."""
        return {}

    def examples(self) -> Examples:
        """Examples of each part; all corpora have train and valid."""
        raise NotImplementedError

    def sources(self) -> Sources:
        """See `Data.sources`; each text of an example is a document."""
        examples = self.examples()
        return {
            split: [[t for e in examples[split] for t in (e.first, e.second) if t]]
            for split in SHARES
            if split in examples
        }


def evenly(examples: list[Example], max_bytes: int | None) -> list[Example]:
    """Take examples at equal distances, up to about `max_bytes` of text.

    Taking the first ones would not do: a file may be sorted by label.
    """
    size = sum(len(e.first.encode()) + len((e.second or "").encode()) for e in examples)
    if max_bytes is None or size <= max_bytes:
        return examples
    count = max(1, len(examples) * max_bytes // size)
    return [examples[i * len(examples) // count] for i in range(count)]


def check_labelled(corpus: object) -> Mapping[str, Any]:
    """Labels, metrics and submission files of a corpus, for a classification head.

    Raises:
        UserError: the corpus has no labels; the message lists those that have.
    """
    names = ("labels", "metrics", "submission")
    if not all(hasattr(corpus, name) for name in names):
        raise unfit(
            "glue", corpus, "labelled data", "data=glue, data=es_glue or data=acceptability"
        )
    return {name: getattr(corpus, name) for name in names}
