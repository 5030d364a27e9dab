"""The program for a GPU runs on a CPU: parts, their files, errors, what is packed."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.gpu import contract, lengths, mixers, pack, packed, presets
from benchmarks.gpu.__main__ import PARTS, main
from benchmarks.gpu.setting import Setting

from chimera.paths import ROOT
from tests.contract import precision


@pytest.fixture
def setting() -> Setting:
    return Setting("cpu", tiny=True, seconds=300, began=time.monotonic())


def test_without_a_gpu_one_line_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert main(["--out", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_fp32_on_the_device_is_compared_too() -> None:
    case = precision.Case("mixer", "linear", True, 8, "both", dim=64)
    rows, refusal, failure = contract.case_rows(case, "cpu", [False])
    assert refusal == failure == ""
    assert {row["half"] for row in rows} == {"fp32", "bf16", "fp16"}
    assert all(row["error"] <= row["bound"] for row in rows)
    assert {row["error"] for row in rows if row["half"] == "fp32"} == {0.0}  # the same device


def test_a_case_that_fails_says_so_and_keeps_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    case = precision.Case("mixer", "linear", True, 8, "both", dim=64)
    row = precision.Row(case, "bf16", "forward", 0.1, 1.0, "logits")

    def measure(*_: Any, **__: Any) -> Iterator[precision.Row]:
        yield row
        raise RuntimeError("no such kernel\nand more")

    monkeypatch.setattr(precision, "measure", measure)
    rows, refusal, failure = contract.case_rows(case, "cpu", [False])
    assert [row["error"] for row in rows] == [0.1]
    assert (refusal, failure) == ("", "mixer=linear RuntimeError: no such kernel")


def test_a_preset_and_hugging_face_s_bert(
    monkeypatch: pytest.MonkeyPatch, setting: Setting
) -> None:
    monkeypatch.setattr(presets, "ROWS", presets.ROWS[1:2])
    rows = presets.main(setting)["rows"]
    assert [row["name"] for row in rows] == ["BERT-Base", "BertForMaskedLM"]
    ours, theirs = rows
    assert 0 < ours["flops"] < theirs["flops"]  # logits at masked positions only
    assert ours["tokens_per_second"] > 0


def test_a_row_that_fails_says_why(monkeypatch: pytest.MonkeyPatch, setting: Setting) -> None:
    def fails(*_: object) -> dict[str, float]:
        raise RuntimeError("CUDA out of memory\nand more")

    monkeypatch.setattr(presets, "ROWS", presets.ROWS[3:4])
    monkeypatch.setattr(presets, "ours", fails)
    (row,) = presets.main(setting)["rows"]
    assert row["error"] == "RuntimeError: CUDA out of memory"


def test_packed_layers_need_cuda_and_say_so(
    setting: Setting, capsys: pytest.CaptureFixture[str]
) -> None:
    assert packed.main(setting) == {"skipped": "no CUDA: the kernel is compiled for a GPU"}
    assert "skipped, no CUDA" in capsys.readouterr().out


def test_packed_layers_are_timed_and_compared_with_the_cpu(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = packed.measured(setting, 3, 64, 48)
    assert row["against_cpu"] == {
        "kernel": False, "exact": True, "outside": 0, "codes_moved": 0, "wrong": False
    }  # fmt: skip
    assert row["packed"]["bytes"] < row["bf16"]["bytes"] == row["fp16"]["bytes"] == 2 * 64 * 48
    assert all(row[name]["seconds"] > 0 for name in row if name != "against_cpu")
    # A kernel with wrong sums does not pass.
    monkeypatch.setattr(packed.two_bits, "scaled", lambda a, *_: torch.zeros(len(a), 48))
    layer = packed.BitNet158().linear(64, 48, bias=False, role="up").packed()
    assert packed.compared(setting, layer, torch.randn(3, 64))["wrong"]


@pytest.mark.slow
def test_lengths_are_those_of_the_table(setting: Setting) -> None:
    rows = lengths.main(setting)["rows"]
    assert set(rows) == {f"{n} {p}" for n in ("aft", "aft_local") for p in ("fp32", "bf16")}
    assert all(row["32"]["latency_ms"] > 0 for row in rows.values())


@pytest.mark.slow
def test_mixers_are_compared_at_equal_tokens_and_seconds(
    monkeypatch: pytest.MonkeyPatch, setting: Setting
) -> None:
    monkeypatch.setattr(mixers, "NAMES", ("attention", "retnet"))
    result = mixers.main(setting)
    assert 2 < result["unigram_loss"] < 5.6
    for row in result["rows"].values():
        equal = [loss for tokens, _, loss in row["curve"] if tokens <= result["equal_tokens"]]
        assert row["loss_at_equal_tokens"] == equal[-1]


def test_a_part_that_fails_leaves_its_file_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    results = {"lengths": {"rows": {}}, "job": {"error": "ended with 1 and no result"}}
    monkeypatch.setattr("benchmarks.gpu.__main__.measure", lambda part, *_: results[part])
    chosen = ["--device", "cpu", "--tiny", "--only", "job", "lengths", "--out", str(tmp_path)]
    assert main(chosen) == 1
    found = {file.stem: json.loads(file.read_text()) for file in tmp_path.iterdir()}
    assert found["job"]["error"] == "ended with 1 and no result"
    assert found["lengths"]["machine"]["device"] == "cpu"


def test_what_is_packed_is_pinned() -> None:
    pinned = pack.requirements((ROOT / "constraints.txt").read_text())
    assert len(pinned) == len(pack.NAMES)
    assert not any(requirement.startswith("torch==") for requirement in pinned)
    with pytest.raises(LookupError, match="does not pin anyio"):
        pack.requirements("\n".join(r for r in pinned if not r.startswith("anyio")))


@pytest.mark.slow
def test_the_whole_program(tmp_path: Path) -> None:
    assert main(["--device", "cpu", "--tiny", "--seconds", "600", "--out", str(tmp_path)]) == 0
    assert {file.stem for file in tmp_path.iterdir()} == set(PARTS)
