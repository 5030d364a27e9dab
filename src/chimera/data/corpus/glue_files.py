"""Rows of GLUE's files: TSV without quoting, CSV with it, one clear line for what is not right.

Many sentences hold a lone `"`, so a TSV file must be read without quoting; the CSV files (Spanish
STS-B) hold commas and do need it.
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
    """The examples of one file.

    Args:
        file: `.csv`, or anything else as TSV.
        spec: of the task.
        labelled: whether it must have labels; otherwise they are taken where there are any.

    Raises:
        UserError: no such column, a row that is too short, or a label that the task has not.
    """
    rows = _rows(file)
    names, first = _header(file, rows, spec)
    at = {name: number for number, name in enumerate(names)}
    one = _column(file, names, spec.first) or ""
    two = _column(file, names, spec.second) if spec.second else None
    label = _column(file, names, spec.label, needed=labelled)
    needed = 1 + max(at[name] for name in (one, two, label) if name)
    examples: list[Example] = []
    broken = 0
    for number, row in enumerate(rows[first:], first + 1):
        if len(row) < needed and spec.broken_rows:
            broken += 1
            continue
        if len(row) < needed:
            raise UserError(f"{file}: line {number} has {len(row)} fields, {needed} are needed")
        texts = row[at[one]], (row[at[two]] if two else None)
        value = parse_label(row[at[label]], spec, f"{file}: line {number}") if label else None
        examples.append(Example(*texts, value, _index(row, at, len(examples))))
    if broken:
        log.warning("data: %s: %d broken rows passed over", file, broken)
    if not examples:
        raise UserError(f"{file} holds no rows")
    return examples


def parse_label(value: Any, spec: Spec, where: str) -> float | int | None:
    """The number of a label, or a score; None for the −1 that the hub marks unlabelled rows with.

    Raises:
        UserError: naming `where`, the label, and those that there are.
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


def column(names: Sequence[str], wanted: Sequence[str]) -> str | None:
    """The first of the wanted names that there is."""
    return next((name for name in wanted if name in names), None)


def _rows(file: Path) -> list[list[str]]:
    text = read_text(file)
    if file.suffix == ".csv":
        return [row for row in csv.reader(io.StringIO(text, newline="")) if row]
    # Not splitlines: sentences hold other characters that count as line ends there.
    return [line.rstrip("\r").split("\t") for line in text.split("\n") if line.strip("\r")]


def _header(file: Path, rows: list[list[str]], spec: Spec) -> tuple[Sequence[str], int]:
    """Column names and where the data begin."""
    first = [name.strip() for name in rows[0]] if rows else []
    # Of two columns one may be missing: then the row still is a header, and its lack an error.
    if any(column(first, wanted) for wanted in (spec.first, spec.second, spec.label)):
        return first, 1
    if spec.columns and len(first) >= len(spec.columns):
        return spec.columns, 0
    raise UserError(f"{file} has no column {spec.first[0]}; its first row is {_shown(first)}")


def _column(
    file: Path, names: Sequence[str], wanted: Sequence[str], *, needed: bool = True
) -> str | None:
    name = column(names, wanted)
    if name is None and needed:
        raise UserError(f"{file} has no column {' or '.join(wanted)}; it has {_shown(names)}")
    return name


def _index(row: list[str], at: dict[str, int], default: int) -> int:
    text = row[at["index"]] if "index" in at else ""
    return int(text) if text.isdecimal() else default


def _shown(names: Sequence[str]) -> str:
    text = ", ".join(names)
    return text if len(text) < 200 else f"{text[:200]}…"


def parts_of_hub(rows: Any, spec: Spec, where: str) -> Iterator[Example]:
    """Examples of one split of a data set.

    Raises:
        UserError: a column that it lacks.
    """
    names = list(rows.column_names)
    wanted = [spec.first, *([spec.second] if spec.second else []), spec.label]
    columns = [column(names, choice) for choice in wanted]
    for name, choice in zip(columns, wanted, strict=True):
        if name is None:
            raise UserError(f"{where} has no column {' or '.join(choice)}; it has {_shown(names)}")
    one, label, two = columns[0], columns[-1], columns[1] if spec.second else None
    index = "idx" if "idx" in names else None
    for number, row in enumerate(rows):
        texts = row[one], (row[two] if two else None)
        value = parse_label(row[label], spec, f"{where}, row {number}")
        yield Example(*texts, value, row[index] if index else number)
