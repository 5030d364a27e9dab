"""Random command lines and damaged files: a result or one line, never a traceback or a hang."""

from __future__ import annotations

import gzip
import json
import os
import random
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow
import pytest

from chimera import dotted
from chimera.cli.main import main
from chimera.config.compose import compose, plain
from chimera.config.groups import groups
from tests.faults.kit import READERS, make, outcome, read
from tests.faults.test_inputs import LINES, TEXT, _home, mmlu, parquet, records, sst2, stsb  # noqa: F401

pytestmark = pytest.mark.slow
#: Command lines, and files, of one test.
SIZE = 50
ODD = ["0", "-1", "1e999", "nan", "null", "true", "", "[]", "{}", "{a:1}", "[1,2]", "x" * 300, "~"]
ODD += ["${oc.env:HOME}", "${optim.lr}", "\udcff", "'", "[" * 50, "../x", "/dev/null", "1e-3", "7"]
ODD += ["2024-13-45", "a b", "a=b", "\x1b[31m", "9" * 5000, "0x10", "1_000", "-0.0", "???", "é"]
FIRST = ["show", "show format=json", "train --cfg job", "train --info config"]


def typo(word: str, draw: random.Random) -> str:
    """The word, now and then with one letter gone, doubled or changed."""
    if draw.random() > 0.15:
        return word
    at = draw.randrange(len(word))
    return word[:at] + draw.choice(["", word[at] * 2, draw.choice("aeiou_.=-+~")]) + word[at + 1 :]


def command_line(draw: random.Random, keys: list[str]) -> list[str]:
    """Some groups with a choice and some keys with a value, from the configuration."""
    choices = {g: sorted(c) for g, c in groups().items() if c and "/" not in g}
    named = draw.sample(sorted(choices), draw.randrange(4))
    words = [f"{typo(g, draw)}={typo(draw.choice(choices[g]), draw)}" for g in named]
    for key in draw.sample(keys, draw.randrange(4)):
        value = draw.choice(ODD) if draw.random() < 0.8 else draw.choice(keys)
        words.append(f"{draw.choice(['', '', '', '+', '++', '~'])}{typo(key, draw)}={value}")
    draw.shuffle(words)
    return [*draw.choice(FIRST).split(), *words]


@pytest.mark.parametrize("seed", range(10))
def test_command_lines(seed: int) -> None:
    draw, wrong = random.Random(seed), list[str]()
    keys = sorted({key for key, _ in dotted.walk(plain(compose([])))})
    for _ in range(SIZE):
        argv = command_line(draw, keys)
        code, said = outcome(lambda argv=argv: main(argv), 60)
        errors = sum(text.startswith("error: ") for text in said.split("\n"))
        if code not in (0, 2) or errors != (code == 2) or "\x1b" in said:
            wrong.append(f"{code} {[word[:80] for word in argv]} {said[-600:]}")
    assert not wrong, "\n\n".join(wrong)
    assert os.listdir(".") == []


def sound(kind: str, name: str) -> dict[str, Any]:
    """The files of a sound folder of a kind."""
    folders = {"mmlu": mmlu("Is it?,a,b,c,d,A"), "sst2": sst2("so\t1\n"), "stsb": stsb("a,b,1\r\n")}
    if kind in folders:
        return {file: content.encode() for file, content in folders[kind].items()}
    if name.endswith(".parquet"):
        return {name: parquet(flip=False)}
    values = records() if kind == "instruct" else [{"text": text} for text in LINES]
    forms = {"txt": "\n\n".join(LINES), "json": json.dumps(values), "csv": "text\n" + TEXT}
    text = forms.get(name.split(".")[1], "\n".join(map(json.dumps, values))).encode()
    return {name: PACK.get(name[-3:], bytes)(text)}


PACK: dict[str, Any] = {".gz": gzip.compress, "zst": partial(pyarrow.compress, codec="zstd")}
TEXTS = "a.txt a.jsonl a.parquet a.txt.gz a.json.gz a.jsonl.zst a.json a.csv a.JSONL"
NAMES = {"text": TEXTS.split(), "instruct": ["a.json", "a.jsonl"], "prompts": ["a.txt"]}
PIECES = [b"\0", b"\\ud83d", b"\xff\xfe", b"1" * 5000, b"[" * 200_000, b'"', b"\n\n\n", b"null"]
PIECES += [b"x" * 140_000, b"\r", b"\t" * 9, b"{}", b"\xed\xa0\xbd", b"-1", b"NaN", b",,,,,,"]
PIECES += [text.encode() for text in ("\ufeff", "\u2028", "\u0085", "\x1b[31m")]


def damaged(content: bytes, draw: random.Random) -> bytes:
    """Bits flipped, an end cut off, something put in or taken out."""
    made = bytearray(content)
    for _ in range(draw.randrange(1, 4)):
        at = draw.randrange(len(made) + 1)
        until = at + draw.choice([0, 0, draw.randrange(200), len(made)])
        made[at:until] = draw.choice([b"", *PIECES]) if draw.random() < 0.7 else made[at:until]
        for place in draw.sample(range(len(made)), min(draw.choice([0, 8]), len(made))):
            made[place] ^= 1 << draw.randrange(8)
    return bytes(made)


@pytest.mark.parametrize("seed", range(4))
def test_damaged_files(seed: int, tmp_path: Path) -> None:
    draw, wrong = random.Random(seed), list[str]()
    for number in range(SIZE):
        kind = draw.choice([*READERS, "text", "text", "text", "instruct"])
        name = draw.choice(NAMES.get(kind, [""]))
        files = sound(kind, name)
        victim = draw.choice(sorted(files))
        files[victim] = damaged(files[victim], draw)
        if name and draw.random() < 0.2:
            files = {f"a{Path(draw.choice(NAMES['text'])).suffix}": files[victim]}
        place = make(tmp_path / f"in{number}", files)
        code, said, _ = read(kind, place / next(iter(files)) if name else place)
        if code not in (0, 2) or said.count("error: ") != (code == 2):
            wrong.append(f"{kind} {sorted(files)} {number}: {code} {said[-500:]}")
        assert {str(f.relative_to(place)) for f in place.rglob("*") if f.is_file()} == set(files)
    assert not wrong, "\n\n".join(wrong)
    assert os.listdir(".") == []
