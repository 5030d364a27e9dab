"""MMLU, one-shot, with generated answers (SPEC D5, E4; TPTT 5.4); `chimera mmlu` asks.

Questions (arXiv 2009.03300) are read from a folder with `dev/<subject>_dev.csv` and
`test/<subject>_test.csv` (no header; columns: question, four choices, letter) or from `cais/mmlu`
on the hub. The model answers greedily. `task.mmlu_protocol` has the prompts and metrics.

This file imports torch only to answer: mistakes in a command line are told at once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from chimera.data.corpus.instruct import Record
from chimera.data.source import hub
from chimera.data.source.files import read_rows
from chimera.data.tokenizer.base import Tokenizer
from chimera.errors import UserError, nearest
from chimera.safe_io import expanded
from chimera.task.mmlu_protocol import LETTERS, PROTOCOLS, Asked, Protocol, Question

HUB = "cais/mmlu"
_INSTEAD = "data=<a folder with dev/ and test/ of MMLU's CSV files>"


def read(
    data: str | None,
    split: str,
    subjects: Iterable[str] | None,
    limit: int | None,
    protocol: Protocol = PROTOCOLS[None],
) -> list[Asked]:
    """Read questions, each with a solved question of its subject.

    Args:
        data: a folder or `cais/mmlu`; None for the hub.
        split: val or test.
        subjects: names of subjects; None for all.
        limit: number of questions of each subject; None for that of the protocol.
        protocol: chooses questions and examples.

    Raises:
        UserError: no such folder or subject, a row that is not a question, an empty file, or a
            subject without a solved question.
    """
    on_hub = data is None or (hub.is_id(data) and not Path(data).is_dir())
    rows = _of_hub if on_hub else partial(_of_folder, expanded(str(data)))
    by_subject: dict[str, list[Question]] = {}
    for question in rows(split):
        by_subject.setdefault(question.subject, []).append(question)
    if not by_subject:
        raise UserError(f"data={data} holds no {split}/<subject>_{split}.csv; give {_INSTEAD}")
    solved: dict[str, list[Question]] = {}
    for question in rows("dev"):
        solved.setdefault(question.subject, []).append(question)
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
    return [
        asked for each in chosen for asked in protocol.choose(by_subject[each], solved[each], limit)
    ]


def _of_folder(folder: Path, part: str) -> list[Question]:
    found: dict[str, list[Question]] = {}
    for file in sorted((folder / part).glob("[!.]*")):
        if named := re.fullmatch(rf"(.+)_{part}\.csv(\.gz|\.zst)?", file.name, re.IGNORECASE):
            if named[1] in found:
                raise UserError(f"{file} is a second file of {named[1]}; remove one")
            rows = [row for _, row in read_rows(file)]
            if not rows:
                raise UserError(f"{file} is empty; remove it, or give its questions")
            found[named[1]] = [
                _question(f"{file}: row {n}", named[1], row[0], row[1:-1], row[-1].strip())
                for n, row in enumerate(rows, 1)
            ]
    return [question for questions in found.values() for question in questions]


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
    if not text.strip() or len(choices) != len(LETTERS) or gold not in LETTERS:
        letters = ", ".join(LETTERS)
        raise UserError(f"{where} is not a question, four choices and one of {letters}; correct it")
    return Question(subject, text.strip(), tuple(choices), gold)


def from_records(
    records: Sequence[Record], limit: int | None = None, protocol: Protocol = PROTOCOLS[None]
) -> list[Asked]:
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
    return protocol.choose(questions[:-1], questions[-1:], limit)


@dataclass(frozen=True)
class Answers:
    """A model's answers with their scores, in the order of the questions.

    Args:
        texts: the answers, what counts of them.
        scores: metrics of each answer.
        shortened: number of prompts that lost their beginning, or their example, to fit.
    """

    texts: list[str]
    scores: list[dict[str, float]]
    shortened: int


def prompt_length(model: Any, protocol: Protocol, trained: int) -> int:
    """Tokens of a prompt: as many as in training, or, as lighteval, all that the model can take."""
    config = getattr(getattr(model, "model", None), "config", None)
    positions = getattr(config, "max_position_embeddings", None) if protocol.drops_example else None
    return positions - protocol.new if positions else trained


def answer(
    model: Any,
    tokenizer: Tokenizer,
    questions: Sequence[Asked],
    *,
    start: Sequence[int],
    length: int,
    protocol: Protocol = PROTOCOLS[None],
    chat: Any = None,
    new: int | None = None,
    batch: int = 8,
) -> Answers:
    """Answer questions greedily and score the answers.

    Args:
        model: a causal language model of Chimera or of `chimera.model.hf`, in evaluation mode.
        tokenizer: of the model.
        questions: each with a solved example question.
        start: ids before a prompt, see `Tokenizer.opening`.
        length: largest number of tokens of a prompt.
        protocol: words of the prompts, and how answers count.
        chat: transformers' tokenizer of the model, if it has a template for `protocol.messages`.
        new: number of tokens of an answer; None for that of the protocol.
        batch: prompts per batch.
    """
    from chimera.model.decode import greedy

    def encode(asked: Sequence[tuple[Question, Question | None]]) -> list[list[int]]:
        if chat is None:
            found = tokenizer.encode([protocol.prompt(*one) for one in asked])
            return [[*start, *map(int, ids)] for ids in found]
        turns = [protocol.messages(*one) for one in asked]
        texts = chat.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        return list(chat(texts)["input_ids"])  # the template's first token may come twice, as there

    prompts = encode(questions)
    long = [i for i, ids in enumerate(prompts) if len(ids) > length]
    if protocol.drops_example and long:
        for i, ids in zip(long, encode([(questions[i][0], None) for i in long]), strict=True):
            prompts[i] = ids
    for i, ids in enumerate(prompts):
        if len(ids) > length:
            prompts[i] = [*start, *ids[len(start) - length :]]
    # Batches of prompts with similar lengths need less padding.
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    texts = [""] * len(prompts)
    ends = {"pad_id": tokenizer.pad_id, "end_id": tokenizer.sep_id}
    for first in range(0, len(order), batch):
        rows = order[first : first + batch]
        said = greedy(model, [prompts[i] for i in rows], max_new=new or protocol.new, **ends)
        for row, ids in zip(rows, said, strict=True):
            texts[row] = protocol.said(tokenizer.decode(ids), chat=chat is not None)
    pairs = zip(questions, texts, strict=True)
    return Answers(texts, [protocol.score(q.gold, text) for (q, _), text in pairs], len(long))
