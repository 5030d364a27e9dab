"""Unigram baseline: predict each token by its frequency in train.

p(w) = (count of w in train + 1) / (N + V),   perplexity = exp(−mean log p(target))
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

_AT_ONCE = 1 << 22


def unigram_perplexity(
    train_ids: npt.NDArray[np.integer], targets: npt.NDArray[np.integer], vocab_size: int
) -> float:
    """Perplexity of a unigram model with add-one smoothing.

    Args:
        train_ids: [N] ids from which frequencies are counted.
        targets: [n] ids to predict.
        vocab_size: V.
    """
    counts = np.zeros(vocab_size)
    for start in range(0, len(train_ids), _AT_ONCE):  # a mapped file may be larger than memory
        part = np.asarray(train_ids[start : start + _AT_ONCE], dtype=np.int64)
        counts += np.bincount(part, minlength=vocab_size)
    log_p = np.log(counts + 1) - math.log(len(train_ids) + vocab_size)
    return math.exp(-float(log_p[np.asarray(targets)].mean()))
