"""Write small folders in GLUE's layout with invented rows, and build a tokenizer of whole words."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from chimera.data.tokenizer.base import Tokenizer
from chimera.data.tokenizer.word import Words

WORDS = ["the", "a", "cat", "dog", "sees", "likes", "big", "red", "one", "house", "tree", "and"]
WORDS += ["under", "runs", "sleeps"]


def sentence(rng: np.random.Generator, least: int = 3, most: int = 12) -> str:
    return " ".join(rng.choice(WORDS, rng.integers(least, most)))


def tokenizer(**settings: int) -> Tokenizer:
    return Words(**settings).build([" ".join(WORDS)])  # type: ignore[arg-type]


def _write(place: Path, parts: dict[str, list[str]], head: str = "") -> None:
    """Write each part's rows below the head of its columns."""
    place.mkdir(parents=True)
    for part, rows in parts.items():
        (place / f"{part}.tsv").write_text("\n".join([head, *rows] if head else rows) + "\n")


def cola(folder: Path, rows: int = 80) -> Path:
    """Write CoLA to `folder`; sentences with «cat» are acceptable. Returns `folder`."""
    rng = np.random.default_rng(0)
    parts = {}
    for part, count in (("train", rows), ("dev", rows // 4)):
        texts = [sentence(rng) for _ in range(count)]
        parts[part] = [f'gj04\t{int("cat" in text)}\t\t{text} "' for text in texts]
    parts["test"] = ["index\tsentence", *(f"{i}\t{sentence(rng)}" for i in range(7))]
    _write(folder / "CoLA", parts)
    return folder


def stsb(folder: Path, rows: int = 60) -> Path:
    """Write STS-B to `folder`, without a test part. Returns `folder`."""
    rng = np.random.default_rng(1)
    parts = {
        part: [
            f"{i}\t{sentence(rng)}\t{sentence(rng)}\t{rng.random() * 5:.3f}" for i in range(count)
        ]
        for part, count in (("train", rows), ("dev", rows // 4))
    }
    _write(folder / "STS-B", parts, "index\tsentence1\tsentence2\tscore")
    return folder


def mnli(folder: Path, rows: int = 60) -> Path:
    """Write MNLI to `folder`, with two dev parts and two test parts. Returns `folder`."""
    rng = np.random.default_rng(2)
    labels = ("entailment", "neutral", "contradiction")
    counts = {"train": rows, "dev_matched": 9, "dev_mismatched": 6}
    counts |= {"test_matched": 5, "test_mismatched": 4}
    parts: dict[str, list[str]] = {}
    for part, count in counts.items():
        pairs = [f"{i}\t{sentence(rng)}\t{sentence(rng)}" for i in range(count)]
        labelled = [f"{pair}\t{labels[i % 3]}" for i, pair in enumerate(pairs)]
        test = part.startswith("test")
        parts[part] = ["index\tsentence1\tsentence2" + "\tgold_label" * (not test)]
        parts[part] += pairs if test else labelled
    _write(folder / "MNLI", parts)
    return folder
