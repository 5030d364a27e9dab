"""The rate of matrix products, and the share of it that a run reaches."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from chimera.train import console, record
from tests.train import tiny

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
