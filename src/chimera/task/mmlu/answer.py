"""Generate a model's answers to MMLU's questions greedily, and score them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from chimera.data.tokenizer.base import Tokenizer
from chimera.model.decode import decode
from chimera.task.mmlu.metrics import score
from chimera.task.mmlu.questions import Question, prompt


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


@torch.inference_mode()
def answer(
    model: Any,
    tokenizer: Tokenizer,
    questions: Sequence[tuple[Question, Question | None]],
    *,
    length: int,
    new: int = 8,
    batch: int = 8,
) -> Answers:
    """Answer questions greedily and score the answers.

    Args:
        model: a causal language model of Chimera or of `chimera.model.hf`, in evaluation mode.
        tokenizer: of the model.
        questions: each with a solved example question, or None.
        length: largest number of tokens of a prompt.
        new: number of tokens of an answer.
        batch: prompts per batch.
    """
    start = list(tokenizer.template.start)
    prompts = [
        [*start, *map(int, ids)] for ids in tokenizer.encode([prompt(q, e) for q, e in questions])
    ]
    shortened = sum(len(ids) > length for ids in prompts)
    prompts = [
        [*start, *ids[len(start) - length :]] if len(ids) > length else ids for ids in prompts
    ]
    # Batches of prompts with similar lengths need less padding.
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    texts = [""] * len(prompts)
    for first in range(0, len(order), batch):
        rows = order[first : first + batch]
        for row, ids in zip(
            rows, greedy(model, [prompts[i] for i in rows], tokenizer, new), strict=True
        ):
            texts[row] = tokenizer.decode(ids).strip().partition("\n")[0].strip()
    scores = [score(q.gold, text) for (q, _), text in zip(questions, texts, strict=True)]
    return Answers(texts, scores, shortened)


def greedy(
    model: Any, prompts: Sequence[Sequence[int]], tokenizer: Tokenizer, new: int
) -> list[list[int]]:
    """Most likely continuation of each prompt, token by token, up to the end token.

    Args:
        model: as of `answer`.
        prompts: token ids.
        tokenizer: of the model.
        new: number of tokens.
    """
    end = tokenizer.sep_id
    tokens = decode(
        model,
        prompts,
        lambda logits: logits.argmax(-1),
        max_new=new,
        pad_id=tokenizer.pad_id,
        end_id=end,
    )
    rows = torch.stack(list(tokens), 1).tolist()
    return [row[: row.index(end)] if end in row else row for row in rows]
