"""Predict from the share of tokens that the two texts of an example have in common.

    s = |A ∩ B| / |A ∪ B|     A, B: the sets of token ids of the two texts (Jaccard 1901)

Models of pairs stand beside it: what a network does not add to the overlap it has not learned.
Does not import torch.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from chimera.data.encode.examples import Encoded
from chimera.data.tokenizer.base import Template

Shares = npt.NDArray[np.float64]


def shares(part: Encoded, template: Template) -> Shares:
    """The share of common tokens of each example, without the special ones of the template [n].

    NaN for an example with a single text.
    """
    start, middle, end = (len(ids) for ids in (template.start, template.middle, template.end))
    found = np.full(len(part), np.nan)
    for i, second in enumerate(part.seconds):
        row = part.row(i)
        if second > 0:
            b = set(row[len(row) - second : len(row) - end])
            a = set(row[start : len(row) - second - middle])
            found[i] = len(a & b) / max(1, len(a | b))
    return found


def predictions(part: Encoded, train: Encoded, template: Template, classes: int) -> Shares | None:
    """A prediction for each example of a part [n]; None unless all are pairs.

    A score is the share itself: correlations do not change with its unit. A class is the most
    frequent one of train on the example's side of a threshold, the one that is right most often on
    train (a decision stump; of equal ones the lowest).

    Args:
        part: to predict.
        train: with labels; unused for scores.
        template: of the tokenizer that encoded both.
        classes: number of classes; 0 for scores.
    """
    of_part = shares(part, template)
    if np.isnan(of_part).any():
        return None
    if not classes:
        return of_part
    of_train = shares(train, template)
    known = ~np.isnan(train.labels) & ~np.isnan(of_train)
    if not known.any():
        return None
    values, labels = of_train[known], train.labels[known].astype(np.int64)
    order = np.argsort(values, kind="stable")
    values, one_hot = values[order], np.eye(classes, dtype=np.int64)[labels[order]]
    below = np.vstack([np.zeros(classes, dtype=np.int64), one_hot.cumsum(axis=0)])
    above = below[-1] - below
    # Equal shares are on one side: a threshold lies before the first of them.
    first = np.concatenate([[True], values[1:] > values[:-1], [True]])
    right = np.where(first, below.max(axis=1) + above.max(axis=1), -1)
    at = int(right.argmax())
    limit = values[at] if at < len(values) else np.inf
    return np.where(of_part < limit, below[at].argmax(), above[at].argmax()).astype(np.float64)
