"""Describe the environment of a run: machine, packages, commit."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from chimera.paths import CHECKOUT, FOLDERS, config_folders
from chimera.program import VERSION

#: Where Linux tells of the cores.
CPU = Path("/proc/cpuinfo")
#: Most changed files that a record names.
MOST_FILES = 20


def environment() -> dict[str, Any]:
    """Describe Python, machine, processor, GPU, git commit and versions of all packages."""
    import torch

    return {
        "python": platform.python_version(),
        "machine": platform.platform(),
        "processor": processor(),
        "cpus": os.cpu_count(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "chimera": VERSION,
        FOLDERS: [str(folder) for folder in config_folders()],
        "git": git_state(),
        "packages": dict(sorted(_packages())),
    }


def _packages() -> Iterator[tuple[str, str]]:
    for package in importlib.metadata.distributions():
        about = package.metadata  # parsed at each access
        yield about["Name"] or "", about["Version"]


def computed_on(about: Mapping[str, Any], config: Mapping[str, Any]) -> str | None:
    """The GPU of a machine, or its processor if the run was kept to that or there is no GPU.

    Args:
        about: the machine, by `environment`.
        config: of the run.
    """
    gpu: str | None = about.get("gpu")
    kept = (config.get("trainer") or {}).get("accelerator") == "cpu"
    return about.get("processor") if kept or not gpu else gpu


def git_state() -> dict[str, Any]:
    """Commit of this project's checkout, whether files were changed and which; `{}` outside git.

    `files` are at most 20 lines of `git status`, so that a record tells changed code from a note
    that lay beside it.
    """
    if CHECKOUT is None:
        return {}

    def git(*arguments: str) -> str | None:
        command = ("git", "-C", str(CHECKOUT), *arguments)
        result = subprocess.run(command, capture_output=True, text=True)
        return result.stdout.rstrip() if result.returncode == 0 else None

    try:
        commit = git("rev-parse", "HEAD")
    except FileNotFoundError:  # no git on this machine
        return {}
    if not commit:
        return {}
    changed = (git("status", "--porcelain") or "").splitlines()
    state = {"commit": commit, "changed": bool(changed)}
    return {**state, "files": listed(changed)} if changed else state


def listed(changed: Sequence[str]) -> list[str]:
    """The first lines, and how many more there are.

    Args:
        changed: lines of `git status --porcelain`.
    """
    more = len(changed) - MOST_FILES
    return [*changed[:MOST_FILES], *([f"and {more} more"] if more > 0 else [])]


def processor() -> str:
    """Name of the processor, with the family and model by which x86 tells generations apart.

    A virtual machine may name only the maker and the series («AMD EPYC»), for processors of
    different instruction sets, which round and compute at different speeds.
    """
    facts = first_core()
    if "model name" not in facts:
        return platform.processor()
    kind = ", ".join(f"{key} {facts[key]}" for key in ("cpu family", "model") if key in facts)
    return f"{facts['model name']} ({kind.removeprefix('cpu ')})" if kind else facts["model name"]


def first_core() -> dict[str, str]:
    """What Linux says of the first core, by its keys; empty elsewhere."""
    if not CPU.exists():
        return {}
    first = CPU.read_text(encoding="utf-8", errors="replace").partition("\n\n")[0]
    parts = (line.partition(":") for line in first.splitlines())
    return {key.strip(): value.strip() for key, _, value in parts}
