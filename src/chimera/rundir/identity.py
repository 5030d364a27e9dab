"""Identity of a run: eight hexadecimal digits of a hash of all settings that affect its numbers.

Records of finished runs are found by it, so it changes as seldom as possible. A new key of a part
is null by default, because null is not hashed. A change of the code that alters numbers changes a
key of the runs that it concerns and of no others, such as a key `revision` of the part or of the
data, which is null until then.

The same settings may give other tokens elsewhere: `data=pydocs` takes its text from the installed
Python and packages, and a file of text may have changed. So each record also has the hash of the
tokens.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from chimera import dotted
from chimera.errors import UserError, one_line
from chimera.safe_io import read_json

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
    if kept["model"].get("dropout"):  # it once acted inside ffns and mixers as well
        kept["model"]["dropout_revision"] = 2
    if added := _callbacks_of_others(config):
        kept["callbacks"] = added
    return _without_null(kept)


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


#: Keys of run.json's `data`: hash of the settings that decide the tokens, and of the tokens.
SETTINGS = "settings_sha256"
TOKENS = "tokens_sha256"
#: Settings of data and tokenizer without a say in the tokens.
FREE = ("batch_size", "num_workers", "processes", "cache_dir", "num_threads", "pad_to")
ADVICE = (
    "a file or a data set changed, or, with data=pydocs, the installed Python and packages"
    " (data.documents=<file> gives every machine one text)"
)


class Text(NamedTuple):
    """Hashes of the settings of a run's text, and of its tokens."""

    settings: str
    tokens: str


def settings_hash(config: Mapping[str, Any]) -> str:
    """Hash of the settings of a configuration that decide the tokens."""
    nodes = [
        {key: value for key, value in config[group].items() if key not in FREE}
        for group in ("data", "tokenizer")
    ]
    if config.get("init_run"):  # the tokenizer is that of the run that is named
        nodes[1].pop("path", None)
        nodes.append({"init_run": config["init_run"]})
    return hashlib.sha256(json.dumps(nodes, sort_keys=True, default=str).encode()).hexdigest()[:16]


def text_of(record: Mapping[str, Any]) -> Text | None:
    """The hashes in a record, which may be a stranger's; None in those of older versions."""
    data = record.get("data")
    if not isinstance(data, dict):
        return None
    found = data.get(SETTINGS), data.get(TOKENS)
    return Text(*(one_line(text)[:64] for text in found)) if all(found) else None


def apart(texts: Iterable[Text | None]) -> str:
    """One sentence if runs of the same settings have different tokens; else empty."""
    by_settings: dict[str, Counter[str]] = {}
    for text in texts:
        if text is not None:
            by_settings.setdefault(text.settings, Counter())[text.tokens] += 1
    other = [counts for counts in by_settings.values() if len(counts) > 1]
    if not other:
        return ""
    groups = (
        " and ".join(f"{n} run{'s' * (n != 1)} on {tokens[:8]}" for tokens, n in counts.items())
        for counts in other
    )
    return (
        f"Runs with the same settings were trained on different text ({'; '.join(groups)}, by the"
        f" hash of the tokens), so their numbers cannot be compared: {ADVICE}"
    )


def check_text(run: Path, tokens: str | None) -> None:
    """Refuse to go on with a run on other text than it began with.

    Args:
        run: its directory; environment.json there has the hash of its tokens.
        tokens: hash of the tokens now.

    Raises:
        UserError: they differ.
    """
    before = read_json(run / "environment.json").get(TOKENS)
    if before and tokens and before != tokens:
        raise UserError(
            f"{run} began on other text (tokens {one_line(before)[:8]}, here {tokens[:8]}):"
            f" {ADVICE}; resume it on the text that it began on, or start over with overwrite=true"
        )
