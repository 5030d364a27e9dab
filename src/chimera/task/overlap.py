"""Predict from the share of tokens that the two texts of an example have in common.

    s = |A ∩ B| / |A ∪ B|     A, B: the sets of token ids of the two texts (Jaccard 1901)

Models of pairs stand beside it: what a network does not add to the overlap it has not learned.
Does not import torch.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from chimera.data.encode.examples import Encoded
from chimera.data.tokenizer.base import Template

Shares = npt.NDArray[np.float64]
#: A prediction for each example of a part [n]; None unless all of them are pairs.
Predict = Callable[[Encoded], Shares | None]


def shares(part: Encoded, template: Template) -> Shares | None:
    """The share of common tokens of each example, without the special ones of the template [n].

    None unless all examples are pairs.
    """
    if (part.seconds <= 0).any():
        return None
    start, middle, end = (len(ids) for ids in (template.start, template.middle, template.end))
    found = np.empty(len(part))
    for i, second in enumerate(part.seconds):
        row = part.row(i)
        b = set(row[len(row) - second : len(row) - end])
        a = set(row[start : len(row) - second - middle])
        found[i] = len(a & b) / max(1, len(a | b))
    return found


def predictor(train: Encoded, template: Template, classes: int) -> Predict:
    """What predicts from the shares.

    A score is the share itself: correlations do not change with its unit. A class is the most
    frequent one of train on the example's side of a threshold, the one that is right most often on
    train (a decision stump; of equal ones the lowest).

    Args:
        train: with labels; unused for scores.
        template: of the tokenizer that encoded train and parts.
        classes: number of classes; 0 for scores.
    """
    if not classes:
        return lambda part: shares(part, template)
    of_train = shares(train, template)
    known = ~np.isnan(train.labels)
    if of_train is None or not known.any():
        return lambda part: None
    values = of_train[known]
    labels = train.labels[known].astype(np.int64)
    order = np.argsort(values, kind="stable")
    values = values[order]
    one_hot = np.eye(classes, dtype=np.int64)[labels[order]]
    below = np.vstack([np.zeros(classes, dtype=np.int64), one_hot.cumsum(axis=0)])
    above = below[-1] - below
    # Equal shares are on one side: a threshold lies before the first of them.
    first = np.concatenate([[True], values[1:] > values[:-1], [True]])
    at = int(np.where(first, below.max(axis=1) + above.max(axis=1), -1).argmax())
    limit = values[at] if at < len(values) else np.inf
    classes_of_sides = float(below[at].argmax()), float(above[at].argmax())

    def predict(part: Encoded) -> Shares | None:
        found = shares(part, template)
        return None if found is None else np.where(found < limit, *classes_of_sides)

    return predict
