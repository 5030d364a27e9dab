"""What the golden runs read, made anew in a folder: text, GLUE files, records, small HF models.

All names in command lines are relative to that folder, because a path is part of a run's identity.
"""

from __future__ import annotations

import json
import string
from pathlib import Path

from tokenizers.pre_tokenizers import ByteLevel

from tests.model.hf_folders import folder

#: Sentences by a fixed rule, nobody's prose.
TEXT = Path(__file__).with_name("text.txt")


def make(to: Path) -> Path:
    """Everything that a command line of `combinations` may name."""
    text = TEXT.read_text(encoding="utf-8")
    sentences = [part for line in text.splitlines() for part in line.split(". ") if part]
    records = [
        {"instruction": f"What is said {i}?", "input": sentences[i] * (i % 3 > 0), "output": said}
        for i, said in enumerate(sentences[:60])
    ]
    _write(to / "text.txt", text)
    _write(to / "records.json", json.dumps(records))
    _glue(to / "glue", sentences)
    words = sorted({word.strip(".,").lower() for word in text[:4000].split()})
    letters = [*string.ascii_lowercase, *"0123456789.,"]
    pieces = [
        *["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"],
        *letters,
        *(f"##{letter}" for letter in letters),
        *words,
    ]
    _write(to / "bert/vocab.txt", "\n".join(dict.fromkeys([*pieces, *words])) + "\n")
    pairs = ("t h", "th e", "i n", "a r", "e r", "Ġ the")
    rows = [*sorted(ByteLevel.alphabet()), *(pair.replace(" ", "") for pair in pairs)]
    numbered = {row: number for number, row in enumerate([*rows, "<|endoftext|>"])}
    _write(to / "gpt2/vocab.json", json.dumps(numbered))
    _write(to / "gpt2/merges.txt", "\n".join(["#version: 0.2", *pairs]) + "\n")
    for kind in ("bert", "llama"):
        folder(kind, to / "hf" / kind)
    return to


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")


def _glue(to: Path, sentences: list[str]) -> None:
    """CoLA, where a sentence is acceptable that has a comma, and STS-B with scores by length."""
    for part, some in (("train", sentences[:80]), ("dev", sentences[80:104])):
        rows = [f"gj04\t{int(',' in text)}\t\t{text}" for text in some]
        _write(to / f"CoLA/{part}.tsv", "\n".join(rows) + "\n")
        pairs = zip(some, reversed(some), strict=True)
        rows = [f"{i}\t{a}\t{b}\t{len(a) % 51 / 10}" for i, (a, b) in enumerate(pairs)]
        _write(to / f"STS-B/{part}.tsv", "\n".join(["index\tsentence1\tsentence2\tscore", *rows]))
    rows = [f"{i}\t{text}" for i, text in enumerate(sentences[104:111])]
    _write(to / "CoLA/test.tsv", "\n".join(["index\tsentence", *rows]) + "\n")
