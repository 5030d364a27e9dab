"""Write a text as characters: `python tools/characters.py <text> <folder>`.

nanoGPT's split: the first nine tenths train, the rest validates; the test is the validation text.
Each part is one row of JSON, so that blank lines stay. The vocabulary has the form of GPT-2's
byte-level BPE, without merges: data=text data.path=<folder>/text tokenizer=gpt2
tokenizer.path=<folder>/characters reads both.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

#: How byte-level BPE spells a blank and the end of a line; other ASCII is spelt as it is.
SPELT = {" ": "Ġ", "\n": "Ċ"}


def main(text: str, folder: str) -> None:
    """Write `text/` and `characters/` into a folder.

    Raises:
        SystemExit: the text has characters of several bytes.
    """
    with Path(text).open(encoding="utf-8", newline="") as opened:
        whole = opened.read()
    if not whole.isascii():
        raise SystemExit(f"error: {text} has characters that are not ASCII")
    cut = int(0.9 * len(whole))
    parts = {"train": whole[:cut], "valid": whole[cut:], "test": whole[cut:]}
    rows, vocabulary = Path(folder) / "text", Path(folder) / "characters"
    for place in (rows, vocabulary):
        place.mkdir(parents=True, exist_ok=True)
    for name, part in parts.items():
        (rows / f"{name}.jsonl").write_text(json.dumps({"text": part}) + "\n", encoding="utf-8")
    spelt = ["<|endoftext|>", *(SPELT.get(one, one) for one in sorted(set(whole)))]
    ids = {piece: number for number, piece in enumerate(spelt)}
    (vocabulary / "vocab.json").write_text(json.dumps(ids), encoding="utf-8")
    (vocabulary / "merges.txt").write_text("#version: 0.2\n", encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit("error: python tools/characters.py <text> <folder>")
    main(*sys.argv[1:])
