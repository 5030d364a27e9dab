"""Read the rows of GLUE's files: TSV without quoting, CSV with quoting.

Many sentences contain a single `"`, so TSV files must be read without quoting. The CSV files
(Spanish STS-B) contain commas inside quoted fields.
"""

from __future__ import annotations

import csv
import io
import logging
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from chimera.data.corpus.glue_tasks import HIGHEST, LOWEST, Spec
from chimera.data.corpus.labelled import Example
from chimera.data.source.files import read_text
from chimera.errors import UserError

log = logging.getLogger("chimera")


def read(file: Path, spec: Spec, *, labelled: bool) -> list[Example]:
    """Read the examples of one file.

    Args:
        file: `.csv`; any other suffix is read as TSV.
        spec: of the task.
        labelled: whether labels are required; if not, they are read where the file has them.

    Raises:
        UserError: a missing column, a row that is too short, a label that the task does not have.
    """
    rows = _rows(file)
    names, first = _header(file, rows, spec)
    at = {name: number for number, name in enumerate(names)}
    first_text = _column(file, names, spec.first) or ""
    second_text = _column(file, names, spec.second) if spec.second else None
    label = _column(file, names, spec.label, required=labelled)
    needed = 1 + max(at[name] for name in (first_text, second_text, label) if name)
    examples: list[Example] = []
    broken = 0
    for number, row in enumerate(rows[first:], first + 1):
        if len(row) < needed and spec.broken_rows:
            broken += 1
            continue
        if len(row) < needed:
            raise UserError(f"{file}: line {number} has {len(row)} fields, {needed} are needed")
        texts = row[at[first_text]], (row[at[second_text]] if second_text else None)
        value = parse_label(row[at[label]], spec, f"{file}: line {number}") if label else None
        examples.append(Example(*texts, value, _index(row, at, len(examples))))
    if broken:
        log.warning("data: %s: %d broken rows are skipped", file, broken)
    if not examples:
        raise UserError(f"{file} holds no rows")
    return examples


def parse_label(value: Any, spec: Spec, where: str) -> float | int | None:
    """Convert a label to its number or score; None for −1, the hub's mark of an unlabelled row.

    Args:
        value: label, as text or number.
        spec: of the task.
        where: file and line, for messages.

    Raises:
        UserError: the task has no such label; the message lists its labels.
    """
    text = str(value).strip()
    if spec.labels:
        if text in spec.labels:
            return spec.labels.index(text)
        if text == "-1":
            return None
        if text.isdecimal() and int(text) < len(spec.labels):
            return int(text)
        raise UserError(f"{where}: label '{text}' is none of {', '.join(spec.labels)}")
    try:
        score = float(text)
    except ValueError:
        score = math.nan
    if score == -1:
        return None
    if not LOWEST <= score <= HIGHEST:
        raise UserError(f"{where}: score '{text}' is no number from {LOWEST:g} to {HIGHEST:g}")
    return score


def column(names: Sequence[str], candidates: Sequence[str]) -> str | None:
    """First candidate that is among `names`; None if there is none."""
    return next((name for name in candidates if name in names), None)


def _rows(file: Path) -> list[list[str]]:
    text = read_text(file)
    if file.suffix == ".csv":
        return [row for row in csv.reader(io.StringIO(text, newline="")) if row]
    # Not splitlines, which also splits at other characters that sentences contain.
    return [line.rstrip("\r").split("\t") for line in text.split("\n") if line.strip("\r")]


def _header(file: Path, rows: list[list[str]], spec: Spec) -> tuple[Sequence[str], int]:
    """Column names, and the index of the first row of data."""
    first = [name.strip() for name in rows[0]] if rows else []
    # One known name suffices for a header; `_column` then reports a missing column.
    if any(column(first, candidates) for candidates in (spec.first, spec.second, spec.label)):
        return first, 1
    if spec.columns and len(first) >= len(spec.columns):
        return spec.columns, 0
    raise UserError(f"{file} has no column {spec.first[0]}; its first row is {_shown(first)}")


def _column(
    file: Path, names: Sequence[str], candidates: Sequence[str], *, required: bool = True
) -> str | None:
    name = column(names, candidates)
    if name is None and required:
        raise UserError(f"{file} has no column {' or '.join(candidates)}; it has {_shown(names)}")
    return name


def _index(row: list[str], at: dict[str, int], default: int) -> int:
    text = row[at["index"]] if "index" in at else ""
    return int(text) if text.isdecimal() else default


def _shown(names: Sequence[str]) -> str:
    text = ", ".join(names)
    return text if len(text) < 200 else f"{text[:200]}…"


def parts_of_hub(rows: Any, spec: Spec, where: str) -> Iterator[Example]:
    """Examples of one split of a data set on the hub.

    Args:
        rows: the split, of the library datasets.
        spec: of the task.
        where: name of the split, for messages.

    Raises:
        UserError: a missing column, a label that the task does not have.
    """
    names = list(rows.column_names)
    required = [spec.first, *([spec.second] if spec.second else []), spec.label]
    columns = [column(names, candidates) for candidates in required]
    for name, candidates in zip(columns, required, strict=True):
        if name is None:
            raise UserError(
                f"{where} has no column {' or '.join(candidates)}; it has {_shown(names)}"
            )
    first_text = columns[0]
    label = columns[-1]
    second_text = columns[1] if spec.second else None
    index = "idx" if "idx" in names else None
    for number, row in enumerate(rows):
        texts = row[first_text], (row[second_text] if second_text else None)
        value = parse_label(row[label], spec, f"{where}, row {number}")
        yield Example(*texts, value, row[index] if index else number)
