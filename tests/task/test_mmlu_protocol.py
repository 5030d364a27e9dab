"""MMLU as lighteval asks it: questions, example, prompt, answer, errors.

Orders and examples below were printed by lighteval 0.10's own `PromptManager`, whose prompts equal
ours on all questions of `helm|mmlu|1|1` that were at hand (360, of 57 subjects).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
import yaml

from chimera.cli.finished import mmlu
from chimera.config.compose import compose, plain
from chimera.data.tokenizer.own import Own, from_transformers
from chimera.task.instruct import Instruct
from chimera.task.mmlu import answer, from_records, prompt_length
from chimera.task.mmlu_protocol import METRICS, PROTOCOLS, Question
from tests.kit import QUIET
from tests.task import kit
from tests.task.test_instruct import SHAPE

LIGHTEVAL = PROTOCOLS["lighteval"]
HEAD = "The following are multiple choice questions (with answers) about fine art.\n\n"


def question(text: str, gold: str, first: str = "w") -> Question:
    return Question("fine_art", text, (first, "x", "y", "z"), gold)


ASKED = [question(f"q{i}", "ABCD"[i % 4]) for i in range(12)]


def solved(*answers: str) -> list[Question]:
    return [question(f"s{i}", "A", answer) for i, answer in enumerate(answers)]


def test_the_questions_and_examples_are_lightevals() -> None:
    asked = LIGHTEVAL.choose(ASKED, solved("one", "two", "one", "three", "two"), None)
    assert [q.text for q, _ in asked] == [f"q{i}" for i in (7, 5, 2, 8, 9, 6, 11, 3, 4, 0)]
    assert {example.text for _, example in asked} == {"s2"}
    other = LIGHTEVAL.choose(ASKED, solved("e", "d", "c", "b", "a"), 3)
    assert [(q.text, e.text) for q, e in other] == [("q7", "s2"), ("q5", "s2"), ("q2", "s2")]
    assert [q.text for q, _ in PROTOCOLS[None].choose(ASKED, solved("e"), 2)] == ["q0", "q1"]


def test_the_prompt_is_lightevals() -> None:
    example, asked = question("s", "C"), question("q", "B")
    text = "Question: {}\nA. w\nB. x\nC. y\nD. z\nAnswer:"
    shown, last = (text.format(name) for name in "sq")
    assert LIGHTEVAL.prompt(asked, example) == f"{HEAD}{shown} C\n\n{last}"
    assert LIGHTEVAL.prompt(asked, None) == HEAD + last
    assert LIGHTEVAL.messages(asked, example) == [
        {"role": "user", "content": HEAD + shown},
        {"role": "assistant", "content": " C"},
        {"role": "user", "content": last},
    ]


def test_what_counts_of_an_answer() -> None:
    assert LIGHTEVAL.said(" B\nmore", chat=False) == " B"
    assert LIGHTEVAL.said("\nB", chat=False) == ""  # the stop sequence came first
    assert LIGHTEVAL.said("\nB\n", chat=True) == "\nB\n"
    assert PROTOCOLS[None].said("\nB\n", chat=False) == "B"
    empty = LIGHTEVAL.score("A", "")
    assert set(empty.values()) == {0.0}
    assert PROTOCOLS[None].score("A", "")["pqem"] == 1
    assert LIGHTEVAL.score("A", "D, I think")["pqem"] == 1  # the article, as published
    assert LIGHTEVAL.score("B", "b-flat")["pqem"] == 1
    assert LIGHTEVAL.score("B", "an-B")["qem"] == 1  # hyphens part words, so that «an» goes
    assert PROTOCOLS[None].score("B", "an-B")["qem"] == 0


def test_errors_are_means_of_the_subjects_errors() -> None:
    rng = np.random.default_rng(0)
    subjects = [f"s{i}" for i in range(57) for _ in range(10)]
    right = (rng.random(570) < 0.246).astype(float)
    asked = [(Question(s, "", ("",) * 4, "A"), ASKED[0]) for s in subjects]
    scores = [dict.fromkeys(METRICS, float(x)) for x in right]
    mean, error = LIGHTEVAL.summary(asked, scores)["em"]
    rows = right.reshape(57, 10)
    assert mean == pytest.approx(right.mean())
    assert error == pytest.approx((rows.std(1, ddof=1) / 10**0.5).mean())
    assert 0.11 < error < 0.1436  # what ten questions allow; Table 3 has 0.128 for 0.246
    alone = PROTOCOLS[None].summary(asked, scores)["em"][1]
    assert 6 < error / alone < 57**0.5
    assert LIGHTEVAL.summary(asked[:1], scores[:1])["em"][1] == 0


class Said(torch.nn.Module):
    """Model that keeps the prompts and answers with the end token."""

    def __init__(self, end: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.end = end
        self.prompts: list[torch.Tensor] = []

    def init_state(self, batch: int) -> int:
        return 0

    def forward(self, ids, mask=None, *, index=None, state=None):  # type: ignore[no-untyped-def]
        self.prompts.append(ids[0])
        logits = torch.nn.functional.one_hot(torch.full((len(ids),), self.end), 300).float()
        return type("P", (), {"logits": logits, "state": state + 1})()


def test_a_chat_template_and_a_prompt_that_is_too_long() -> None:
    tokenizer = from_transformers(str(SHAPE))
    assert Own(path=str(SHAPE)).chat() is None  # it has no template
    from transformers import AutoTokenizer

    chat: Any = AutoTokenizer.from_pretrained(str(SHAPE))
    chat.chat_template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<a>"
    pairs = [(question("q", "B"), question("s", "C"))]

    def asked(length: int, chat: Any = None) -> tuple[str, int]:
        model = Said(tokenizer.sep_id)
        given = {"start": (), "length": length, "protocol": LIGHTEVAL, "chat": chat}
        found = answer(model, tokenizer, pairs, **given)
        return tokenizer.decode(model.prompts[0].tolist()), found.shortened

    plain = LIGHTEVAL.prompt(*pairs[0])
    first, middle, last = (m["content"] for m in LIGHTEVAL.messages(*pairs[0]))
    assert asked(500) == (plain, 0)
    assert asked(500, chat) == (f"<user>{first}<assistant>{middle}<user>{last}<a>", 0)
    assert asked(len(plain) - 1) == (LIGHTEVAL.prompt(pairs[0][0], None), 1)
    assert asked(20) == (plain[-20:], 1)


def test_the_models_own_positions_bound_the_prompt() -> None:
    config = type("C", (), {"max_position_embeddings": 2048})
    model = type("M", (), {"model": type("H", (), {"config": config})})
    assert prompt_length(model, LIGHTEVAL, 512) == 2043
    assert prompt_length(model, PROTOCOLS[None], 512) == 512
    assert prompt_length(Said(0), LIGHTEVAL, 512) == 512


def test_a_run_asks_by_the_protocol(tmp_path: Path) -> None:
    answers = map(str, range(80))
    data = kit.instructions(tmp_path, answers, batch_size=4, cache_dir=str(tmp_path))
    task: Any = kit._task(Instruct, data, 1, mmlu="held_out", mmlu_protocol="lighteval")
    trainer = pl.Trainer(max_steps=1, default_root_dir=tmp_path, limit_val_batches=1, **QUIET)
    trainer.fit(task, datamodule=data)
    records = data.records["test"]
    assert task._questions == from_records(records, None, LIGHTEVAL)
    assert len(task._questions) == min(10, len(records) - 1)
    metrics = task.extra_metrics(trainer, data)
    assert {f"mmlu_base/{m}_std" for m in METRICS} <= set(metrics)


def test_the_command_reads_no_template_on_a_files_word(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["preset=tptt", "scale=smoke", "adapter=none", "tokenizer.path=some/model"]
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(plain(compose(words))))
    words = [f"run={tmp_path}", "data=/no", "mmlu_protocol=lighteval"]
    assert mmlu(words) == 2
    assert "mmlu_protocol=lighteval reads the chat template of some/model" in (
        capsys.readouterr().err
    )
    assert mmlu([*words[:-1], "mmlu_protocol=helm"]) == 2
    assert "lighteval" in capsys.readouterr().err
