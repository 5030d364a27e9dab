"""How MMLU is asked one-shot: prompts, what counts as right, means (SPEC D5, E4; TPTT 5.4).

Metrics of an answer against the gold one (lighteval, HELM):

    EM    the answer equals the gold                 PEM   the answer begins with the gold
    QEM   EM after both are normalised               PQEM  PEM after both are normalised

HELM's normalisation removes case, punctuation and articles. The gold «A» is an article, so it
becomes an empty text, with which every answer begins. So QEM and PQEM are computed twice: without
articles, as published, and with articles kept, where «A» stays a letter.

`Protocol` asks as the benchmark's authors did (arXiv 2009.03300). `Lighteval` is the task
`helm|mmlu|1|1` of lighteval 0.10, with which TPTT's Table 3 was made: its numbers are means over
subjects of ten questions each, and its deviations are means of the subjects' standard errors. With
57 subjects these are six to seven times the standard error of the mean.
"""

from __future__ import annotations

import random
import re
import string
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

LETTERS = ("A", "B", "C", "D")
METRICS = ("em", "pem", "qem", "pqem", "qem_articles_kept", "pqem_articles_kept")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")

#: Mean and deviation by metric.
Summary = dict[str, tuple[float, float]]


@dataclass(frozen=True)
class Question:
    """One question with four choices; `gold` is the letter of the correct choice."""

    subject: str
    text: str
    choices: tuple[str, ...]
    gold: str

    @property
    def head(self) -> str:
        """Introduction of a prompt."""
        subject = self.subject.replace("_", " ")
        return f"The following are multiple choice questions (with answers) about {subject}.\n\n"

    def as_text(self, *, solved: bool = False) -> str:
        """Text of the question, with the answer if `solved`, else ending before the answer."""
        choices = "".join(
            f"{letter}. {choice}\n" for letter, choice in zip(LETTERS, self.choices, strict=True)
        )
        return f"{self.text}\n{choices}Answer:" + (f" {self.gold}\n\n" if solved else "")


#: A question with the solved example that is shown before it.
Asked = tuple[Question, Question]


def normalise(text: str, *, keep_articles: bool = False) -> str:
    """Convert to lower case; remove punctuation, extra blanks and, unless kept, articles."""
    text = text.lower().translate(_PUNCTUATION)
    if not keep_articles:
        text = _ARTICLES.sub(" ", text)
    return " ".join(text.split())


class Protocol:
    """The benchmark's own: all questions, the first example, an answer of one line."""

    #: Tokens of an answer.
    new = 8
    #: Whether a prompt that is too long loses its example instead of its beginning.
    drops_example = False
    #: Whether a prompt has the chat template of the model's tokenizer, if that has one.
    chats = False

    def choose(
        self, questions: Sequence[Question], solved: Sequence[Question], limit: int | None
    ) -> list[Asked]:
        """The questions of a subject that are asked, each with an example.

        Args:
            questions: of the subject.
            solved: from which the example is taken.
            limit: number of questions; None for the protocol's own.
        """
        return [(question, solved[0]) for question in questions[:limit]]

    def prompt(self, question: Question, example: Question | None) -> str:
        """Introduction, a solved example, the question."""
        shown = example.as_text(solved=True) if example else ""
        return question.head + shown + question.as_text()

    def messages(self, question: Question, example: Question | None) -> list[dict[str, str]]:
        """The prompt as turns of a chat."""
        return [{"role": "user", "content": self.prompt(question, example)}]

    def said(self, text: str, *, chat: bool) -> str:
        """What counts of a generated text: its first line."""
        return text.strip().partition("\n")[0].strip()

    def score(self, gold: str, said: str) -> dict[str, float]:
        """Compute all metrics of one answer, each 0 or 1."""
        return score(gold, said)

    def summary(self, asked: Sequence[Asked], scores: Sequence[dict[str, float]]) -> Summary:
        """Mean and bootstrap standard deviation over all questions."""
        return summary(scores)


class Lighteval(Protocol):
    """lighteval's: ten questions a subject, «Question: », the chat template of the tokenizer."""

    new = 5
    drops_example = True
    chats = True
    questions = 10

    def choose(
        self, questions: Sequence[Question], solved: Sequence[Question], limit: int | None
    ) -> list[Asked]:
        """The first of the shuffled questions; the example is drawn by its answer."""
        order = list(questions)
        random.Random(42).shuffle(order)
        example = _balanced(solved)
        return [(question, example) for question in order[: limit or self.questions]]

    def messages(self, question: Question, example: Question | None) -> list[dict[str, str]]:
        """The example is a turn and its answer; the first turn begins with the introduction."""
        turns = [("user", _query(question))]
        if example:
            turns = [("user", _query(example)), ("assistant", f" {example.gold}"), *turns]
        turns[0] = ("user", question.head + turns[0][1])
        return [{"role": role, "content": text} for role, text in turns]

    def prompt(self, question: Question, example: Question | None) -> str:
        """The turns without a template."""
        *shown, last = (turn["content"] for turn in self.messages(question, example))
        return "\n\n".join(["".join(shown), last] if shown else [last])

    def said(self, text: str, *, chat: bool) -> str:
        """All of a chat's answer, else the text before the first line break, which may be none."""
        return text if chat else text.partition("\n")[0]

    def score(self, gold: str, said: str) -> dict[str, float]:
        """An empty answer is wrong; hyphens part words."""
        return score(gold, said, _words) if said else dict.fromkeys(METRICS, 0.0)

    def summary(self, asked: Sequence[Asked], scores: Sequence[dict[str, float]]) -> Summary:
        """Means over subjects, of their means and of the standard errors of these."""
        subjects = defaultdict(list)
        for (question, _), found in zip(asked, scores, strict=True):
            subjects[question.subject].append([found[name] for name in METRICS])
        values = [np.array(rows) for rows in subjects.values()]
        means = np.mean([rows.mean(0) for rows in values], 0)
        errors = [rows.std(0, ddof=1) / len(rows) ** 0.5 for rows in values if len(rows) > 1]
        spread = np.mean(errors, 0) if errors else np.zeros(len(METRICS))
        return {m: (float(a), float(b)) for m, a, b in zip(METRICS, means, spread, strict=True)}


#: By the key `mmlu_protocol`.
PROTOCOLS: dict[str | None, Protocol] = {None: Protocol(), "lighteval": Lighteval()}


def _query(question: Question) -> str:
    return f"Question: {question.as_text()}"


def _balanced(solved: Sequence[Question]) -> Question:
    """lighteval's «balanced» choice of one example, with its seed 0.

    Solved questions are grouped by the text of their answer; the largest group comes first, groups
    of one size in a random order.
    """
    groups = defaultdict(list)
    for question in solved:
        groups[question.choices[LETTERS.index(question.gold)]].append(question)
    sizes = defaultdict(list)
    for label in sorted(groups):
        sizes[len(groups[label])].append(label)
    rng = random.Random(0)
    order = []
    for size in sorted(sizes, reverse=True):
        rng.shuffle(sizes[size])
        order += sizes[size]
    first = groups[order[0]]
    return first[rng.randrange(len(first))]


def _words(text: str, *, keep_articles: bool = False) -> str:
    return normalise(text.replace("-", " "), keep_articles=keep_articles)


def score(gold: str, answer: str, normal: Callable[..., str] = normalise) -> dict[str, float]:
    """Compute all metrics of one answer, each 0 or 1; `normal` normalises as `normalise` does."""
    gold = gold.strip()
    answer = answer.strip()
    values = {"em": answer == gold, "pem": answer.startswith(gold)}
    for ending, keep in (("", False), ("_articles_kept", True)):
        g = normal(gold, keep_articles=keep)
        s = normal(answer, keep_articles=keep)
        values |= {f"qem{ending}": s == g, f"pqem{ending}": s.startswith(g)}
    return {name: float(values[name]) for name in METRICS}


def summary(scores: Sequence[dict[str, float]], *, resamples: int = 1000, seed: int = 0) -> Summary:
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
