"""Identity of a run: eight hexadecimal digits of a hash of all settings that affect its numbers.

Records of finished runs are found by it, so it changes as seldom as possible. A new key of a part
is null by default, because null is not hashed. A change of the code that alters numbers changes a
key of the runs that it concerns and of no others, such as a key `revision` of the part or of the
data, which is null until then.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from chimera import dotted

#: Version of what the code computes, a part of every identity. It stays; see above.
NUMERICS = 2

#: Key of `config.yaml` and `run.json` that lists the extensions of a run (`extend=true`).
EXTENDED = "extended"
#: Keys that do not affect the numbers of a run (places, logging, checkpoints), and keys whose
#: effect other keys hold: the scale has been applied, the nodes of the choices are in place.
#: Callbacks are Chimera's own; those of others count (`_callbacks_of_others`).
NOT_IDENTITY = (
    "run_dir",
    "overwrite",
    "extend",
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
    "data.processes",
    "trainer.progress",
    "trainer.log_every_n_steps",
    "trainer.checkpoint_every_n_steps",
    "trainer.checkpoint_keep",
    "trainer.checkpoint_keep_best",
    "trainer.checkpoint_keep_epochs",
    "tags",
    "ckpt_path",
    "trainer.max_time",
    "trainer.num_sanity_val_steps",
    "trainer.limit_predict_batches",
    "trainer.strategy",
    "trainer.devices",
    "trainer.num_nodes",
    "trainer.timeout",
    "trainer.inference_mode",
    "trainer.profiler",
    "trainer.detect_anomaly",
    "trainer.enable_model_summary",
    "trainer.enable_autolog_hparams",
    "trainer.reload_dataloaders_every_n_epochs",
)

#: Keys of the identity that may differ when a run in `run_dir=` is resumed: they say which machine
#: is used and how much of it. They are hashed, so that a sweep over them has a run for each.
RESUMABLE = ("trainer.accelerator", "trainer.threads")


def identity(config: dict[str, Any]) -> str:
    """Hash the settings that affect the numbers of a run to eight hexadecimal digits."""
    text = json.dumps(identity_settings(config), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def is_found_by_identity(config: Mapping[str, Any]) -> bool:
    """Whether a finished run or a record of the identity serves for this configuration's run."""
    return not (config["overwrite"] or config.get("extend") or config.get("run_dir"))


def identity_settings(config: dict[str, Any]) -> dict[str, Any]:
    """Part of a configuration that affects the numbers; null keys are left out."""
    kept = json.loads(json.dumps(config))
    if kept.get(EXTENDED):  # the times of the extensions do not count
        kept[EXTENDED] = [f"{each['from']} to {each['to']}" for each in kept[EXTENDED]]
    for key in NOT_IDENTITY:
        dotted.drop(kept, key)
    if kept.get("init_run") and "path" in kept["tokenizer"]:
        del kept["tokenizer"]["path"]  # a folder of the model named by init_from; init_run is kept
    if added := _callbacks_of_others(config):
        kept["callbacks"] = added
    settings: dict[str, Any] = _without_null(kept)
    return settings


def _callbacks_of_others(config: dict[str, Any]) -> dict[str, Any]:
    """Callbacks that are not Chimera's: nobody knows whether they change the numbers."""
    nodes = config.get("callbacks") or {}
    return {
        name: node
        for name, node in nodes.items()
        if isinstance(node, dict) and not str(node.get("_target_")).startswith("chimera.")
    }


def differences(existing: dict[str, Any], config: dict[str, Any]) -> list[str]:
    """List the differing identity settings of two runs, such as `seed=0 there, 7 here`.

    Keys in `RESUMABLE` may differ. If two runs chose different options of a group, only the options
    are listed.

    Args:
        existing: configuration of the run in the directory («there»).
        config: configuration of the new run («here»).
    """
    old = dotted.flatten(identity_settings(existing))
    new = dotted.flatten(identity_settings(config))
    keys = [key for key in {**old, **new} if old.get(key) != new.get(key)]
    keys = [key for key in keys if key not in RESUMABLE]
    options = {
        group: (existing["choices"].get(group), option)
        for group, option in config["choices"].items()
        if existing["choices"].get(group) != option
    }
    values = {}
    for key in keys:
        group = key.partition(".")[0]
        if group in options:
            values[group] = options[group]
        else:
            values[key] = (old.get(key), new.get(key))
    return [f"{key}={a} there, {b} here" for key, (a, b) in values.items()]


def _without_null(node: Any) -> Any:
    if isinstance(node, dict):
        return {key: _without_null(value) for key, value in node.items() if value is not None}
    return node
