"""Instructions with answers in Alpaca's format (SPEC D5; TPTT 5.1).

    ### Instruction: … ### Input: … ### Response: answer [SEP]

A record is `{"instruction", "input", "output"}`; `input` may be empty. Records are read from a JSON
file (a list, or one record per line) or a data set of the hub. Without either they are made from
Python's documentation: the input is the signature of a function, the answer the first sentence of
its docstring. The hashes of the records divide them into train and held-out ones. Does not import
torch.
"""

# No `from __future__ import annotations`, as in `chimera.data.corpus.base`.

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from chimera.data.corpus import signatures
from chimera.data.corpus.base import Data
from chimera.data.source import hub
from chimera.data.source.files import read_text
from chimera.data.source.fingerprint import file_fingerprint, fingerprint_of
from chimera.data.source.splits import Split, Splits
from chimera.errors import UserError
from chimera.types import PositiveInt

_INSTEAD = "data.path=<a JSON file of records with instruction, input and output>"
_KEYS = ("instruction", "output")


class Record(NamedTuple):
    """The model's input, and the answer that it learns."""

    prompt: str
    answer: str


@dataclass(frozen=True, kw_only=True)
class Instruct(Data):
    """Instructions and answers.

    Args:
        path: a `.json` or `.jsonl` file, or `owner/name` of a data set on the hub; null makes
            records from Python's documentation.
        samples: number of training records.
        held_out: number of validation records and number of test records; each at most a tenth of
            all.
    """

    batch_size: PositiveInt = 2
    path: str | None = None
    samples: PositiveInt = 500
    held_out: PositiveInt = 100

    def check(self) -> None:
        """See `Corpus.check`."""
        if self.path is None:
            signatures.check(_INSTEAD)
        elif self._on_hub():
            hub.check_dataset(self.path, None, _INSTEAD)
        elif not Path(self.path).expanduser().is_file():
            raise UserError(f"data.path={self.path} does not exist; give {_INSTEAD}")

    def fingerprint(self) -> str:
        """Hash of the file; for the hub, of the name; without a path, of Python's version."""
        if self.path is None:
            source: object = signatures.VERSION
        elif self._on_hub():
            source = self.path
        else:
            source = file_fingerprint(Path(self.path).expanduser())
        return fingerprint_of("instruct", 1, source, self.samples, self.held_out)

    def splits(self) -> Splits:
        """Text of each record as one document, for learning a tokenizer."""
        return {s: [r.prompt + r.answer for r in rs] for s, rs in self.records().items()}

    def records(self) -> dict[Split, list[Record]]:
        """Records of each split.

        Raises:
            UserError: too few records, or a record without a needed key.
        """
        where = self.path or "Python's documentation"
        by_digest = {_digest(r): r for r in map(_record, _checked(where, self._rows())) if r.answer}
        ordered = [by_digest[key] for key in sorted(by_digest)]
        held_out = min(self.held_out, len(ordered) // 10)
        if not held_out:
            raise UserError(
                f"data.path={where} has {len(ordered)} records with an answer; give at least 10"
            )
        return {
            "train": ordered[2 * held_out : 2 * held_out + self.samples],
            "valid": ordered[:held_out],
            "test": ordered[held_out : 2 * held_out],
        }

    def _rows(self) -> Iterable[dict[str, Any]]:
        if self.path is None:
            return signatures.records(self.cache)
        if self._on_hub():
            return hub.load_splits(str(self.path), None, _INSTEAD).get("train", [])
        return json_rows(Path(self.path).expanduser())

    def _on_hub(self) -> bool:
        path = str(self.path)
        return hub.is_id(path) and not Path(path).expanduser().exists()


def check_instructions(corpus: object) -> None:
    """Refuse a corpus without instructions.

    Raises:
        UserError: with the choices of `data=` that have instructions.
    """
    if not hasattr(corpus, "records"):
        name = type(corpus).__name__.lower()
        raise UserError(
            f"task=instruct needs instructions with answers, and data={name} has none; use"
            " data=instruct or data=alpaca"
        )


def prompt(instruction: str, context: str = "") -> str:
    """Text before the answer, with the record's input as `context` if there is one."""
    middle = f"### Input:\n{context}\n\n" if context.strip() else ""
    return f"### Instruction:\n{instruction}\n\n{middle}### Response:\n"


def json_rows(file: Path) -> list[dict[str, Any]]:
    """Read records from a JSON list or a file with one record per line.

    Raises:
        UserError: the file is neither.
    """
    text = read_text(file).strip()
    try:
        if text.startswith("["):
            rows = json.loads(text)
        else:
            rows = [json.loads(line) for line in text.splitlines() if line.strip()]
    except json.JSONDecodeError as error:
        raise UserError(
            f"data.path={file} is not JSON at line {error.lineno} ({error.msg}); it takes a list"
            " of records, or one record per line"
        ) from error
    return list(rows)


def _checked(where: str, rows: Iterable[Any]) -> Iterable[dict[str, str]]:
    for number, row in enumerate(rows, 1):
        keys = list(row) if isinstance(row, dict) else []
        missing = [key for key in _KEYS if not isinstance(row, dict) or key not in row]
        if missing:
            raise UserError(
                f"data.path={where}: record {number} has no {' and no '.join(missing)}"
                f" (it has {', '.join(keys) or 'no keys'})"
            )
        yield row


def _record(row: dict[str, str]) -> Record:
    return Record(prompt(row["instruction"], row.get("input") or ""), row["output"].strip())


def _digest(record: Record) -> bytes:
    return hashlib.sha256("\0".join(record).encode()).digest()
