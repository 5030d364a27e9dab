"""What decides the numbers of a run, as eight hexadecimal digits."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from chimera.rundir.class_table import original

#: Keys that say where, how visibly or how safely a run goes, not what it computes; and those whose
#: effect stands elsewhere: a scale's bounds have been put, a choice's node is there.
NOT_IDENTITY = (
    "run_dir",
    "overwrite",
    "name",
    "logger",
    "choices",
    "scale",
    "table",
    "launcher",
    "workers",
    "guard",
    "task.teacher",
    "init_from",
    "data.cache_dir",
    "data.num_workers",
    "trainer.progress",
    "trainer.log_every_n_steps",
    "trainer.checkpoint_every_n_steps",
    "trainer.checkpoint_keep",
    "trainer.checkpoint_keep_best",
    "trainer.checkpoint_keep_epochs",
)


def identity(config: dict[str, Any]) -> str:
    """Eight hexadecimal digits of a hash of all that decides what a run computes.

    A key that is null counts as absent: a part that learns a new option keeps its runs.
    """
    kept = original(json.loads(json.dumps(config)))
    for key in NOT_IDENTITY:
        node, *rest = key.split(".")
        if rest:
            kept.get(node, {}).pop(rest[0], None)
        else:
            kept.pop(node, None)
    if kept.get("init_run") and "path" in kept["tokenizer"]:
        del kept["tokenizer"]["path"]  # the folder of the run that it starts from
    return hashlib.sha256(json.dumps(_said(kept), sort_keys=True).encode()).hexdigest()[:8]


def _said(node: Any) -> Any:
    """Nested configuration without what is null."""
    if isinstance(node, dict):
        return {key: _said(value) for key, value in node.items() if value is not None}
    return node


def flat(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested configuration as dotted keys, so that a dashboard can group and filter by each."""
    out: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, dict) and value:
            out |= flat(value, f"{prefix}{key}.")
        else:
            out[f"{prefix}{key}"] = value
    return out
