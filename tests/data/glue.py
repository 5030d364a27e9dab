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


def cola(folder: Path, rows: int = 80) -> Path:
    """Write CoLA to `folder`; sentences with «cat» are acceptable. Returns `folder`."""
    rng = np.random.default_rng(0)
    place = folder / "CoLA"
    place.mkdir(parents=True)
    for part, count in (("train", rows), ("dev", rows // 4)):
        lines = []
        for _ in range(count):
            text = sentence(rng)
            lines.append(f'gj04\t{int("cat" in text)}\t\t{text} "')
        (place / f"{part}.tsv").write_text("\n".join(lines) + "\n")
    tests = [f"{i}\t{sentence(rng)}" for i in range(7)]
    (place / "test.tsv").write_text("\n".join(["index\tsentence", *tests]) + "\n")
    return folder


def stsb(folder: Path, rows: int = 60) -> Path:
    """Write STS-B to `folder`, without a test part. Returns `folder`."""
    rng = np.random.default_rng(1)
    place = folder / "STS-B"
    place.mkdir(parents=True)
    for part, count in (("train", rows), ("dev", rows // 4)):
        head = "index\tsentence1\tsentence2\tscore"
        lines = [
            f"{i}\t{sentence(rng)}\t{sentence(rng)}\t{rng.random() * 5:.3f}" for i in range(count)
        ]
        (place / f"{part}.tsv").write_text("\n".join([head, *lines]) + "\n")
    return folder


def mnli(folder: Path, rows: int = 60) -> Path:
    """Write MNLI to `folder`, with two dev parts and two test parts. Returns `folder`."""
    rng = np.random.default_rng(2)
    labels = ("entailment", "neutral", "contradiction")
    place = folder / "MNLI"
    place.mkdir(parents=True)
    parts = {"train": rows, "dev_matched": 9, "dev_mismatched": 6}
    for part, count in parts.items():
        lines = [f"{i}\t{sentence(rng)}\t{sentence(rng)}\t{labels[i % 3]}" for i in range(count)]
        head = "index\tsentence1\tsentence2\tgold_label"
        (place / f"{part}.tsv").write_text("\n".join([head, *lines]) + "\n")
    for part, count in {"test_matched": 5, "test_mismatched": 4}.items():
        lines = [f"{i}\t{sentence(rng)}\t{sentence(rng)}" for i in range(count)]
        (place / f"{part}.tsv").write_text(
            "\n".join(["index\tsentence1\tsentence2", *lines]) + "\n"
        )
    return folder
