"""`chimera doctor`: what this machine has, what is missing, and what will be slow because of it.

No key and no name of an account is read out.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import netrc
import os
import platform
import re
import shutil
import sys
from collections.abc import Iterable, Sequence
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
#: Instructions of 8-bit dot products.
DOTS = {"avx_vnni", "avx512_vnni", "amx_int8", "asimddp", "i8mm"}
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
    return decimal(round(value)) if subject == "caches" or value >= 10_000 else f"{value:.3g}"


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
    program = found["program"]
    cpu = found["processor"]
    gpu = found["GPU"]
    room = found["memory and disk"]
    none = not gpu["devices"]
    features = set(cpu["features"])
    cores = cpu["usable cores"]
    where = " (OMP_NUM_THREADS)" if cpu["OMP_NUM_THREADS"] else ""
    full = [name for name in ("free disk of runs", "free disk of caches") if room[name] < 5 * GB]
    checks = {
        "the cache has damaged entries: delete them; the next run builds them again": (
            found["caches"]["damaged"]
        ),
        "there is an NVIDIA driver, but torch sees no GPU: its build is for the CPU": (
            gpu["driver"] and none
        ),
        f"this build of torch has no kernels for {gpu['without kernels']}; the build"
        " for CUDA 12.6 has them for cards up to 7.0: pip install torch==<this version>"
        " --index-url https://download.pytorch.org/whl/cu126": gpu["without kernels"],
        "no GPU: scale=paper takes weeks; scale=small takes minutes": none,
        "the CPU has no AVX2: every product takes several times as long": (
            none and program["linux on x86"] and not features & {"avx2", "avx512f"}
        ),
        "precision=bf16 is slower than fp32: the CPU has no matrix units for it": (
            none and cpu["bf16 units"] == "no"
        ),
        "precision=fp16 is slow on every CPU; it is for tests": none,
        "quant.compute=int8 gains little: the CPU has no 8-bit dot products": (
            none and not features & DOTS
        ),
        f"Triton computes gradients of gates wrongly ({gpu['Triton errs']}): mixers whose decay"
        " depends on the token (gated_delta) train without fused kernels; use a later Triton": (
            gpu["Triton errs"]
        ),
        f"torch uses {cpu['threads']} of {cores} cores{where}: a single run is slower than it"
        " could be": cpu["threads"] < cores,
        f"other processes use {cpu['load']:.1f} of {cores} cores: OpenMP threads that wait by"
        " spinning slow each other down; trainer.threads= leaves them cores": (
            cpu["load"] > 0.5 * cores
        ),
        "no C++ compiler: packed ternary models compute in torch, more slowly; install g++": (
            found["ternary kernel"]["compiler"] is None
        ),
        "less than 3 GB of memory are free: a run of scale=small needs 1 GB": (
            (room["free memory"] or math.inf) < 3 * GB
        ),
        f"less than 5 GB are left ({', '.join(full)}): chimera clean shows what can go": full,
        f"{room['runs']} cannot be written to; CHIMERA_RUNS names another folder": (
            not room["runs can be written"]
        ),
        "no W&B login: runs are logged offline, which needs none": not found["logins"]["W&B"],
        "data=pydocs needs Python's sources, which are not here; use data=text": (
            not program["sources of Python"]
        ),
    }
    return [text for text, applies in checks.items() if applies]


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

    units, why = matrix_units("cpu")
    return {
        "name": processor(),
        "cores": os.cpu_count() or 1,
        "usable cores": len(os.sched_getaffinity(0)),
        "load": os.getloadavg()[0],
        "threads": torch.get_num_threads(),
        **{name: os.environ.get(name) for name in ("OMP_NUM_THREADS", "OMP_WAIT_POLICY")},
        "features": sorted(instructions() & set(FEATURES), key=FEATURES.index),
        "torch computes with": torch.backends.cpu.get_cpu_capability(),
        "bf16 units": why if units == "bf16" else "no",
    }


def _gpu() -> dict[str, Any]:
    import torch

    from chimera.ops import fused

    triton = _version("triton")
    cards = [torch.device("cuda", n) for n in range(torch.cuda.device_count())]
    about = [torch.cuda.get_device_properties(card) for card in cards]
    built = torch.cuda.get_arch_list()
    old = [f"{a.name} ({a.major}.{a.minor})" for a in about if not runs_on(a.major, a.minor, built)]
    wrong = [a.name for a, card in zip(about, cards, strict=True) if triton and fused.wrong(card)]
    return {
        "devices": [f"{a.name}, {a.total_memory / GB:.0f} GB, {a.major}.{a.minor}" for a in about],
        "CUDA of torch": torch.version.cuda,
        "without kernels": ", ".join(old) or None,
        "Triton errs": f"{triton} on {wrong[-1]}" if wrong else None,
        "driver": any(Path(p).exists() for p in ("/dev/nvidiactl", "/dev/dxg")),
    }


def runs_on(major: int, minor: int, built: Sequence[str]) -> bool:
    """Whether a GPU of a compute capability has kernels in a build of torch.

    Args:
        major, minor: of the capability.
        built: what it was built for, such as `sm_75`; kernels run on later minor versions, too.
    """
    versions = [divmod(int(n), 10) for n in re.findall(r"sm_(\d+)", " ".join(built))]
    return any(major == of and minor >= least for of, least in versions)


def _room() -> dict[str, Any]:
    runs = runs_root().absolute()
    place = _existing(runs)
    memory = Path("/proc/meminfo")  # bytes that new processes can have
    free = re.search(r"MemAvailable: *(\d+)", memory.read_text() if memory.exists() else "")
    return {
        "free memory": 1024.0 * float(free[1]) if free else None,
        "runs": str(runs),
        "runs can be written": os.access(place, os.W_OK),
        "free disk of runs": float(shutil.disk_usage(place).free),
        "free disk of caches": float(shutil.disk_usage(_existing(cache_root())).free),
    }


def _caches() -> dict[str, Any]:
    """Sizes of the caches by their kinds, of the runs, and of Hugging Face's; damaged entries."""
    cache = cache_root()
    runs = runs_root()
    return {
        "folder": str(cache),
        **{kind.name: _bytes(kind) for kind in sorted(cache.glob("*/"))},
        "damaged": list(map(str, damaged(cache))),
        f"runs ({len(list(runs.glob('*/config.yaml')))})": _bytes(runs),
        "Hugging Face": _bytes(_hub()),
    }


def _kernel() -> dict[str, Any]:
    from chimera.ops.native import COMPILERS

    found = map(shutil.which, (os.environ.get("CXX", ""), *COMPILERS))
    return {
        "compiler": next(filter(None, found), None),
        "Triton (GPU)": _version("triton"),
        "switched off": os.environ.get("CHIMERA_KERNELS") == "0",
    }


def _wandb() -> bool:
    """Whether a key for W&B is there."""
    hosts: Iterable[str] = ()
    with contextlib.suppress(OSError, netrc.NetrcParseError):
        hosts = netrc.netrc(os.environ.get("NETRC")).hosts
    return bool(os.environ.get("WANDB_API_KEY")) or any("wandb" in host for host in hosts)


def _hugging_face() -> bool:
    """Whether a token for the hub is there."""
    file = Path(os.environ.get("HF_TOKEN_PATH") or _hub() / "token")
    return bool(os.environ.get("HF_TOKEN")) or file.is_file()


def _hub() -> Path:
    return Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")


def _version(name: str) -> str | None:
    with contextlib.suppress(PackageNotFoundError):
        return version(name)
    return None


def _existing(path: Path) -> Path:
    """The path, or the nearest folder above it that exists."""
    return next(p for p in (path.absolute(), *path.absolute().parents) if p.is_dir())


def _bytes(folder: Path) -> int:
    """Bytes of the files below a folder, of the first many of them."""
    files = itertools.islice(folder.rglob("*"), FILES)
    return sum(file.lstat().st_size for file in files if not file.is_dir())
