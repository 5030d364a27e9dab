"""Instructions with answers in Alpaca's format (SPEC D5; TPTT 5.1).

    ### Instruction: … ### Input: … ### Response: answer [SEP]

A record is `{"instruction", "input", "output"}`; `input` may be empty. Records are read from a JSON
file (a list, or one record per line) or a data set of the hub. Without either they are made from
the sources of Python's standard library, read with `ast`: the input is the signature of a function,
the answer the first sentence of its docstring. The hashes of the records divide them into train and
held-out ones. Does not import torch.
"""

# No `from __future__ import annotations`, as in `chimera.data.corpus.base`.

import ast
import hashlib
import json
import logging
import platform
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from chimera.data.corpus.base import Data, unfit
from chimera.data.corpus.pydocs import check_python_sources, standard_library
from chimera.data.source import cache, hub
from chimera.data.source.cache import file_fingerprint, fingerprint_of
from chimera.data.source.files import json_rows, text_in
from chimera.data.source.splits import Sources, Split
from chimera.errors import UserError
from chimera.safe_io import expanded
from chimera.types import PositiveInt

log = logging.getLogger("chimera")

_INSTEAD = "data.path=<a JSON file of records with instruction, input and output>"
#: Part of the cache's key; raise it when the records that are made of Python's sources change.
VERSION = ("signatures", 1, platform.python_version())
INSTRUCTION = "Say in one sentence what this Python function does."
_SKIPPED = {"tests", "test", "site-packages", "lib2to3", "idlelib", "pydoc_data", "turtledemo"}
_SENTENCE = re.compile(r"[A-Z][^\n]{20,200}?\.(?=\s|$)")


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
        pad_to: tokens of every sample: longer ones are cut, shorter ones padded, as TPTT's authors
            do at 384. Null cuts at seq_len and pads a batch to its longest sample.
    """

    batch_size: PositiveInt = 2
    path: str | None = None
    samples: PositiveInt = 500
    held_out: PositiveInt = 100
    pad_to: PositiveInt | None = None

    def check(self) -> None:
        """See `Data.check`."""
        if self.pad_to is not None and self.pad_to > self.seq_len:
            raise UserError(
                f"data.pad_to={self.pad_to} is more than data.seq_len={self.seq_len}; lower it"
            )
        if self.path is None:
            check_python_sources(f"give {_INSTEAD}")
        elif self._on_hub():
            hub.check_dataset(self.path, None, _INSTEAD)
        elif not expanded(self.path).is_file():
            raise UserError(f"data.path={self.path} does not exist; give {_INSTEAD}")

    def fingerprint(self) -> str:
        """Hash of the file; for the hub, of the name; without a path, of Python's version."""
        if self.path is None:
            source: object = VERSION
        elif self._on_hub():
            source = self.path
        else:
            source = file_fingerprint(expanded(self.path))
        return fingerprint_of("instruct", 1, source, self.samples, self.held_out)

    def sources(self) -> Sources:
        """Text of each record as one document, for learning a tokenizer."""
        return {s: [[r.prompt + r.answer for r in rs]] for s, rs in self.records().items()}

    def records(self) -> dict[Split, list[Record]]:
        """Records of each split.

        Raises:
            UserError: too few records, or a record without a needed text.
        """
        where = self.path or "Python's documentation"
        found = [_record(row, place) for place, row in self._rows()]
        by_digest = {_digest(record): record for record in found if record is not None}
        if blank := found.count(None):
            log.warning(
                "data: %s: %d records without instruction or output are left out", where, blank
            )
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

    def _rows(self) -> Iterator[tuple[str, Any]]:
        """Rows with their places, for messages."""
        if self._on_hub():
            rows = hub.load_splits(str(self.path), None, _INSTEAD).get("train", [])
            return ((f"{self.path}: record {n}", row) for n, row in enumerate(rows, 1))
        if self.path is not None:
            return json_rows(expanded(self.path))
        folder, _ = cache.entry(self.cache, "signatures", fingerprint_of(VERSION), _write_records)
        return json_rows(folder / "records.json")

    def _on_hub(self) -> bool:
        path = str(self.path)
        return hub.is_id(path) and not expanded(path).exists()


def check_instructions(corpus: object) -> None:
    """Refuse a corpus without instructions.

    Raises:
        UserError: with the choices of `data=` that have instructions.
    """
    if not hasattr(corpus, "records"):
        raise unfit("instruct", corpus, "instructions with answers", "data=instruct or data=alpaca")


def prompt(instruction: str, context: str = "") -> str:
    """Text before the answer, with the record's input as `context` if there is one."""
    middle = f"### Input:\n{context}\n\n" if context.strip() else ""
    return f"### Instruction:\n{instruction}\n\n{middle}### Response:\n"


def _record(row: Any, where: str) -> Record | None:
    """The record of a row; None if instruction or output are blank."""
    instruction, output = (text_in(row, key, where) for key in ("instruction", "output"))
    has_input = isinstance(row, dict) and row.get("input") is not None
    context = text_in(row, "input", where) if has_input else ""
    if not instruction.strip() or not output.strip():
        return None
    return Record(prompt(instruction, context), output.strip())


def _digest(record: Record) -> bytes:
    return hashlib.sha256("\0".join(record).encode()).digest()


def _write_records(folder: Path) -> dict[str, Any]:
    rows = list(_harvest())
    (folder / "records.json").write_text(json.dumps(rows, ensure_ascii=False), "utf-8")
    return {"records": len(rows)}


def _harvest() -> Iterator[dict[str, str]]:
    seen: set[str] = set()
    library = standard_library()
    for file in sorted(library.rglob("*.py")):
        inside = file.relative_to(library)
        if _SKIPPED & set(inside.parts):
            continue
        try:
            tree = ast.parse(file.read_bytes())
        except (SyntaxError, ValueError):  # templates, and tests of the parser
            continue
        module = ".".join(inside.with_suffix("").parts).removesuffix(".__init__")
        for name, function in _functions(tree, module):
            sentence = _SENTENCE.match(" ".join((ast.get_docstring(function) or "").split()))
            if sentence and sentence[0] not in seen:
                seen.add(sentence[0])
                signature = f"def {name}({ast.unparse(function.args)})"
                yield {"instruction": INSTRUCTION, "input": signature, "output": sentence[0]}


def _functions(
    scope: ast.AST, name: str
) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for node in ast.iter_child_nodes(scope):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if not node.name.startswith("_"):
                yield f"{name}.{node.name}", node
        elif isinstance(node, ast.ClassDef):
            yield from _functions(node, f"{name}.{node.name}")
