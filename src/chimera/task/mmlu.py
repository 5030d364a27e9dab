"""MMLU, one-shot, with generated answers (SPEC D5, E4; TPTT 5.4); `chimera mmlu` asks.

Questions (arXiv 2009.03300) are read from a folder with `dev/<subject>_dev.csv` and
`test/<subject>_test.csv` (no header; columns: question, four choices, letter) or from `cais/mmlu`
on the hub. The model answers greedily; an answer ends with its first line. Metrics of an answer
against the gold one (lighteval, HELM):

    EM    the answer equals the gold                 PEM   the answer begins with the gold
    QEM   EM after both are normalised               PQEM  PEM after both are normalised

HELM's normalisation removes case, punctuation and articles. The gold «A» is an article, so it
becomes an empty text, with which every answer begins. So QEM and PQEM are computed twice: without
articles, as published, and with articles kept, where «A» stays a letter.

This file imports torch only to answer: mistakes in a command line are told at once.
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from chimera.data.corpus.instruct import Record
from chimera.data.source import hub
from chimera.data.source.files import read_rows
from chimera.data.tokenizer.base import Tokenizer
from chimera.errors import UserError, nearest

LETTERS = ("A", "B", "C", "D")
HUB = "cais/mmlu"
METRICS = ("em", "pem", "qem", "pqem", "qem_articles_kept", "pqem_articles_kept")
_INSTEAD = "data=<a folder with dev/ and test/ of MMLU's CSV files>"
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")


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


#: A question with the solved example that is shown before it.
Asked = tuple[Question, Question]


def prompt(question: Question, example: Question) -> str:
    """Prompt of the benchmark: introduction, a solved example, the question."""
    subject = question.subject.replace("_", " ")
    head = f"The following are multiple choice questions (with answers) about {subject}.\n\n"
    return head + example.as_text(solved=True) + question.as_text()


def read(
    data: str | None, split: str, subjects: Iterable[str] | None, limit: int | None
) -> list[Asked]:
    """Read questions, each with the first solved question of its subject.

    Args:
        data: a folder or `cais/mmlu`; None for the hub.
        split: val or test.
        subjects: names of subjects; None for all.
        limit: read only the first questions of each subject; None reads all.

    Raises:
        UserError: no such folder or subject, a row that is not a question, an empty file, or a
            subject without a solved question.
    """
    on_hub = data is None or (hub.is_id(data) and not Path(data).is_dir())
    rows = _of_hub if on_hub else partial(_of_folder, Path(str(data)).expanduser())
    by_subject: dict[str, list[Question]] = {}
    for question in rows(split):
        by_subject.setdefault(question.subject, []).append(question)
    if not by_subject:
        raise UserError(f"data={data} holds no {split}/<subject>_{split}.csv; give {_INSTEAD}")
    solved = {question.subject: question for question in reversed(rows("dev"))}
    chosen = list(subjects) if subjects is not None else sorted(by_subject)
    for subject in chosen:
        if subject not in by_subject:
            close = nearest(subject, by_subject)
            names = ", ".join(by_subject)
            raise UserError(f"subjects={subject} is not known{close}; choose from {names}")
        if subject not in solved:
            raise UserError(
                f"data={data} has no solved question of {subject}, with which each of its prompts"
                f" begins; add dev/{subject}_dev.csv"
            )
    return [(q, solved[q.subject]) for each in chosen for q in by_subject[each][:limit]]


def _of_folder(folder: Path, part: str) -> list[Question]:
    found = []
    end = f"_{part}.csv"
    for file in sorted((folder / part).glob("*")):
        if file.name.lower().endswith(end):
            rows = [row for _, row in read_rows(file)]
            if not rows:
                raise UserError(f"{file} is empty; remove it, or give its questions")
            for number, row in enumerate(rows, 1):
                where = f"{file}: row {number}"
                subject = file.name[: -len(end)]
                found.append(_question(where, subject, row[0], row[1:-1], row[-1].strip()))
    return found


def _of_hub(part: str) -> list[Question]:
    rows = hub.load_splits(HUB, "all", _INSTEAD)[{"val": "validation"}.get(part, part)]
    letters = dict(enumerate(LETTERS))
    return [
        _question(
            f"{HUB}: row {number} of {part}",
            row["subject"],
            row["question"],
            row["choices"],
            letters.get(row["answer"]),
        )
        for number, row in enumerate(rows, 1)
    ]


def _question(where: str, subject: str, text: str, choices: Sequence[str], gold: Any) -> Question:
    """The question of a row.

    Raises:
        UserError: it has not four choices, or another answer than their letters.
    """
    if len(choices) != len(LETTERS) or gold not in LETTERS:
        letters = ", ".join(LETTERS)
        raise UserError(f"{where} is not a question, four choices and one of {letters}; correct it")
    return Question(subject, text.strip(), tuple(choices), gold)


def from_records(records: Sequence[Record]) -> list[Asked]:
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


def normalise(text: str, *, keep_articles: bool = False) -> str:
    """Convert to lower case; remove punctuation, extra blanks and, unless kept, articles."""
    text = text.lower().translate(_PUNCTUATION)
    if not keep_articles:
        text = _ARTICLES.sub(" ", text)
    return " ".join(text.split())


def score(gold: str, answer: str) -> dict[str, float]:
    """Compute all metrics of one answer, each 0 or 1."""
    gold = gold.strip()
    answer = answer.strip()
    values = {"em": answer == gold, "pem": answer.startswith(gold)}
    for ending, keep in (("", False), ("_articles_kept", True)):
        g = normalise(gold, keep_articles=keep)
        s = normalise(answer, keep_articles=keep)
        values |= {f"qem{ending}": s == g, f"pqem{ending}": s.startswith(g)}
    return {name: float(values[name]) for name in METRICS}


def summary(
    scores: Sequence[dict[str, float]], *, resamples: int = 1000, seed: int = 0
) -> dict[str, tuple[float, float]]:
    """Mean and bootstrap standard deviation of each metric.

    Args:
        scores: metrics of each question.
        resamples: number of bootstrap samples, each as large as `scores`.
        seed: of the samples.
    """
    rng = np.random.default_rng(seed)
    values = np.array([[answer[name] for name in METRICS] for answer in scores])
    counts = rng.multinomial(len(values), np.full(len(values), 1 / len(values)), size=resamples)
    means = counts @ values / len(values)
    deviations = means.std(axis=0, ddof=1)
    return {
        name: (float(mean), float(deviation))
        for name, mean, deviation in zip(METRICS, values.mean(0), deviations, strict=True)
    }


@dataclass(frozen=True)
class Answers:
    """A model's answers with their scores, in the order of the questions.

    Args:
        texts: the answers, each up to the end of its first line.
        scores: metrics of each answer.
        shortened: number of prompts whose beginning was cut off to fit.
    """

    texts: list[str]
    scores: list[dict[str, float]]
    shortened: int


def answer(
    model: Any,
    tokenizer: Tokenizer,
    questions: Sequence[Asked],
    *,
    start: Sequence[int],
    length: int,
    new: int = 8,
    batch: int = 8,
) -> Answers:
    """Answer questions greedily and score the answers.

    Args:
        model: a causal language model of Chimera or of `chimera.model.hf`, in evaluation mode.
        tokenizer: of the model.
        questions: each with a solved example question.
        start: ids before a prompt, see `Tokenizer.opening`.
        length: largest number of tokens of a prompt.
        new: number of tokens of an answer.
        batch: prompts per batch.
    """
    from chimera.model.decode import greedy

    encoded = tokenizer.encode([prompt(question, example) for question, example in questions])
    whole = [list(map(int, ids)) for ids in encoded]
    prompts = [[*start, *ids[-(length - len(start)) :]] for ids in whole]
    # Batches of prompts with similar lengths need less padding.
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    texts = [""] * len(prompts)
    for first in range(0, len(order), batch):
        rows = order[first : first + batch]
        asked = [prompts[i] for i in rows]
        said = greedy(model, asked, max_new=new, pad_id=tokenizer.pad_id, end_id=tokenizer.sep_id)
        for row, ids in zip(rows, said, strict=True):
            texts[row] = tokenizer.decode(ids).strip().partition("\n")[0].strip()
    scores = [score(q.gold, text) for (q, _), text in zip(questions, texts, strict=True)]
    return Answers(texts, scores, sum(len(start) + len(ids) > length for ids in whole))
