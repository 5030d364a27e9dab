"""How an answer is held against the right one (SPEC E4; TPTT 5.4, after lighteval and HELM).

    EM    the answer is the gold                     PEM   it begins with the gold
    QEM   so does it, both normalised                PQEM  it begins so, both normalised

«Partial» is the beginning, not any part. HELM normalises by taking out case, punctuation and
articles, and the gold «A» is an article: of it nothing is left, and every answer begins with
nothing. So QEM and PQEM come in two ways, with articles taken out, as published, and with articles
kept, where «A» stays a letter. Does not import torch.
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
    """Lower case, no punctuation, single blanks, and no articles unless they are kept."""
    text = text.lower().translate(_PUNCTUATION)
    if not keep_articles:
        text = _ARTICLES.sub(" ", text)
    return " ".join(text.split())


def score(gold: str, answer: str) -> dict[str, float]:
    """All metrics of one answer, each 0 or 1."""
    gold, answer = gold.strip(), answer.strip()
    values = {"em": answer == gold, "pem": answer.startswith(gold)}
    for ending, keep in (("", False), ("_articles_kept", True)):
        g, s = normalise(gold, keep_articles=keep), normalise(answer, keep_articles=keep)
        values |= {f"qem{ending}": s == g, f"pqem{ending}": s.startswith(g)}
    return {name: float(values[name]) for name in METRICS}


def summary(
    scores: Sequence[dict[str, float]], *, resamples: int = 1000, seed: int = 0
) -> dict[str, tuple[float, float]]:
    """Mean and bootstrap deviation of each metric.

    Args:
        scores: of each question.
        resamples: draws of as many questions, with replacement.
        seed: of the draws.
    """
    rng = np.random.default_rng(seed)
    values = np.array([[one[name] for name in METRICS] for one in scores])
    counts = rng.multinomial(len(values), np.full(len(values), 1 / len(values)), size=resamples)
    means = counts @ values / len(values)
    deviations = means.std(axis=0, ddof=1)
    return {
        name: (float(mean), float(deviation))
        for name, mean, deviation in zip(METRICS, values.mean(0), deviations, strict=True)
    }
