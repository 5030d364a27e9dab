"""MMLU's metrics against their definitions, the article that is a letter, questions from files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from chimera.data.source import hub
from chimera.errors import UserError
from chimera.task.mmlu import METRICS, normalise, prompt, read, score, summary
from tests.outside import DATA

MMLU = DATA / "mmlu"


@pytest.mark.parametrize(
    ("gold", "said", "right"),
    [
        ("B", "B", "em pem qem pqem"),
        ("B", " B \n", "em pem qem pqem"),
        ("B", "B. because", "pem pqem"),
        ("B", "b", "qem pqem"),
        ("B", "B.", "pem qem pqem"),
        ("B", "(B) is it", "pqem"),
        ("B", "The B", "qem pqem"),  # articles are taken out
        ("B", "It is B", ""),  # partial is the beginning, not any part
        ("C", "A C", "qem pqem"),
        ("Paris", "paris, of course", "pqem"),
    ],
)
def test_definitions(gold: str, said: str, right: str) -> None:
    found = score(gold, said)
    assert {name for name in ("em", "pem", "qem", "pqem") if found[name]} == set(right.split())


def test_e4_the_gold_a_is_an_article() -> None:
    assert normalise("A") == ""
    assert normalise("A", keep_articles=True) == "a"
    wrong = score("A", "D, I am sure")
    assert wrong["pqem"] == 1  # as published: every answer begins with nothing
    assert wrong["pqem_articles_kept"] == wrong["pem"] == wrong["em"] == 0
    assert score("A", "a)")["pqem_articles_kept"] == 1
    others = [score(gold, "D, I am sure") for gold in "BC"]
    assert not any(one["pqem"] or one["pqem_articles_kept"] for one in others)


def test_bootstrap_deviations() -> None:
    rng = np.random.default_rng(1)
    scores = [dict.fromkeys(METRICS, float(x)) for x in rng.random(400) < 0.3]
    mean, deviation = summary(scores)["em"]
    assert mean == np.mean([one["em"] for one in scores])
    assert deviation == pytest.approx(np.sqrt(mean * (1 - mean) / 400), rel=0.1)
    assert summary(scores) == summary(scores)
    assert summary(scores[:1])["em"][1] == 0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for part in ("dev", "test"):
        (tmp_path / part).mkdir()
    (tmp_path / "dev/fine_art_dev.csv").write_text('"Who, then?",one,two,three,four,C\n')
    rows = "".join(f"Which of {i}?,w,x,y,z,{'ABCD'[i % 4]}\n" for i in range(6))
    (tmp_path / "test/fine_art_test.csv").write_text(rows)
    return tmp_path


def test_one_shot_prompts(folder: Path) -> None:
    asked = read(str(folder), "test", None, 5)
    assert [question.gold for question, _ in asked] == list("ABCDA")
    assert prompt(*asked[1]) == (
        "The following are multiple choice questions (with answers) about fine art.\n\n"
        "Who, then?\nA. one\nB. two\nC. three\nD. four\nAnswer: C\n\n"
        "Which of 1?\nA. w\nB. x\nC. y\nD. z\nAnswer:"
    )


def test_what_is_wrong_is_said(folder: Path) -> None:
    with pytest.raises(UserError, match="did you mean 'fine_art'"):
        read(str(folder), "test", ["fine_arts"], None)
    with pytest.raises(UserError, match="holds no val/"):
        read(str(folder), "val", None, None)
    for row in ("q,a,b,c,d,E", "q,a,b,c,d,", "q,a,b,c,d,BC", "q,a,b,c,A", "A"):
        (folder / "test/fine_art_test.csv").write_text(f"q,a,b,c,d,B\n{row}\n")
        with pytest.raises(UserError, match=r"fine_art_test\.csv: row 2 is not a question"):
            read(str(folder), "test", None, None)


def test_an_answer_from_the_hub_is_a_letter(monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"subject": "art", "question": " Who? ", "choices": ["a", "b", "c", "d"]}
    for answer in (3, -1, 4, None):
        rows = [{**row, "answer": 0}, {**row, "answer": answer}]
        loaded = {"test": rows, "dev": rows[:1]}
        monkeypatch.setattr(hub, "load_splits", lambda *_, loaded=loaded: loaded)
        if answer == 3:
            assert [q.gold for q, _ in read(None, "test", None, None)] == ["A", "D"]
            continue
        with pytest.raises(UserError, match="cais/mmlu: row 2 of test is not a question"):
            read(None, "test", None, None)


def test_whole_files(folder: Path) -> None:
    """The real ones where they are."""
    root, rows = (MMLU, 2526) if MMLU.is_dir() else (folder, 6)
    asked = read(str(root), "test", None, None)
    assert len(asked) == rows
    assert all(example is not None and example.subject == q.subject for q, example in asked)
