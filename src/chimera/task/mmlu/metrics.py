"""Exact-match metrics of an answer against the gold answer (SPEC E4; TPTT 5.4; lighteval, HELM).

    EM    the answer equals the gold                 PEM   the answer begins with the gold
    QEM   EM after both are normalised               PQEM  PEM after both are normalised

HELM's normalisation removes case, punctuation and articles. The gold «A» is an article, so it
becomes an empty text, with which every answer begins. So QEM and PQEM are computed twice: without
articles, as published, and with articles kept, where «A» stays a letter. Does not import torch.
"""

from __future__ import annotations

import re
import string
from collections.abc import Sequence

import numpy as np

METRICS = ("em", "pem", "qem", "pqem", "qem_articles_kept", "pqem_articles_kept")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")


def normalise(text: str, *, keep_articles: bool = False) -> str:
    """Convert to lower case; remove punctuation, extra blanks and, unless kept, articles."""
    text = text.lower().translate(_PUNCTUATION)
    if not keep_articles:
        text = _ARTICLES.sub(" ", text)
    return " ".join(text.split())


def score(gold: str, answer: str) -> dict[str, float]:
    """Compute all metrics of one answer, each 0 or 1."""
    gold = gold.strip()
    answer = answer.strip()
    values = {"em": answer == gold, "pem": answer.startswith(gold)}
    for ending, keep in (("", False), ("_articles_kept", True)):
        g = normalise(gold, keep_articles=keep)
        s = normalise(answer, keep_articles=keep)
        values |= {f"qem{ending}": s == g, f"pqem{ending}": s.startswith(g)}
    return {name: float(values[name]) for name in METRICS}


def summary(
    scores: Sequence[dict[str, float]], *, resamples: int = 1000, seed: int = 0
) -> dict[str, tuple[float, float]]:
    """Mean and bootstrap standard deviation of each metric.

    Args:
        scores: metrics of each question.
        resamples: number of bootstrap samples, each as large as `scores`.
        seed: of the samples.
    """
    rng = np.random.default_rng(seed)
    values = np.array([[answer[name] for name in METRICS] for answer in scores])
    counts = rng.multinomial(len(values), np.full(len(values), 1 / len(values)), size=resamples)
    means = counts @ values / len(values)
    deviations = means.std(axis=0, ddof=1)
    return {
        name: (float(mean), float(deviation))
        for name, mean, deviation in zip(METRICS, values.mean(0), deviations, strict=True)
    }
