"""Tables of fine-tuning: the row that a run starts from, and the papers' parameter counts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from chimera.adapter.shared.low_rank import adapted
from chimera.cli.train import main as train
from chimera.config.compose import compose, plain
from chimera.config.tables import load
from chimera.errors import UserError
from chimera.report.markdown import report
from chimera.report.metric_grid import columns, columns_grid, families
from chimera.report.table_results import read_results
from chimera.rundir.directory import RunDir
from chimera.rundir.identity import identity
from chimera.rundir.steps import epochs
from chimera.sweep.compose_jobs import compose_jobs, prerequisites
from chimera.train.build import build_task
from tests.config.kit import everything, here

LORA, BODY = "+saidl/adapters=lora", "+saidl/backbone=mlm"


def config(*words: str) -> dict[str, Any]:
    return plain(compose(list(words)))


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return everything(tmp_path_factory.mktemp("labelled"))


def test_a_row_starts_from_another_row_at_its_own_scale() -> None:
    one, body = config(LORA, "scale=small"), config(BODY, "scale=small")
    assert one["init_from"] == "row:saidl/backbone/mlm"
    assert one["init_run"] == identity(body)
    assert one["model"] == body["model"]
    assert one["choices"]["mixer"] == body["choices"]["mixer"]
    assert one["choices"]["tokenizer"] == "own"
    assert config(LORA, "scale=small", "seed=2")["init_run"] == identity(body)
    assert config(LORA, "scale=smoke")["init_run"] == identity(config(BODY, "scale=smoke"))
    assert config(LORA, "scale=paper")["model"]["name"] == "microsoft/deberta-v3-base"
    assert config("+bitnet_qdyt/glue=bert_base_mnli")["init_run"] == identity(
        config("+bitnet_qdyt/main=bert_base")
    )


def test_the_command_line_overrides_the_row_and_the_scale(tmp_path: Path) -> None:
    theirs = config(LORA, "scale=small", "model=hf", "model.name=someone/something")
    assert theirs["init_from"] is None
    assert theirs["model"]["name"] == "someone/something"
    fresh = config(LORA, "scale=small", "init_from=null", "model=encoder_small")
    assert fresh["init_run"] is None
    real = config(LORA, "scale=small", "data=glue", f"data.path={tmp_path}")
    assert real["data"]["task"] == "cola"
    assert config(LORA, "scale=small")["choices"]["data"] == "acceptability"
    assert real["trainer"]["max_epochs"] == 5
    assert real["optim"]["rates"]["adapter"] == 10
    with pytest.raises(UserError, match="did you mean"):
        compose([LORA, "scale=small", "init_from=row:saidl/backbone/mlmm"])


def test_identity_is_independent_of_chimera_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = identity(config(LORA, "scale=small"))
    monkeypatch.setenv("CHIMERA_RUNS", str(tmp_path))
    assert identity(config(LORA, "scale=small")) == one


@pytest.mark.slow
def test_a_sweep_trains_the_row_to_start_from_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CHIMERA_RUNS", str(tmp_path))
    shared = ["scale=smoke", "logger=none", "trainer.progress=none"]
    words = [LORA, *shared, "data.pairs=20", "trainer.max_steps=3"]
    assert train(words) == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert f"train it first: python train.py {BODY} scale=smoke" in line
    assert list(tmp_path.iterdir()) == []

    jobs = compose_jobs([[*words, "seed=0"], [*words, "seed=1"]])
    first = prerequisites(jobs)
    assert [list(job.overrides) for job in first] == [[BODY, *shared]]
    assert all(first[0].identity in job.prerequisites for job in jobs)
    assert (
        prerequisites(compose_jobs([[BODY, *shared], [*words]])) == []
    )  # it is in the sweep already

    assert train(list(first[0].overrides)) == 0
    assert prerequisites(compose_jobs([words])) == []
    assert train(words) == 0
    run = RunDir.of(plain(compose(words)))
    record = run.record()
    body = first[0].directory.record()
    assert record["tokenizer"] == body["tokenizer"]
    counts = record["parameters"]
    assert record["trained"]["parameters"] == counts["adapter"] + counts["head"]
    assert record["trained"]["share"] == pytest.approx(
        record["trained"]["parameters"] / counts["total"]
    )
    made = record["epochs"]["1"]
    assert made["step"] == 3
    assert made["score"] == pytest.approx(record["metrics"]["val/mcc"])
    assert made["train_loss"] > 0

    # The report compares measured and published values.
    summary = read_results("saidl/adapters", [w for w in words if w != LORA], [0])
    assert {"trained.parameters", "val/entropy_rank", "val/loss"} <= set(columns(summary))
    head, rows = columns_grid(summary)
    shown = dict(zip(head, next(r for r in rows if r[0] == "trained.parameters"), strict=True))
    assert shown["lora"].endswith("(296450)")
    assert shown["adalora"] == "– (1.18195e+06)"
    (layers,) = [one for one in families(summary) if one.name == "rank/layer"]
    assert list(layers.keys) == list(range(len(layers.keys)))
    assert "## By layer" in report(summary)


@pytest.mark.parametrize("row", [row.name for row in load("saidl/targets").rows])
def test_the_papers_counts(row: str, labelled: Path) -> None:
    """Exact counts of trained parameters (SAIDL Table 10) and of adapted layers (Table 7)."""
    shape = json.loads((labelled / "shape/config.json").read_text())
    shape |= {"hidden_size": 768, "num_hidden_layers": 12, "intermediate_size": 3072}
    (labelled / "shape/config.json").write_text(json.dumps(shape | {"num_attention_heads": 12}))
    line = f"+saidl/adapters={row}"
    words = [line, "scale=paper"]
    words += here(config(*words), "paper", labelled)
    with torch.device("meta"):
        model = build_task(config(*words), 259).model
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    printed = {
        (p.row, p.column): p.value
        for name in ("adapters", "targets")
        for p in load(f"saidl/{name}").published
    }
    assert trained == printed[row, "trained.parameters"]
    assert len(adapted(model)) == printed[row, "val/adapted"]


def test_epochs_of_a_step_log_by_hand(tmp_path: Path) -> None:
    log = tmp_path / "steps.csv"
    rows = [f"2026-01-01T00:00:0{n}+00:00,{n},{n / 2}" for n in range(1, 7)]
    log.write_text("\n".join(["timestamp,global_step,loss", *rows]) + "\n")
    found = epochs(log, [(2, 0.5), (6, 0.25)], [(2, 0.1), (6, 0.3)])
    assert found == {
        "1": {"step": 2, "loss": 0.5, "score": 0.1, "train_loss": 0.75, "seconds": 1.0},
        "2": {"step": 6, "loss": 0.25, "score": 0.3, "train_loss": 2.25, "seconds": 5.0},
    }
