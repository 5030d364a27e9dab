"""What a run tells before it starts, at its start, at its end, and of the machine's rate."""

from __future__ import annotations

import errno
import io
import json
import math
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import rich
import torch
from torch import nn

from chimera.callback.log.steps import Steps
from chimera.cli.train import main
from chimera.config.compose import compose, plain
from chimera.config.settings import Optim
from chimera.contract_tests import zoo
from chimera.errors import UserError
from chimera.optim.optimizer import groups
from chimera.rundir.directory import RunDir
from chimera.safe_io import write_json
from chimera.task.memory import weight_bytes
from chimera.train import console, record
from chimera.train.build import build_task
from chimera.train.console import (
    report,
    show_disk,
    show_draws,
    show_frozen,
    show_parameters,
    show_size,
)
from chimera.train.model_summary import overview, ternary_by_component, text, vocabulary_of
from chimera.train.status import run_status
from tests.train import tiny


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    said = io.StringIO()
    monkeypatch.setattr(rich.get_console(), "file", said)
    monkeypatch.setattr(rich.get_console(), "width", 120, raising=False)
    return said


def test_dropout_that_torch_draws_is_named(printed: io.StringIO) -> None:
    dropping = replace(zoo.TINY, dropout=0.1)
    show_draws(zoo.build(zoo.TINY, {"mixer": "attention"}))
    show_draws(zoo.build(dropping, {"mixer": "mamba"}))
    assert not printed.getvalue()
    show_draws(zoo.build(dropping, {"mixer": "attention"}))
    said = printed.getvalue().splitlines()
    assert len(said) == 1
    assert said[0].startswith("dropout inside scaled_dot_product_attention is drawn by micro-batch")


def test_the_table_has_a_row_for_what_decay_leaves_alone(printed: io.StringIO) -> None:
    model = zoo.build(zoo.TINY, {"mixer": "mamba", "norm": "qdyt"})
    for module in (model.backbone.embedding, model.backbone.scale):
        module.requires_grad_(False)
    show_parameters("a run", groups(model, Optim(lr=1e-3, weight_decay=0.02)), model)
    rows = {
        row[1:-1].split("│")[0].strip(): [cell.strip() for cell in row[1:-1].split("│")[1:]]
        for row in printed.getvalue().splitlines()
        if row.startswith("│")
    }
    assert rows["norm: alpha"][-1] == rows["mamba: dt_bias, A_log, D"][-1] == "0"
    assert rows["norm"][-1] == rows["mamba"][-1] == "0.02"
    counts = [
        int(rows[name][0].replace(",", "")) for name in rows if name not in ("total", "trained")
    ]
    assert sum(counts) == int(rows["total"][0].replace(",", ""))


def test_the_ternary_share_shows_what_a_quantiser_changes(printed: io.StringIO) -> None:
    assert ternary_by_component(zoo.build(zoo.TINY, {})) == {}
    model = zoo.build(zoo.TINY, {"quant": "bitnet158"})
    shares = ternary_by_component(model)
    assert shares == pytest.approx(
        {"embedding": 0.0, "norm": 0.0, "attention": 1.0, "ffn": 1.0, "head": 0.0}
    )
    show_parameters("a run", groups(model, Optim(lr=1e-3)), model)
    assert "ternary: embedding 0%" in printed.getvalue()
    assert "attention 100%" in printed.getvalue()
    table = ternary_by_component(zoo.build(zoo.TINY, {"quant": "hbit", "mixer": "mlstm"}))
    assert 0 < table["mlstm"] < 1  # the 4 × 4 blocks of W_q, W_k, W_v stay in full precision


@pytest.mark.parametrize(
    ("ours", "says"), [(50.0, "4.00 times lower"), (800.0, "4.00 times higher")]
)
def test_the_end_compares_with_the_unigram(printed: io.StringIO, ours: float, says: str) -> None:
    metrics = {"val/unigram_perplexity": 200.0, "val/perplexity": ours}
    metrics |= {"test/perplexity": ours, "test/accuracy": 0.1}
    record = {"metrics": metrics, "skipped": {"scaler": 0}}
    record |= {"tokens_per_second": math.nan, "peak_memory_gb": 1.0, "wall_seconds": 3.0}
    report(record, Path("run"))
    said = " ".join(printed.getvalue().split())
    assert says in said
    assert "nan" not in said  # a run of one step has no speed
    report({**record, "tokens_per_second": 1234.0}, Path("run"))
    assert "1,234 tokens/s, peak memory" in " ".join(printed.getvalue().split())


def test_an_adapter_beside_random_weights_is_warned_of(printed: io.StringIO) -> None:
    config = {"choices": {"adapter": "lora"}, "init_from": "runs/a", "model": {"dim": 32}}
    show_frozen(config)
    show_frozen({**config, "init_from": None, "model": {"pretrained": True}})
    show_frozen({**config, "init_from": None, "choices": {"adapter": "none"}})
    assert not printed.getvalue()
    show_frozen({**config, "init_from": None})
    assert "adapter=lora freezes the model's random weights" in printed.getvalue()


def test_a_large_model_without_a_gpu_is_told_of_smaller_scales(printed: io.StringIO) -> None:
    large, small = nn.Linear(10_000, 11_000, device="meta"), nn.Linear(10, 10)
    show_size({"model": {}}, small, "cpu")
    show_size({"model": {}}, large, "cuda")
    show_size({"model": {"pretrained": True}}, large, "cpu")
    assert not printed.getvalue()
    show_size({"model": {}}, large, "cpu")
    assert "110 M parameters" in printed.getvalue()
    assert "scale=small" in printed.getvalue()


@pytest.mark.parametrize("key", ["metrics", "skipped", "wall_seconds"])
def test_a_record_that_lacks_a_fact_is_refused_in_one_line(key: str, tmp_path: Path) -> None:
    whole = {"metrics": {"val/loss": 1.0}, "skipped": {"not_finite": 0, "scaler": 0}}
    whole |= {"tokens_per_second": None, "peak_memory_gb": 1.0, "wall_seconds": 2}
    report(whole, tmp_path)
    for broken in ({**whole, key: "x"}, {k: v for k, v in whole.items() if k != key}):
        with pytest.raises(UserError, match=r"run.json is no record of a run .*; restore it"):
            report(broken, tmp_path)


@pytest.fixture
def line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    tiny.write(tmp_path)
    monkeypatch.chdir(tmp_path)
    return list(tiny.LINE)


def test_the_sums_agree_with_the_run(line: list[str], tmp_path: Path) -> None:
    found = overview(plain(compose([*line, "quant=bitnet158"])))
    parameters = found["parameters"]
    assert parameters["total"] == sum(n for k, n in parameters.items() if k != "total")
    assert found["bytes"]["total"]["parameters"] == parameters["total"]
    assert found["bytes"]["total"]["packed"] < found["bytes"]["total"]["fp32"]
    memory = found["memory"]
    assert memory["total"] == sum(size for part, size in memory.items() if part != "total")
    assert memory["weights"] == 4 * parameters["total"]
    assert memory["activations"] > 0
    shown = text(found)
    assert f"{parameters['total']:,}" in shown
    assert "MFLOP per token" in shown
    assert not (tmp_path / "runs").exists()


def test_memory_and_disk_count_the_state_of_the_chosen_optimiser(line: list[str]) -> None:
    def of(*words: str) -> tuple[float, dict[str, float]]:
        found = overview(plain(compose([*line, *words])))
        assert (
            found["disk"]["checkpoint"] == found["memory"]["weights"] + found["memory"]["optimiser"]
        )
        return found["memory"]["optimiser"] / found["trained"]["parameters"], found["disk"]

    assert of()[0] == 8
    assert of("optim=lion")[0] == 4
    assert 4 < of("optim=muon")[0] < 8
    kept = ["trainer.checkpoint_keep=2", "trainer.checkpoint_keep_best=3", "trainer.max_epochs=4"]
    disk = of(*kept, "trainer.max_steps=1000", "trainer.checkpoint_keep_epochs=null")[1]
    assert (disk["newest"], disk["best"], disk["epoch"]) == (2, 3, 4)
    assert disk["total"] == 9 * disk["checkpoint"]


def test_each_process_has_a_share_of_the_batch_and_fsdp_one_of_the_weights(line: list[str]) -> None:
    def of(*words: str) -> tuple[dict[str, float], dict[str, float]]:
        shape = ["mixer=attention", "model.depth=4", "model.dim=128", "data.batch_size=512", *words]
        found = overview(plain(compose([*line, *shape])))
        return found["memory"], found["disk"]

    alone, kept = of()
    ddp, _ = of("trainer.devices=2")
    fsdp, sharded = of("trainer.devices=2", "trainer=fsdp")
    assert ddp["activations"] == pytest.approx(alone["activations"] / 2, rel=0.1)
    assert ddp["weights"] == alone["weights"] == 2 * fsdp["weights"]
    assert fsdp["optimiser"] == alone["optimiser"] / 2
    assert 0 < fsdp["gathered"] < 2 * alone["weights"]
    assert sharded == kept  # a checkpoint holds whole tensors


def test_the_bytes_of_checkpoints_at_ends_of_epochs_are_said(
    printed: io.StringIO, line: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = plain(compose([*line, "trainer.checkpoint_keep_epochs=null"]))
    task = build_task(config, 100)
    size = 3 * weight_bytes(task)  # AdamW's state is twice the weights
    show_disk(config, task, 40, tmp_path)
    assert not printed.getvalue()  # too few to speak of
    monkeypatch.setattr(console, "MUCH", 40 * weight_bytes(task))
    show_disk(config, task, 39, tmp_path)
    assert not printed.getvalue()
    show_disk(config, task, 40, tmp_path)
    assert "at each of 40 ends of an epoch" in printed.getvalue()
    others = config["trainer"]["checkpoint_keep"] + config["trainer"]["checkpoint_keep_best"]
    assert f"will take {(40 + others) * size / 1e9:,.1f} GB" in printed.getvalue()
    config["trainer"]["checkpoint_keep_epochs"] = 1
    said = printed.getvalue()
    show_disk(config, task, 40, tmp_path)
    assert printed.getvalue() == said


def test_the_command_prints_each_format(
    line: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", *line, "format=json"]) == 0
    assert json.loads(capsys.readouterr().out)["flops"]["length"] == 16
    assert main(["show", *line, "format=mermaid"]) == 0
    assert capsys.readouterr().out.startswith("flowchart TB")
    clipped = [*line, "precision=bf16", "trainer.gradient_clip_val=0.5", "format=pipeline"]
    assert main(["show", *clipped]) == 0
    said = capsys.readouterr().out
    for part in ("4 × 16 tokens", "autocast: bf16", "norm ≤ 0.5", "clip --> update", "data: text"):
        assert part in said
    assert main(["show", *line, "trainer.gradient_clip_val=0", "format=pipeline"]) == 0
    assert "finite -- yes --> update" in capsys.readouterr().out
    for every, often in (
        ("epoch", "every epoch"),
        ("0.5", "every 0.5 of an epoch"),
        ("0", "at the"),
    ):
        words = [*line, f"trainer.val_check_interval={every}", "format=pipeline"]
        assert main(["show", *words]) == 0
        assert f"<br/>{often}" in capsys.readouterr().out
    far = [word for word in line if word != "data=text" and not word.startswith("data.path")]
    assert main(["show", *far, "data=redpajama_es", "format=pipeline"]) == 0  # no network


def test_the_vocabulary_of_a_body_is_its_own() -> None:
    words = ["+tptt/variants=v_n1", "scale=small"]
    config = plain(compose(words))
    assert vocabulary_of(config) == 259
    assert vocabulary_of(plain(compose(["tokenizer.vocab_size=77"]))) == 77


CPU = torch.device("cpu")


def test_half_precision_that_a_cpu_emulates_is_no_yardstick(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Part of such a run multiplies float32, so a share of the slow rate would exceed 1."""
    speeds = {torch.float16: 2e9, torch.bfloat16: 4e11, torch.float32: 1e11}
    monkeypatch.setattr(record, "measure", lambda device, dtype: speeds[dtype])
    assert [record.rate_of(CPU, p) for p in ("fp16", "bf16", "fp32")] == [1e11, 4e11, 1e11]


def test_a_measurement_is_a_positive_rate() -> None:
    found = record.measure(CPU, torch.float32, 0.0)
    assert math.isfinite(found)
    assert found > 0


def test_a_gpu_of_the_table_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA H100 PCIe")
    assert record.rate_of(torch.device("cuda"), "bf16") == 7.56e14
    assert record.rate_of(torch.device("cuda"), "fp32") == 5.1e13


def test_utilisation_is_flops_by_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "rate_of", lambda *_: 1e9)
    trainer: Any = SimpleNamespace(strategy=SimpleNamespace(root_device=CPU), world_size=2)
    facts = {"flops": {"training": 1e6}, "tokens_per_second": 500.0}
    assert record.utilisation(trainer, "fp32", facts) == {"mfu": 0.25, "gemm_rate": 2e9}
    assert record.utilisation(trainer, "fp32", {**facts, "tokens_per_second": math.nan}) == {}
    assert record.utilisation(trainer, "fp32", {**facts, "flops": None}) == {}


def test_a_run_records_and_prints_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    run = tiny.trained(tmp_path, run=2) / "run"
    facts = tiny.record(run)
    flops = facts["flops"]
    assert flops["length"] == 16
    assert flops["training"] > flops["forward"] == sum(flops["by_component"].values())
    done = flops["training"] * facts["tokens_per_second"]
    assert facts["mfu"] == pytest.approx(done / facts["gemm_rate"])
    assert "GFLOP/s (MFU " in capfd.readouterr().err
    monkeypatch.setattr(console, "say", print)
    assert console._utilisation({"metrics": {}}) == ""


def ending(folder: Path, error: BaseException, before: Callable[[], Any] = lambda: None) -> None:
    """A run that an error ends."""
    folder.mkdir()
    write_json(folder / "config.yaml", {})
    ranks: Any = SimpleNamespace(first=True, timeout=1.0)
    with run_status(ranks, RunDir(folder), [Steps()], 3, 10):
        before()
        raise error


def test_a_run_whose_directory_is_gone_is_one_line(tmp_path: Path) -> None:
    run = tmp_path / "run"
    gone = FileNotFoundError(2, "No such file or directory", str(run / "steps.csv"))
    with pytest.raises(UserError, match="run was renamed or removed while the run trained there"):
        ending(run, gone, lambda: os.rename(run, tmp_path / "other"))
    assert not run.exists()


def test_checkpoints_that_are_gone_and_a_limit_of_sizes_are_one_line(tmp_path: Path) -> None:
    saving = FileNotFoundError(2, "No such file or directory", ".rolling-4.ckpt.1-1.tmp")
    with pytest.raises(UserError, match="run/checkpoints was renamed or removed"):
        ending(tmp_path / "run", saving)
    line = "file too large: .*; last checkpoint: none was saved; start the same command again"
    with pytest.raises(UserError, match=line):
        ending(tmp_path / "limited", OSError(errno.EFBIG, "File too large"))


@pytest.mark.parametrize(
    ("error", "state"), [(KeyboardInterrupt(), "STOPPED"), (ValueError("x"), "FAILED")]
)
def test_ctrl_c_stops_and_an_error_fails(error: BaseException, state: str, tmp_path: Path) -> None:
    with pytest.raises(type(error)):
        ending(tmp_path / "run", error)
    status = RunDir(tmp_path / "run").status()
    assert (status["state"], status["step"]) == (state, 3)
