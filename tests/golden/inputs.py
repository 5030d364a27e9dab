"""What the golden runs read, made anew in a folder: text, GLUE files, records, small HF models.

All names in command lines are relative to that folder, because a path is part of a run's identity.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

from tests.golden.story import FILE, SIZE, Draws, records, sentence, story


def make(to: Path) -> Path:
    """Everything that a command line of `combinations` may name."""
    to.mkdir(parents=True, exist_ok=True)
    (to / "text.txt").write_bytes(FILE.read_bytes())
    (to / "records.json").write_text(json.dumps(records(60)), encoding="utf-8")
    _glue(to / "glue")
    _vocabularies(to / "bert", to / "gpt2")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from tests.model.hf_folders import folder

    for kind in ("bert", "llama"):
        folder(kind, to / "hf" / kind)
    return to


def digest(folder: Path) -> str:
    """Of all files below a folder: what a cached result is good for."""
    whole = hashlib.sha256()
    for file in sorted(p for p in folder.rglob("*") if p.is_file()):
        whole.update(f"{file.relative_to(folder)}\0".encode())
        whole.update(hashlib.sha256(file.read_bytes()).digest())
    return whole.hexdigest()[:16]


def _glue(to: Path) -> None:
    """CoLA, where a sentence is acceptable that has a comma, and STS-B with scores of chance."""
    draws = Draws(2)
    cola, stsb = to / "CoLA", to / "STS-B"
    for place in (cola, stsb):
        place.mkdir(parents=True, exist_ok=True)
    for part, count in (("train", 80), ("dev", 24)):
        texts = [sentence(draws) for _ in range(count)]
        rows = [f"gj04\t{int(',' in text)}\t\t{text}" for text in texts]
        (cola / f"{part}.tsv").write_text("\n".join(rows) + "\n", encoding="utf-8")
        rows = ["index\tsentence1\tsentence2\tscore"]
        for number, text in enumerate(texts):
            rows.append(f"{number}\t{text}\t{sentence(draws)}\t{draws.below(51) / 10}")
        (stsb / f"{part}.tsv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    tests = [f"{number}\t{sentence(draws)}" for number in range(7)]
    text = "\n".join(["index\tsentence", *tests]) + "\n"
    (cola / "test.tsv").write_text(text, encoding="utf-8")


def _vocabularies(bert: Path, gpt2: Path) -> None:
    """Those of `tokenizer=bert` and `tokenizer=gpt2`, as small as can be."""
    from tokenizers.pre_tokenizers import ByteLevel

    for place in (bert, gpt2):
        place.mkdir(parents=True, exist_ok=True)
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)] + list("0123456789.,")
    words = sorted({word.strip(".,").lower() for word in story(4000).split()})
    rows = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters]
    rows += [f"##{letter}" for letter in letters] + [word for word in words if len(word) > 2]
    (bert / "vocab.txt").write_text("\n".join(dict.fromkeys(rows)) + "\n", encoding="utf-8")
    pairs = ("t h", "th e", "i n", "a r", "e r", "Ġ the")
    rows = [*sorted(ByteLevel.alphabet()), *(pair.replace(" ", "") for pair in pairs)]
    rows.append("<|endoftext|>")
    numbered = {row: number for number, row in enumerate(rows)}
    (gpt2 / "vocab.json").write_text(json.dumps(numbered), encoding="utf-8")
    (gpt2 / "merges.txt").write_text("\n".join(["#version: 0.2", *pairs]) + "\n", encoding="utf-8")


def text_is_what_the_rule_gives() -> bool:
    """Whether `text.txt` is still what `story` writes here."""
    return FILE.read_text(encoding="utf-8") == story(SIZE)
