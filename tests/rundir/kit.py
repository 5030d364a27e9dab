"""Directories of finished runs with invented results, so that nothing has to be trained."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from chimera.callback.log.steps import FIELDS
from chimera.config.compose import compose, plain
from chimera.rundir.directory import STATUS
from chimera.rundir.identity import identity

WORDS = ["scale=smoke", "mixer=retnet"]
ENVIRONMENT = {
    "python": "3.11.9",
    "machine": "Linux-test",
    "processor": "Test CPU",
    "cpus": 2,
    "gpu": None,
    "git": {"commit": "a" * 40, "changed": False},
    "packages": {"torch": "2.13.0"},
}


def a_run(folder: Path, words: Sequence[str] = WORDS, **changes: Any) -> Path:
    """A run below the folder under the name of its settings; `changes` are of its configuration."""
    config = plain(compose(words)) | changes
    record = {
        "identity": identity(config),
        "metrics": {"val/perplexity": 12.5, "val/loss": 2.5},
        "data": {"cache": "/home/me/.cache/chimera/tokens/1", "splits": {}},
    }
    return write_run(folder / f"{config['name']}-{identity(config)}", config, record, words=words)


def write_run(
    run: Path,
    config: Mapping[str, Any] | None,
    record: Mapping[str, Any] | None,
    *,
    words: Sequence[str] = (),
    status: Mapping[str, Any] = {},
    environment: Mapping[str, Any] = ENVIRONMENT,
    steps: int = 1000,
) -> Path:
    """Write the files of a run; its loss rises by a seventh a step, of a second each."""
    run.mkdir(parents=True)
    if config is not None:
        dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
        (run / "config.yaml").write_text(yaml.dump(config, Dumper=dumper, sort_keys=False))
        (run / "overrides.txt").write_text("".join(f"{word}\n" for word in words))
    whole = {**dict.fromkeys(STATUS, 1), "state": "DONE"}
    for name, contents in (("status", status or whole), ("environment", environment)):
        (run / f"{name}.json").write_text(json.dumps(contents))
    if record is not None:
        (run / "run.json").write_text(json.dumps(record))
    rows = [",".join(FIELDS)]
    for step in range(1, steps + 1):
        clock = f"2026-01-01T00:{step // 60:02}:{step % 60:02}+00:00"
        rows.append(f"{clock},0,{step},{step},{step / 7},0.5,1e-3,1.0,1.0,0.0,0.0")
    (run / "steps.csv").write_text("\r\n".join(rows) + "\r\n")
    return run
