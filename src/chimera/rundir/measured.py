"""`quant.compute=auto`: the arithmetic that was measured for a run, read back when it goes on.

A run resolves `auto` before it starts. Its configuration then has the arithmetic in its place, so
that the identity has it too, and `measured` says that it was measured. The same command line finds
this run again, on a machine that would choose another arithmetic too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

#: What `auto` may become.
ARITHMETICS = ("simulate", "int8", "bf16")


def is_open(config: dict[str, Any]) -> bool:
    """Whether the arithmetic of a configuration is still to be chosen."""
    return bool((config.get("quant") or {}).get("compute") == "auto")


def chosen(config: dict[str, Any], compute: str, seconds: dict[str, float]) -> dict[str, Any]:
    """The configuration with an arithmetic in place of `auto`.

    Args:
        config: with `quant.compute=auto`.
        compute: the arithmetic.
        seconds: measured for each; empty if there was no choice.
    """
    measured = {"quant.compute": compute, "seconds": seconds}
    return {**config, "quant": {**config["quant"], "compute": compute}, "measured": measured}


def reused(
    config: dict[str, Any],
    places: Callable[[dict[str, Any]], Iterable[Path]],
    read: Callable[[Path], dict[str, Any]],
) -> dict[str, Any]:
    """The configuration with the arithmetic that its run has chosen before; as it is, if none has.

    Args:
        config: any.
        places: directories that a run of a configuration may have.
        read: the configuration of the run in a directory.
    """
    if not is_open(config):
        return config
    for compute in ARITHMETICS:
        trial = chosen(config, compute, {})
        for path in places(trial):
            existing = read(path) if (path / "config.yaml").is_file() else {}
            measured = existing.get("measured") or {}
            if measured.get("quant.compute") == compute:
                return {**trial, "measured": measured}
    return config
