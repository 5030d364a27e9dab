"""Questions of MMLU (arXiv 2009.03300) and how they are put, with one solved before them.

From a folder with `dev/<subject>_dev.csv` and `test/<subject>_test.csv` (no header: question, four
choices, the letter), or from the hub's `cais/mmlu`. Does not import torch.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chimera.data.corpus.instruct import Record
from chimera.data.source import hub
from chimera.errors import UserError, nearest

LETTERS = "ABCD"
HUB, _INSTEAD = "cais/mmlu", "data=<a folder with dev/ and test/ of MMLU's CSV files>"


@dataclass(frozen=True)
class Question:
    """One question; `gold` is its letter."""

    subject: str
    text: str
    choices: tuple[str, ...]
    gold: str

    def put(self, *, solved: bool = False) -> str:
        """As the model reads it, with its answer or ending where that is due."""
        choices = "".join(
            f"{letter}. {choice}\n" for letter, choice in zip(LETTERS, self.choices, strict=True)
        )
        return f"{self.text}\n{choices}Answer:" + (f" {self.gold}\n\n" if solved else "")


def prompt(question: Question, example: Question | None) -> str:
    """The benchmark's words, an example with its answer, the question."""
    subject = question.subject.replace("_", " ")
    head = f"The following are multiple choice questions (with answers) about {subject}.\n\n"
    return head + (example.put(solved=True) if example else "") + question.put()


def read(
    data: str | None, split: str, subjects: Iterable[str] | None, limit: int | None
) -> list[tuple[Question, Question | None]]:
    """Questions, each with the first solved one of its subject.

    Args:
        data: a folder; None for the hub.
        split: val or test.
        subjects: which; None for all there are.
        limit: the first few of each subject; None for all.

    Raises:
        UserError: no such folder, subject or row.
    """
    on_hub = data is None or (hub.is_id(data) and not Path(data).is_dir())
    by_subject, solved = _from_hub(split) if on_hub else _from_folder(Path(str(data)), split)
    wanted = list(subjects) if subjects is not None else sorted(by_subject)
    for subject in wanted:
        if subject not in by_subject:
            close = nearest(subject, by_subject)
            names = ", ".join(by_subject)
            raise UserError(f"subjects={subject} is not there{close}; one of {names}")
    return [
        (question, next(iter(solved.get(subject, [])), None))
        for subject in wanted
        for question in by_subject[subject][:limit]
    ]


def made_of(records: Sequence[Record]) -> list[tuple[Question, Question | None]]:
    """Questions where there is nothing: which of four answers belongs to a prompt, one solved.

    Of n records the i-th goes with the answers of the three after it; the gold letter turns.
    """
    questions = []
    for i, record in enumerate(records):
        others = [records[(i + j) % len(records)].answer for j in (1, 2, 3)]
        at = i % len(LETTERS)
        choices = (*others[:at], record.answer, *others[at:])
        questions.append(Question("answers", record.prompt.strip(), choices, LETTERS[at]))
    return [(question, questions[-1]) for question in questions[:-1]]


_Questions = dict[str, list[Question]]


def _from_folder(folder: Path, split: str) -> tuple[_Questions, _Questions]:
    parts = []
    for part in (split, "dev"):
        files = sorted((folder.expanduser() / part).glob(f"*_{part}.csv"))
        parts.append({f.name.removesuffix(f"_{part}.csv"): _read(f, part) for f in files})
    if not parts[0]:
        raise UserError(f"data={folder} holds no {split}/<subject>_{split}.csv; give {_INSTEAD}")
    return parts[0], parts[1]


def _read(file: Path, part: str) -> list[Question]:
    subject = file.name.removesuffix(f"_{part}.csv")
    rows = []
    with file.open(encoding="utf-8", newline="") as opened:
        for number, row in enumerate(csv.reader(opened), 1):
            if len(row) != 6 or row[5].strip() not in LETTERS:
                raise UserError(
                    f"{file}: row {number} is no question, four choices and one of {LETTERS}"
                )
            rows.append(Question(subject, row[0].strip(), tuple(row[1:5]), row[5].strip()))
    return rows


def _from_hub(split: str) -> tuple[_Questions, _Questions]:
    splits: dict[str, Any] = hub.load_splits(HUB, "all", _INSTEAD)
    parts: list[_Questions] = []
    for part in ({"val": "validation"}.get(split, split), "dev"):
        by_subject: _Questions = {}
        for row in splits[part]:
            one = Question(
                row["subject"],
                row["question"].strip(),
                tuple(row["choices"]),
                LETTERS[row["answer"]],
            )
            by_subject.setdefault(one.subject, []).append(one)
        parts.append(by_subject)
    return parts[0], parts[1]
