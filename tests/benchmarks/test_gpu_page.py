"""The tables of docs/gpu.md: what they count, and parts that had no time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from benchmarks.gpu import page

MACHINE = {
    "git": {"commit": "a" * 40, "changed": False}, "gpu": "Card", "gpu_gib": 1.0, "cpus": 4,
    "processor": "Test", "torch": "2", "python": "3",
}  # fmt: skip


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(page, "RESULTS", tmp_path)
    (tmp_path / "gpu").mkdir()
    return tmp_path / "gpu"


def put(results: Path, part: str, **content: Any) -> None:
    (results / f"{part}.json").write_text(json.dumps({"machine": MACHINE, **content}))


def test_the_contract_counts_passes_of_torch_and_what_kernels_change(results: Path) -> None:
    rows = [
        {"group": "mixer", "name": name, "causal": True, "half": half, "what": "forward",
         "kernels": kernels, "error": error + 0.1 * (kernels and name == "delta"), "bound": 1.0}
        for half in ("fp32", "bf16", "fp16")
        for name, error in (("delta", 0.5), ("linear", 1.5))
        for kernels in (True, False)
    ]  # fmt: skip
    put(results, "contract", rows=rows, cases=5, not_run=3, failed=[], refused=["no"])
    text = page.gpu_contract()
    assert "| bf16 | 2 | 1 | 1.50 | `mixer=linear`, forward |" in text
    assert "2 of 5 cases had time, with 2 components; 0 failed, 1 were refused." in text
    assert "2 passes in half precision have another error" in text  # delta in bf16 and fp16
    assert "commit `aaaaaaa`: Card (1.0 GiB), 4 cores of Test, torch 2, Python 3." in text


def test_rows_without_time_are_named(results: Path) -> None:
    cell = {"tokens_per_second": 1000.4, "latency_ms": 2.0, "peak_allocated_mb": 3.0}
    late = {"error": "no time left"}
    rows = {"aft fp32": {"8": cell, "16": cell}, "aft bf16": {"8": cell, "16": late}}
    put(results, "lengths", lengths=[8, 16], rows=rows)
    text = page.gpu_lengths()
    assert "| `aft`, fp32 | 1,000 | 1,000 | 2.0 | 3 |" in text
    assert "No time was left for aft bf16." in text

    bert = {"name": "BERT", "choices": [], "precision": "bf16", "batch": 2, "length": 8}
    put(results, "presets", rows=[{**bert, **late}])
    assert "| BERT | bf16, 2 × 8 | no time left |  |  |  |" in page.gpu_presets()


def test_a_layer_is_exact_where_its_sums_are_the_cpu_s(results: Path) -> None:
    times = {name: {"graph_seconds": 2e-6, "bytes": 8} for name in page.PACKED}
    row = {"k": 4, "n": 8, "m": 1, **times, "against_cpu": {"exact": True, "wrong": False}}
    other = {**row, "against_cpu": {"exact": True, "wrong": True}}
    put(results, "packed", rows=[row, other, {"k": 4, "n": 8, "m": 2, "error": "no time left"}])
    text = page.gpu_packed()
    assert "| 4 → 8 | 1 | 2 | 2 | 2 | 2 | 1.0 |" in text
    assert "Of 2 rows 1 have the sums of the CPU to the bit; 1 more had no time." in text


def test_the_job_stands_beside_the_same_seed_on_processors(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [{"seed": seed, "perplexity": 9.0 + seed, "seconds": 7.0} for seed in (1, 0)]
    monkeypatch.setattr(page, "known", lambda: {"Other": {"machine": {"cpus": 2}, "runs": runs}})
    done = {"seconds": 3.0, "metrics": {"val/perplexity": 8.0}}
    put(results, "job", runs={"fp32": done, "bf16": {"error": "no time left"}})
    text = page.gpu_job()
    assert "| Card, fp32 | 8.0 | 3 |" in text
    assert "| Card, bf16 | no time left |  |" in text
    assert "| Other, 2 cores, fp32 | 9.0 | 7 |" in text
