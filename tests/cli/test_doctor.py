"""`chimera doctor`: facts of this machine, advice on them, and no secret."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from chimera.cli import doctor
from chimera.cli.doctor import advice, examine, main, runs_on, text


@pytest.fixture
def secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Keys in every place that is looked at."""
    monkeypatch.setenv("WANDB_API_KEY", "wandb-key-in-environment")
    monkeypatch.setenv("HF_TOKEN", "hf-token-in-environment")
    (tmp_path / "netrc").write_text("machine api.wandb.ai login me password wandb-key-in-file\n")
    (tmp_path / "token").write_text("hf-token-in-file")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.setenv("CHIMERA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("CHIMERA_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    return ["in-environment", "in-file", "login me"]


def test_facts_are_those_of_torch_and_no_key_is_shown(
    secrets: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = set(tmp_path.rglob("*"))
    assert main(["format=json"]) == 0
    shown = capsys.readouterr().out
    found = json.loads(shown)
    # PyPI's build for CUDA: its metadata leave out the part after the plus that torch itself adds.
    assert torch.__version__.startswith(found["program"]["torch"])
    assert found["processor"]["threads"] == torch.get_num_threads()
    assert found["logins"] == {"W&B": True, "Hugging Face": True}
    assert main([]) == 0
    shown += capsys.readouterr().out
    assert not [secret for secret in secrets if secret in shown]
    assert set(tmp_path.rglob("*")) == before


def test_logins_in_files_count(secrets: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WANDB_API_KEY")
    monkeypatch.delenv("HF_TOKEN")
    assert examine()["logins"] == {"W&B": True, "Hugging Face": True}
    monkeypatch.setenv("NETRC", "/nowhere")
    monkeypatch.setenv("HF_TOKEN_PATH", "/nowhere")
    assert examine()["logins"] == {"W&B": False, "Hugging Face": False}


GOOD: dict[str, dict[str, Any]] = {
    "program": {"linux on x86": True, "sources of Python": True},
    "processor": {
        "usable cores": 8, "load": 0.1, "threads": 8, "OMP_NUM_THREADS": None,
        "features": ["avx2", "avx512_vnni"], "bf16 units": "this CPU has amx_bf16",
    },
    "GPU": {
        "devices": ["H200, 141 GB, 9.0"], "driver": True, "Triton errs": None,
        "without kernels": None,
    },
    "memory and disk": {
        "free memory": 9e10, "free disk of runs": 9e10, "free disk of caches": 9e10,
        "runs can be written": True, "runs": "/runs",
    },
    "logins": {"W&B": True, "Hugging Face": True},
    "caches": {"damaged": []},
    "ternary kernel": {"compiler": "/usr/bin/c++"},
}  # fmt: skip


@pytest.mark.parametrize(
    ("subject", "fact", "value", "says"),
    [
        ("caches", "damaged", ["/cache/tokens/0"], "the cache has damaged entries"),
        ("GPU", "devices", [], "its build is for the CPU"),
        ("GPU", "without kernels", "Tesla P40 (6.1)", "for Tesla P40 (6.1); the build"),
        ("GPU", "Triton errs", "3.6.0 on H200", "gates wrongly (3.6.0 on H200)"),
        ("processor", "threads", 2, "torch uses 2 of 8 cores"),
        ("processor", "load", 7.5, "other processes use 7.5 of 8 cores"),
        ("memory and disk", "free memory", 1e9, "less than 3 GB of memory"),
        ("memory and disk", "free disk of runs", 1e9, "chimera clean"),
        ("memory and disk", "runs can be written", False, "CHIMERA_RUNS"),
        ("ternary kernel", "compiler", None, "no C++ compiler"),
        ("logins", "W&B", False, "no W&B login"),
        ("program", "sources of Python", False, "data=text"),
    ],
)
def test_each_lack_is_named(subject: str, fact: str, value: object, says: str) -> None:
    assert advice(GOOD) == []
    found = copy.deepcopy(GOOD)
    found[subject][fact] = value
    assert any(says in line for line in advice(found))
    assert says in text(found, advice(found))


def test_a_gpu_without_kernels_in_this_build_of_torch() -> None:
    built = ["sm_75", "sm_80", "sm_86", "sm_90a", "sm_100", "sm_120"]
    assert [runs_on(*card, built) for card in ((7, 5), (8, 9), (9, 0), (12, 1))] == [True] * 4
    assert not any(runs_on(*card, built) for card in ((6, 1), (7, 0), (11, 0)))


def test_a_cpu_without_units_is_told_what_is_slow() -> None:
    found = copy.deepcopy(GOOD)
    found["GPU"] |= {"devices": [], "driver": False}
    found["processor"] |= {"features": [], "bf16 units": "no"}
    said = " ".join(advice(found))
    for word in ("no GPU", "no AVX2", "precision=bf16 is slower", "quant.compute=int8 gains"):
        assert word in said


def test_folders_are_measured_without_following_links(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 1000)
    (tmp_path / "up").symlink_to(tmp_path)
    assert 1000 <= doctor._bytes(tmp_path) < 2000
    assert doctor._bytes(tmp_path / "missing") == 0
