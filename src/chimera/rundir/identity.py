"""What decides the numbers of a run, as eight hexadecimal digits."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from chimera.rundir.class_table import original

#: Raised whenever a change alters the numbers of configurations that did not change, so that no
#: table mixes runs from before and after it. In the identity from 2 on; 1 is the first release.
NUMERICS = 1

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
    "callbacks",
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

#: Dotted keys that were added after the first release, and their defaults. At its default a key is
#: left out of the hash, so finished runs keep their names.
LATER: dict[str, Any] = {
    "numerics": 1,
    "optim.optimizer": {"_target_": "torch.optim.AdamW", "_partial_": True},
    "optim.schedule": {"_target_": "chimera.optim.schedule.warmup_cosine", "_partial_": True},
}


def identity(config: dict[str, Any]) -> str:
    """Eight hexadecimal digits of a hash of all that decides what a run computes."""
    text = json.dumps(decisive(config), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def decisive(config: dict[str, Any]) -> dict[str, Any]:
    """The part of a configuration that decides what a run computes, by old class paths.

    A key that is null counts as absent: a part that learns a new option keeps its runs.
    """
    kept = json.loads(json.dumps(config))
    for key, default in LATER.items():
        node = _holder(kept, key)
        if node.get(key.rpartition(".")[2]) == default:
            del node[key.rpartition(".")[2]]
    kept = original(kept)
    for key in NOT_IDENTITY:
        _holder(kept, key).pop(key.rpartition(".")[2], None)
    if kept.get("init_run") and "path" in kept["tokenizer"]:
        del kept["tokenizer"]["path"]  # the folder of the run that it starts from
    found: dict[str, Any] = _without_null(kept)
    return found


def differences(there: dict[str, Any], here: dict[str, Any]) -> list[str]:
    """What decides two runs and differs, one text a key: `seed=0 there, 7 here`.

    Of two choices of a group only the choices are named.
    """
    old, new = flat(decisive(there)), flat(decisive(here))
    keys = [key for key in {**old, **new} if old.get(key) != new.get(key)]
    chosen = {
        group: (there["choices"].get(group), option)
        for group, option in here["choices"].items()
        if there["choices"].get(group) != option
    }
    found = {}
    for key in keys:
        group = key.partition(".")[0]
        if group in chosen:
            found[group] = chosen[group]
        else:
            found[key] = (old.get(key), new.get(key))
    return [f"{key}={a} there, {b} here" for key, (a, b) in found.items()]


def _holder(config: dict[str, Any], key: str) -> dict[str, Any]:
    """The mapping that holds the last part of a dotted key; an empty one where there is none."""
    node: Any = config
    for part in key.split(".")[:-1]:
        node = node.get(part) if isinstance(node, dict) else None
    return node if isinstance(node, dict) else {}


def _without_null(node: Any) -> Any:
    if isinstance(node, dict):
        return {key: _without_null(value) for key, value in node.items() if value is not None}
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
