"""Read MMLU's questions (arXiv 2009.03300) and make one-shot prompts of them.

They are read from a folder with `dev/<subject>_dev.csv` and `test/<subject>_test.csv` (no header;
columns: question, four choices, letter) or from `cais/mmlu` on the hub. Does not import torch.
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
HUB = "cais/mmlu"
_INSTEAD = "data=<a folder with dev/ and test/ of MMLU's CSV files>"


@dataclass(frozen=True)
class Question:
    """One question with four choices; `gold` is the letter of the correct choice."""

    subject: str
    text: str
    choices: tuple[str, ...]
    gold: str

    def as_text(self, *, solved: bool = False) -> str:
        """Text of the question, with the answer if `solved`, else ending before the answer."""
        choices = "".join(
            f"{letter}. {choice}\n" for letter, choice in zip(LETTERS, self.choices, strict=True)
        )
        return f"{self.text}\n{choices}Answer:" + (f" {self.gold}\n\n" if solved else "")


def prompt(question: Question, example: Question | None) -> str:
    """Prompt of the benchmark: introduction, a solved example if there is one, the question."""
    subject = question.subject.replace("_", " ")
    head = f"The following are multiple choice questions (with answers) about {subject}.\n\n"
    return head + (example.as_text(solved=True) if example else "") + question.as_text()


def read(
    data: str | None, split: str, subjects: Iterable[str] | None, limit: int | None
) -> list[tuple[Question, Question | None]]:
    """Read questions, each with the first solved question of its subject.

    Args:
        data: a folder or `cais/mmlu`; None for the hub.
        split: val or test.
        subjects: names of subjects; None for all.
        limit: read only the first questions of each subject; None reads all.

    Raises:
        UserError: no such folder or subject, or a row that is not a question.
    """
    on_hub = data is None or (hub.is_id(data) and not Path(data).is_dir())
    by_subject, solved = _from_hub(split) if on_hub else _from_folder(Path(str(data)), split)
    chosen = list(subjects) if subjects is not None else sorted(by_subject)
    for subject in chosen:
        if subject not in by_subject:
            close = nearest(subject, by_subject)
            names = ", ".join(by_subject)
            raise UserError(f"subjects={subject} is not known{close}; choose from {names}")
    return [
        (question, next(iter(solved.get(subject, [])), None))
        for subject in chosen
        for question in by_subject[subject][:limit]
    ]


def from_records(records: Sequence[Record]) -> list[tuple[Question, Question | None]]:
    """Make questions from instructions: which of four answers belongs to a prompt?

    The wrong choices of the i-th record are the answers of the next three; the gold letter cycles
    through A to D. The last question is the solved example of the others.
    """
    questions = []
    for i, record in enumerate(records):
        wrong = [records[(i + j) % len(records)].answer for j in (1, 2, 3)]
        at = i % len(LETTERS)
        choices = (*wrong[:at], record.answer, *wrong[at:])
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
                    f"{file}: row {number} is not a question, four choices and one of {LETTERS};"
                    " correct it"
                )
            rows.append(Question(subject, row[0].strip(), tuple(row[1:5]), row[5].strip()))
    return rows


def _from_hub(split: str) -> tuple[_Questions, _Questions]:
    splits: dict[str, Any] = hub.load_splits(HUB, "all", _INSTEAD)
    parts: list[_Questions] = []
    for part in ({"val": "validation"}.get(split, split), "dev"):
        by_subject: _Questions = {}
        for row in splits[part]:
            question = Question(
                row["subject"],
                row["question"].strip(),
                tuple(row["choices"]),
                LETTERS[row["answer"]],
            )
            by_subject.setdefault(question.subject, []).append(question)
        parts.append(by_subject)
    return parts[0], parts[1]
