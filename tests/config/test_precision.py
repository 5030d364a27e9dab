"""`precision=auto` becomes a number format before anything else happens."""

from __future__ import annotations

from pathlib import Path

import pytest

from chimera.config import precision
from chimera.config.compose import compose, plain
from chimera.rundir import environment
from chimera.rundir.identity import identity

CPUS = {
    "amx": ("flags\t\t: fpu avx2 amx_bf16 avx512_bf16 amx_tile\n", "bf16"),
    "avx512": ("processor: 0\nflags\t\t: fpu avx512_bf16\n", "bf16"),
    "zen 3": ("flags\t\t: fpu avx2 vaes\n", "fp32"),
    "arm": ("Features\t: fp asimd bf16 i8mm\n", "bf16"),
    "other": ("", "fp32"),
}


@pytest.fixture
def cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "cpuinfo"
    monkeypatch.setattr(environment, "CPU", file)
    monkeypatch.setattr(precision, "_GPUS", ())
    return file


@pytest.mark.parametrize("name", CPUS)
def test_a_cpu_with_units_takes_bf16(name: str, cpu: Path) -> None:
    text, wanted = CPUS[name]
    cpu.write_text(text)
    config = plain(compose(["precision=auto"]))
    assert config["precision"] == wanted
    assert identity(config) == identity(plain(compose([f"precision={wanted}"])))
    (line,) = precision.announcement(config, ["precision=auto"])
    assert line.startswith(f"precision=auto is precision={wanted}: this CPU has ")
    assert not precision.announcement(config, [f"precision={wanted}"])


@pytest.mark.parametrize(("capability", "wanted"), [((7, 5), "fp32"), ((8, 0), "bf16")])
def test_a_gpu_takes_it_from_8_0_on(
    capability: tuple[int, int], wanted: str, cpu: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpu.write_text(CPUS["amx"][0])
    monkeypatch.setattr(precision, "_capability", lambda: capability)
    assert precision.matrix_units("auto")[0] == wanted
    assert precision.matrix_units("cpu")[0] == "bf16"


def test_fp32_is_the_default() -> None:
    assert plain(compose([]))["precision"] == "fp32"
