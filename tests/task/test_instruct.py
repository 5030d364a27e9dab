"""Instruction tuning: train a graft, resume it, ask it questions; MMLU's metrics and its files."""

from __future__ import annotations

import copy
import json
import signal
from pathlib import Path

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
import yaml

from chimera.cli.finished import mmlu
from chimera.config.compose import compose, plain
from chimera.config.tables import load
from chimera.data.source import hub
from chimera.data.tokenizer.own import from_transformers
from chimera.errors import UserError
from chimera.model.decode import greedy
from chimera.model.hf import HuggingFaceModel
from chimera.paths import CONF, EXPERIMENTS, ROOT
from chimera.task.mmlu import answer, from_records, read
from chimera.task.mmlu_protocol import METRICS, PROTOCOLS, Question, normalise, score, summary
from chimera.train.check import check_settings
from tests.adapter.graft.kit import causal_model
from tests.kit import QUIET
from tests.outside import DATA
from tests.task.kit import instruct
from tests.torture import job

SHAPE = ROOT / "experiments/tptt/shapes/meta-llama/Llama-3.2-1B"


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("records") / "some.json"
    made = [
        {"instruction": f"Repeat {i}.", "input": "", "output": f"It is {i}, {i}."}
        for i in range(60)
    ]
    file.write_text(json.dumps(made))
    return file


def words(records: Path, to: Path, *more: str) -> list[str]:
    words = ["+tptt/variants=derivative_n2_gradual", "scale=smoke", "logger=none"]
    words += [f"data.path={records}", f"data.cache_dir={records.parent}", f"model.name={SHAPE}"]
    return [*words, "task.mmlu_limit=3", f"run_dir={to}", *more]


@pytest.mark.slow
def test_an_interrupted_run_equals_an_uninterrupted_one(
    records: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, broken, asked = (tmp_path / name for name in ("whole", "broken", "mmlu"))
    for part in ("dev", "test"):
        (asked / part).mkdir(parents=True)
        (asked / f"{part}/art_{part}.csv").write_text("Who?,a,b,c,d,A\nWhat?,a,b,c,d,D\n")
    every = "trainer.checkpoint_every_n_steps=1"
    lives = ((whole, "", 0), (broken, "faults.kill_at('row', 5)", -signal.SIGKILL), (broken, "", 0))
    for to, plant, code in lives:
        ended, said = job.train(words(records, to, every), plant)
        assert ended == code, said
    assert mmlu([f"run={broken}", f"data={asked}", "trust=true"]) == 0
    measured, resumed = (
        json.loads((folder / "run.json").read_text())["metrics"] for folder in (whole, broken)
    )
    wanted = {p.column for table in ("training", "mmlu") for p in load(f"tptt/{table}").published}
    assert wanted <= set(measured)  # every published column is measured
    tokens = measured["train/flops"] / 6
    assert tokens > 0
    assert measured["train/seconds"] * measured["train/steps_per_second"] == pytest.approx(12)

    assert job.rows(broken) == job.rows(whole)
    timed = ("train/seconds", "per_second")
    same = [key for key in measured if not key.endswith(timed)]
    assert {key: resumed[key] for key in same} == {key: measured[key] for key in same}
    first, second = (
        torch.load(d / "checkpoints/last.ckpt", weights_only=True)["state_dict"]
        for d in (whole, broken)
    )
    assert all(torch.equal(first[k], second[k]) for k in first)
    weights = {float(v) for k, v in first.items() if k.endswith("mag_weight")}
    assert weights == {0.5}  # arrived at half of the run

    kept = json.loads((broken / "mmlu.json").read_text())
    assert set(kept) >= {"trained", "base"}
    assert len(kept["base"]["said"]) == 2
    assert mmlu([f"run={broken}", "limits=3"]) == 2
    assert "cannot read 'limits=3'; did you mean 'limit'" in capsys.readouterr().err


def test_the_start_model_is_validated_as_each_validation_is(tmp_path: Path) -> None:
    """On the same batches, once: a resumed run keeps the numbers; other modes are left alone."""

    def trainer(steps: int) -> pl.Trainer:
        return pl.Trainer(max_steps=steps, default_root_dir=tmp_path, limit_val_batches=1, **QUIET)

    task, data = instruct(tmp_path, 4)
    start = copy.deepcopy(task.model)
    assert task.model.training
    first = trainer(2)
    first.fit(task, datamodule=data)
    measured = {k: v for k, v in task.extra_metrics(first, data).items() if k.startswith("val_b")}
    first.save_checkpoint(tmp_path / "2.ckpt")
    again, _ = instruct(tmp_path, 4)
    second = trainer(4)
    second.fit(again, datamodule=data, ckpt_path=tmp_path / "2.ckpt")
    resumed = again.extra_metrics(second, data)
    assert {k: v for k, v in resumed.items() if k.startswith("val_b")} == measured

    again.model = start
    wanted = trainer(1).validate(again, datamodule=data, verbose=False)[0]
    renamed = {key.replace("val/", "val_base/"): value for key, value in wanted.items()}
    assert measured == pytest.approx(renamed, rel=1e-6)  # Lightning logs float32
    assert len(data.val_dataloader()) > 1
    again._resumed, again._base_metrics = False, {}
    trainer(1).fit(again, data.train_dataloader())  # without a module nothing says what to take
    assert not any(key.startswith("val_base") for key in again.extra_metrics(second, data))


def test_data_without_answers_is_refused(records: Path, tmp_path: Path) -> None:
    line = [w for w in words(records, tmp_path / "x") if not w.startswith("data.path")]
    with pytest.raises(UserError, match="task=instruct needs instructions with answers"):
        check_settings(plain(compose([*line, "data=pydocs"])))


def test_the_fifteen_variants_have_the_settings_of_table_1() -> None:
    table = load("tptt/variants")
    alone, *variants, projections = table.rows
    assert (alone.name, projections.name) == ("lora_only", "projections_only")
    assert len(variants) == 15
    published = {(p.row, p.column): p.value for p in table.published}
    default = yaml.safe_load((CONF / "adapter/liza.yaml").read_text(encoding="utf-8"))
    for row in variants:
        file = EXPERIMENTS / f"tptt/variants/{row.name}.yaml"
        own = yaml.safe_load(file.read_text(encoding="utf-8")).get("adapter", {})
        adapter = {**default, **own}
        assert adapter["order"] == published[row.name, "n_h"]
        schedule = adapter["callbacks"]["mag"]["schedule"]
        if (row.name, "α") in published:
            assert adapter["mag_weight"] == published[row.name, "α"]
            assert schedule == "constant"
        else:
            assert schedule in row.name
        symbols = {"derivative": "Δ, k", "rotary": "Θ, k", "both": "(Δ, Θ)", "none": ""}
        assert row.title.startswith(symbols[adapter["trick"]])
        assert ("⊙" in row.title) == (adapter["mag"] == "cross_gate")
        assert ("LoRA-" in row.title) == (adapter["train"] == "projections")
        assert ("GELU" in row.title) == (adapter["nonlinearity"] == "gelu")


def test_published_flops_say_how_many_tokens_a_sample_has() -> None:
    """6·N·tokens without embeddings; 4-bit matrices, two weights a byte, count as bytes."""
    table = {(p.row, p.column): p.value for p in load("tptt/training").published}
    llama = 16 * (2 * 2048 * (2048 + 512) + 3 * 2048 * 8192 + 2 * 2048) + 2048
    olmo = 16 * (4 * 2048**2 + 3 * 2048 * 8192)
    openelm = 1_079_891_456 - 32000 * 2048
    qwen = 28 * (2 * 1536 * (1536 + 256) + 3 * 1536 * 8960 + 2 * 1536 + 2048) + 1536
    mistral = 32 * (2 * 4096 * (4096 + 1024) + 3 * 4096 * 14336)
    olmoe = 16 * (4 * 2048**2 + 64 * 2048 + 64 * 3 * 2048 * 1024)
    heads = {"mistral": 32768 * 4096, "olmoe": 50304 * 2048}
    for row, size in {"llama": llama, "olmo": olmo, "qwen": qwen, "openelm": openelm}.items():
        assert table[row, "train/flops"] / (6 * size * 2500) == pytest.approx(384, rel=4e-3)
    for row, size in {"mistral": mistral, "olmoe": olmoe}.items():
        half = size / 2 + heads[row]
        assert table[row, "train/flops"] / (6 * half * 2000) == pytest.approx(128, rel=2e-3)
    for row in ("llama", "olmo", "qwen", "mistral", "olmoe", "openelm", "gemma"):
        speeds = [table[row, f"train/{what}_per_second"] for what in ("samples", "steps")]
        config = plain(compose([f"+tptt/training={row}", "scale=paper"]))
        step = config["data"]["batch_size"] * config["trainer"]["accumulate_grad_batches"]
        assert step == round(speeds[0] / speeds[1])
        data = [config["data"][key] for key in ("samples", "pad_to")]
        assert data == ([400, 128] if row in heads else [500, 384])


def test_the_controls_of_the_variants_train_what_they_train_without_a_memory() -> None:
    alone, projections, usual, kept = (
        plain(compose([f"+tptt/variants={row}", "+tptt=variants", "scale=smoke"]))["adapter"]
        for row in ("lora_only", "projections_only", "derivative_n2", "derivative_n2_projections")
    )
    assert alone == {**usual, "mag_weight": 0.0}
    assert projections == {**kept, "mag_weight": 0.0}


def test_greedy_answers_equal_those_of_generate() -> None:
    model = causal_model()
    ours, prompts = HuggingFaceModel(model, causal=True).eval(), [[5, 9, 7], [8] * 11, [4]]

    said = greedy(ours, prompts, max_new=6, pad_id=0, end_id=2)
    for ids, got in zip(prompts, said, strict=True):
        alone = torch.tensor([ids])
        mask = torch.ones_like(alone)
        want = model.generate(alone, attention_mask=mask, max_new_tokens=6, do_sample=False)
        row = want[0, len(ids) :].tolist()
        assert got == (row[: row.index(2)] if 2 in row else row)


def test_answers_are_in_the_order_of_the_questions() -> None:
    tokenizer = from_transformers(str(SHAPE))
    said = {"which one": "B", "who": "A"}

    class Told(torch.nn.Module):
        """Model that answers each question with its letter, then a line break and more text."""

        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))

        def init_state(self, batch: int) -> int:
            return 0

        def forward(self, ids, mask=None, *, index=None, state=None):  # type: ignore[no-untyped-def]
            if state == 0:
                rows = [tokenizer.decode(row[row < 256].tolist()) for row in ids]
                self.letters = [next(v for k, v in said.items() if k in r) for r in rows]
            texts = [f" {letter}\nmore" for letter in self.letters]
            tokens = [int(tokenizer.encode([t])[0][min(state, 6)]) for t in texts]
            logits = torch.nn.functional.one_hot(torch.tensor(tokens), 259)
            return type("P", (), {"logits": logits, "state": state + 1})()

    solved = Question("x", "what", ("1", "2", "3", "4"), "D")
    asked = [
        (Question("x", "which one", ("1", "2", "3", "4"), "B"), solved),
        (Question("x", "who " + "is it " * 9, ("1", "2", "3", "4"), "C"), solved),
    ]
    found = answer(Told(), tokenizer, asked, start=(), length=500, batch=1)
    assert found.texts == ["B", "A"]
    assert [one["em"] for one in found.scores] == [1.0, 0.0]
    assert answer(Told(), tokenizer, asked[:1], start=(), length=40).shortened == 1


def test_questions_are_made_from_records() -> None:
    class Record:
        def __init__(self, i: int) -> None:
            self.prompt, self.answer = f"p{i}", f"a{i}"

    asked = from_records([Record(i) for i in range(9)])  # type: ignore[misc]
    assert len(asked) == 8
    for i, (question, example) in enumerate(asked):
        assert question.choices["ABCD".index(question.gold)] == f"a{i}"
        assert len(set(question.choices)) == 4
        assert example is not None
        assert example.text == "p8"


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
    assert PROTOCOLS[None].prompt(*asked[1]) == (
        "The following are multiple choice questions (with answers) about fine art.\n\n"
        "Who, then?\nA. one\nB. two\nC. three\nD. four\nAnswer: C\n\n"
        "Which of 1?\nA. w\nB. x\nC. y\nD. z\nAnswer:"
    )


def test_what_is_wrong_is_said(folder: Path) -> None:
    with pytest.raises(UserError, match="did you mean 'fine_art'"):
        read(str(folder), "test", ["fine_arts"], None)
    with pytest.raises(UserError, match="holds no val/"):
        read(str(folder), "val", None, None)
    (folder / "test/law_test.csv").write_text("Who?,w,x,y,z,A\n")
    with pytest.raises(UserError, match=r"no solved question of law.*law_dev"):
        read(str(folder), "test", None, None)
    (folder / "test/law_test.csv").write_text("\n")
    with pytest.raises(UserError, match=r"law_test\.csv is empty"):
        read(str(folder), "test", None, None)
    (folder / "test/law_test.csv").unlink()
    for row in ("q,a,b,c,d,E", "q,a,b,c,d,", "q,a,b,c,d,BC", "q,a,b,c,A", "A"):
        (folder / "test/fine_art_test.csv").write_text(f"q,a,b,c,d,B\n{row}\n")
        with pytest.raises(UserError, match=r"fine_art_test\.csv: row 2 is not a question"):
            read(str(folder), "test", None, None)


def test_an_answer_from_the_hub_is_a_letter(monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"subject": "art", "question": " Who? ", "choices": ["a", "b", "c", "d"]}
    for letter in (3, -1, 4, None):
        rows = [{**row, "answer": 0}, {**row, "answer": letter}]
        loaded = {"test": rows, "dev": rows[:1]}
        monkeypatch.setattr(hub, "load_splits", lambda *_, loaded=loaded: loaded)
        if letter == 3:
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
