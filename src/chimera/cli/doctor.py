"""`chimera doctor`: what this machine has, what is missing, and what will be slow because of it.

No key and no name of an account is read out.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import netrc
import os
import platform
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

from chimera.cli.command import command
from chimera.data.source.cache import damaged
from chimera.paths import CHECKOUT, cache_root, runs_root
from chimera.program import DISTRIBUTION, VERSION

#: Instructions that decide how fast a CPU multiplies, as Linux names them.
FEATURES = (
    *("avx2", "avx512f", "avx_vnni", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8"),
    *("asimddp", "i8mm", "bf16", "sve"),
)
#: Packages of the extras, and what they are for.
EXTRAS = {
    "transformers": "model=hf, export",
    "peft": "LoRA files of others",
    "optuna": "search.*",
    "submitit": "launcher=submitit",
    "torchao": "optim=adamw8bit",
    "lion-pytorch": "optim=lion",
    "flash-linear-attention": "fused recurrences on a GPU",
    "tensorboard": "logger=tensorboard",
    "mlflow": "logger=mlflow",
    "wandb-workspaces": "chimera dashboard",
}
#: Files below this many are counted for the size of a folder; a larger folder is said to be larger.
FILES = 200_000
GB = 1e9


@dataclass(frozen=True)
class Options:
    """Options.

    Args:
        format: text or json.
    """

    format: Literal["text", "json"] = "text"


@command("doctor", Options)
def main(options: Options, words: list[str]) -> int:
    """Print the facts and the advice."""
    found = examine()
    notes = advice(found)
    if options.format == "json":
        print(json.dumps({**found, "advice": notes}, indent=2))
    else:
        print(text(found, notes))
    return 0


def text(found: dict[str, dict[str, Any]], notes: Sequence[str]) -> str:
    """The findings as aligned lines by subject, then what will be slow or fail."""
    lines = []
    for subject, facts in found.items():
        lines.append(subject)
        width = max(map(len, facts))
        lines += [f"  {name:<{width}}  {_shown(subject, v)}" for name, v in facts.items()]
    lines += ["", "what will be slow, or not work" if notes else "nothing to note"]
    lines += [f"  - {note}" for note in notes]
    return "\n".join(lines)


def _shown(subject: str, value: Any) -> str:
    from rich.filesize import decimal

    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    if isinstance(value, str):
        return value
    is_size = subject == "caches" or value >= 10_000
    return decimal(round(value)) if is_size else f"{value:.3g}"


def examine() -> dict[str, dict[str, Any]]:
    """Facts by subject and name: text, numbers (bytes from 10,000 on), truth values, lists."""
    return {
        "program": _program(),
        "processor": _processor(),
        "GPU": _gpu(),
        "memory and disk": _room(),
        "caches": _caches(),
        "logins": {"W&B": _wandb(), "Hugging Face": _hugging_face()},
        "ternary kernel": _kernel(),
        "extras": {f"{name} ({use})": _version(name) for name, use in EXTRAS.items()},
    }


def advice(found: dict[str, dict[str, Any]]) -> list[str]:
    """What will be slow or fail on this machine, why, and what helps; a line each."""
    cpu = found["processor"]
    gpu = found["GPU"]
    room = found["memory and disk"]
    features = set(cpu["features"])
    notes = list[str]()
    if found["caches"]["damaged"]:
        notes.append("the cache has damaged entries: delete them; the next run builds them again")
    if gpu["driver"] and not gpu["devices"]:
        notes.append("there is an NVIDIA driver, but torch sees no GPU: its build is for the CPU")
    if not gpu["devices"]:
        notes.append("no GPU: scale=paper takes weeks; scale=small takes minutes")
        if found["program"]["linux on x86"] and not features & {"avx2", "avx512f"}:
            notes.append("the CPU has no AVX2: every product takes several times as long")
        if cpu["bf16 units"] == "no":
            notes.append("precision=bf16 is slower than fp32: the CPU has no matrix units for it")
        notes.append("precision=fp16 is slow on every CPU; it is for tests")
        if not features & {"avx_vnni", "avx512_vnni", "amx_int8", "asimddp", "i8mm"}:
            notes.append("quant.compute=int8 gains little: the CPU has no 8-bit dot products")
    if gpu["Triton errs"]:
        notes.append(
            f"Triton computes gradients of gates wrongly ({gpu['Triton errs']}): mixers whose decay"
            " depends on the token (gated_delta) train without fused kernels; use a later Triton"
        )
    if cpu["threads"] < cpu["usable cores"]:
        where = " (OMP_NUM_THREADS)" if cpu["OMP_NUM_THREADS"] else ""
        notes.append(
            f"torch uses {cpu['threads']} of {cpu['usable cores']} cores{where}: a single run is"
            " slower than it could be"
        )
    if cpu["load"] > 0.5 * cpu["usable cores"]:
        notes.append(
            f"other processes use {cpu['load']:.1f} of {cpu['usable cores']} cores: OpenMP threads"
            " that wait by spinning slow each other down; trainer.threads= leaves them cores"
        )
    if found["ternary kernel"]["compiler"] is None:
        notes.append(
            "no C++ compiler: packed ternary models compute in torch, more slowly; install g++"
        )
    if room["free memory"] is not None and room["free memory"] < 3 * GB:
        notes.append("less than 3 GB of memory are free: a run of scale=small needs 1 GB")
    for name in ("free disk of runs", "free disk of caches"):
        if room[name] < 5 * GB:
            notes.append(f"less than 5 GB are left ({name}): chimera clean shows what can go")
    if not room["runs can be written"]:
        notes.append(f"{room['runs']} cannot be written to; CHIMERA_RUNS names another folder")
    if not found["logins"]["W&B"]:
        notes.append("no W&B login: runs are logged offline, which needs none")
    if not found["program"]["sources of Python"]:
        notes.append("data=pydocs needs Python's sources, which are not here; use data=text")
    return notes


def _program() -> dict[str, Any]:
    import sysconfig

    return {
        "chimera": f"{VERSION} ({DISTRIBUTION}), {CHECKOUT or 'installed'}",
        "Python": f"{platform.python_version()}, {sys.executable}",
        "system": platform.platform(),
        "torch": _version("torch"),
        "lightning": _version("lightning"),
        "linux on x86": sys.platform == "linux" and platform.machine() in ("x86_64", "AMD64"),
        "sources of Python": Path(sysconfig.get_path("stdlib"), "pydoc_data/topics.py").is_file(),
    }


def _processor() -> dict[str, Any]:
    import torch

    from chimera.config.precision import instructions, matrix_units
    from chimera.rundir.environment import processor

    has = instructions()
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    affinity = getattr(os, "sched_getaffinity", None)
    units, why = matrix_units("cpu")
    return {
        "name": processor(),
        "cores": os.cpu_count() or 1,
        "usable cores": len(affinity(0)) if affinity else os.cpu_count() or 1,
        "load": float(load),
        "threads": torch.get_num_threads(),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS"),
        "OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY"),
        "features": [name for name in FEATURES if name in has],
        "torch computes with": torch.backends.cpu.get_cpu_capability(),
        "bf16 units": why if units == "bf16" else "no",
    }


def _gpu() -> dict[str, Any]:
    import torch

    from chimera.ops import fused

    devices = []
    errs = None
    triton = _version("triton")
    if torch.cuda.is_available():
        for number in range(torch.cuda.device_count()):
            about = torch.cuda.get_device_properties(number)
            devices.append(
                f"{about.name}, {about.total_memory / GB:.0f} GB, {about.major}.{about.minor}"
            )
            if triton and fused.wrong(torch.device("cuda", number)):
                errs = f"{triton} on {about.name}"
    return {
        "devices": devices,
        "CUDA of torch": torch.version.cuda,
        "Triton errs": errs,
        "driver": any(Path(p).exists() for p in ("/dev/nvidiactl", "/dev/dxg")),
    }


def _room() -> dict[str, Any]:
    runs = runs_root().absolute()
    cache = cache_root()
    place = _existing(runs)
    return {
        "free memory": _free_memory(),
        "runs": str(runs),
        "runs can be written": os.access(place, os.W_OK),
        "free disk of runs": float(shutil.disk_usage(place).free),
        "free disk of caches": float(shutil.disk_usage(_existing(cache)).free),
    }


def _free_memory() -> float | None:
    """Bytes that new processes can have; None where the system does not say."""
    file = Path("/proc/meminfo")
    lines = file.read_text().splitlines() if file.exists() else []
    found = [line.split() for line in lines if line.startswith("MemAvailable:")]
    return 1024.0 * float(found[0][1]) if found else None


def _caches() -> dict[str, Any]:
    """Sizes of the caches by their kinds, of the runs, and of Hugging Face's; damaged entries."""
    cache = cache_root()
    runs = runs_root()
    kinds = [p for p in sorted(cache.iterdir()) if p.is_dir()] if cache.is_dir() else []
    hub = os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface"
    found: dict[str, Any] = {"folder": str(cache)}
    found |= {kind.name: _bytes(kind) for kind in kinds}
    found["damaged"] = list(map(str, damaged(cache)))
    number = (
        sum((path / "config.yaml").is_file() for path in runs.iterdir()) if runs.is_dir() else 0
    )
    return {**found, f"runs ({number})": _bytes(runs), "Hugging Face": _bytes(Path(hub))}


def _kernel() -> dict[str, Any]:
    named = ("c++", "g++", "clang++")
    compiler = next(filter(None, map(shutil.which, (os.environ.get("CXX", ""), *named))), None)
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "chimera"
    return {
        "compiler": compiler,
        "built": len(list(root.glob("ternary-*.so"))) if root.is_dir() else 0,
        "Triton (GPU)": _version("triton"),
        "switched off": os.environ.get("CHIMERA_KERNELS") == "0",
    }


def _wandb() -> bool:
    """Whether a key for W&B is there."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    with contextlib.suppress(OSError, netrc.NetrcParseError):
        hosts = netrc.netrc(os.environ.get("NETRC")).hosts
        return any("wandb" in host for host in hosts)
    return False


def _hugging_face() -> bool:
    """Whether a token for the hub is there."""
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    file = Path(os.environ.get("HF_TOKEN_PATH") or home / "token")
    return bool(os.environ.get("HF_TOKEN")) or file.is_file()


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _existing(path: Path) -> Path:
    """The path, or the nearest folder above it that exists."""
    return next(p for p in (path.absolute(), *path.absolute().parents) if p.is_dir())


def _bytes(folder: Path) -> int:
    """Bytes of the files below a folder, of the first many of them."""
    files = itertools.islice(folder.rglob("*"), FILES)
    return sum(file.lstat().st_size for file in files if not file.is_dir())
