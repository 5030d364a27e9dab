"""The program for a GPU runs on a CPU; a step's kernels and bytes stay within their bounds."""

from __future__ import annotations

import json
from multiprocessing import Event
from pathlib import Path

import pytest
import torch
from benchmarks.gpu import meter
from benchmarks.gpu.__main__ import WAVES, main
from benchmarks.gpu.fused import fused
from benchmarks.gpu.job import HALF, Setting
from benchmarks.gpu.loop import ORDINARY, Reads, Watch, loop, train
from benchmarks.gpu.meter import measured, traced
from benchmarks.gpu.steps import PRESETS, Preset, write_text
from benchmarks.gpu_budget import Budget, budget, held

from chimera.paths import ROOT

TINY = ["--device", "cpu", "--tiny"]


def rows(out: Path) -> dict[str, dict[str, dict[str, object]]]:
    """Rows by part, from the files."""
    files = {file.stem.partition("-")[0]: json.loads(file.read_text()) for file in out.iterdir()}
    assert all(content["machine"]["torch"] and content["tiny"] for content in files.values())
    return {part: content["rows"] for part, content in files.items()}


def test_without_a_gpu_one_line_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert main(["--out", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_job_that_fails_leaves_a_row_and_the_others_go_on(tmp_path: Path) -> None:
    arguments = [*TINY, "--seconds", "300", "--out", str(tmp_path), "--only"]
    assert main([*arguments, "kernels nothing", "kernels retnet"]) == 1
    found = rows(tmp_path)["kernels"]
    assert "error" in found["nothing"]
    errors = found["retnet"]["ours"]
    assert isinstance(errors, dict)
    assert all(errors[key] < 0.01 for key in ("o", "dq", "dk", "dv"))
    assert errors["step_ms"] > 0
    assert main([*arguments, "kernels kda"]) == 0  # beside the rows of before
    assert set(rows(tmp_path)["kernels"]) == {"nothing", "retnet", "kda"}


def test_kernels_that_overlap_count_once() -> None:
    kernel = {"cat": "kernel", "name": "k"}
    events = [{**kernel, "ts": ts, "dur": 4e6} for ts in (1e6, 3e6, 9e6)]
    events.append(
        {"cat": "gpu_memcpy", "name": "Memcpy DtoH (Device -> Pinned)", "ts": 1, "dur": 1}
    )
    events.append({"cat": "cuda_runtime", "name": "cudaStreamSynchronize", "ts": 1, "dur": 1})

    class Profile:
        def export_chrome_trace(self, file: str) -> None:
            Path(file).write_text(json.dumps({"traceEvents": events}))

    found = traced(Profile(), 1)
    assert (found["kernels"], found["waits"], found["busy_seconds"]) == (3, 1, 10)
    assert found["copies"] == {"Memcpy DtoH": 1}


def test_as_many_steps_are_profiled_as_counts_are_divided_by(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps: list[str] = []

    class Profile:
        def __init__(self, **_: object) -> None: ...

        def start(self) -> None:
            steps.append("start")

        def stop(self) -> None:
            steps.append("stop")

    monkeypatch.setattr(meter, "profile", Profile)
    monkeypatch.setattr(meter, "traced", lambda prof, number: {"number": number})
    event = Event()
    event.set()
    row = measured(Setting("cpu", True, event, event), lambda: steps.append("step"))
    inside = steps[steps.index("start") + 1 : steps.index("stop")]
    assert inside == ["step"] * row["number"]


def test_what_is_packed_is_pinned() -> None:
    script = (ROOT / "tools" / "gpu_pack.sh").read_text().partition('names="')[2].partition('"')[0]
    pins = {line.partition("==")[0].lower().replace("_", "-")
            for line in (ROOT / "constraints.txt").read_text().splitlines()}  # fmt: skip
    assert len(script.split()) > 30
    assert not set(script.split()) - pins


@pytest.mark.slow
@pytest.mark.parametrize("job", sorted({name for wave in WAVES for name in wave}))
def test_every_job_has_a_row(tmp_path: Path, job: str) -> None:
    if job == "packed gemlite":
        pytest.skip("its kernels need CUDA")
    assert main([*TINY, "--seconds", "500", "--out", str(tmp_path), "--only", job]) == 0


def test_what_is_counted() -> None:
    x = torch.ones(8, 1).expand(8, 4)
    assert held(x) == 8 * 4
    with Budget() as found:
        y = x @ torch.ones(4, 2)  # ones is a kernel too
        y.view(-1).relu_()
        y.sum().item()
    assert (found.kernels, found.reads, found.flops) == (4, 1, 2 * 8 * 4 * 2)
    # empty and filled; product; read and written; read, and the sum
    assert found.bytes == 32 + (32 + 32 + 64) + (64 + 64) + (64 + 4)


def test_a_step_waits_for_nothing_before_its_update_and_compiles_once() -> None:
    """Both numbers of a step are read when its update has begun; log steps read norms before."""
    found = loop(Preset(["preset=bert_base", "model.depth=2"], batch=2, length=32))
    assert found["waits"] == {"early": 0, "late": 1}, found["places"]
    assert found["waits_logged"] == {"early": 1, "late": 1}
    once = {"training": 1, "training, later": 0, "validation": 1, "validation, later": 0}
    assert found["graphs"] == found["graphs_auto"] == once
    assert found["breaks"] == found["breaks_auto"] == 0
    assert min(found["callbacks_ms"], found["loader_ms"]) > 0


def test_a_step_in_fp16_waits_no_more(tmp_path: Path) -> None:
    write_text(tmp_path, 1000, 100_000)
    with Reads() as reads:
        train(Preset(["preset=bert_base", "model.depth=2"], "fp16", 2, 32), tmp_path, reads)
    seen = [{kind: sum(x.values()) for kind, x in reads.steps[n - 1].items()} for n in ORDINARY]
    assert seen == [{"early": 0, "late": 1}] * len(ORDINARY)


def test_what_counts_as_a_wait() -> None:
    x = torch.arange(3.0)
    watch = Watch()
    with watch:
        watch.on = True
        assert float(x[0]) + x.sum().item() + len(x[x > 0].tolist())
        torch.tensor([1.0], device=x.device)
        torch.tensor([1.0]) + torch.full((), 2.0, device=x.device)
        watch.updated = True
        bool(x.any())
    assert [sum(watch.seen[kind].values()) for kind in ("early", "late")] == [5, 1]


@pytest.mark.parametrize(
    ("name", "kernels", "gigabytes"),
    [("bert", 1464, 44.3), pytest.param("attention", 1377, 99.6, marks=pytest.mark.slow)],
)
def test_a_step_takes_no_more_than_it_did(name: str, kernels: int, gigabytes: float) -> None:
    found = budget(PRESETS[name])
    assert found.kernels <= kernels
    assert found.bytes / 1e9 <= gigabytes
    assert found.reads == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kernels", "gigabytes"),
    [("bert", 400, 20.4), ("attention", 338, 39.2), ("retnet", 375, 47.2),
     ("gated_delta", 539, 57.3), ("mamba2", 527, 65.0), ("bitnet", 1283, 60.8)],
)  # fmt: skip
def test_a_compiled_step_takes_no_more_than_it_did(
    name: str, kernels: int, gigabytes: float
) -> None:
    found = fused(PRESETS[name], HALF)
    assert found.kernels <= kernels
    assert found.bytes / 1e9 <= gigabytes
    assert (found.breaks, found.barred) == (0, [])  # what a CUDA graph cannot hold
