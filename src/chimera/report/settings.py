"""Collect the settings of a table's runs: here, at scale=paper, and where rows differ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chimera.dotted import flatten, get
from chimera.report.cells import Cell
from chimera.report.summary import Summary
from chimera.rundir.corpus_hash import apart, text_of
from chimera.rundir.identity import NOT_IDENTITY
from chimera.rundir.portable import portable

#: Settings that every report shows, in this order.
SHOWN = (
    "choices.task",
    "init_from",
    "model.name",
    "choices.data",
    "data.max_bytes",
    "choices.tokenizer",
    "tokenizer.vocab_size",
    "model.dim",
    "model.depth",
    "model.loops",
    "model.heads",
    "model.max_len",
    "data.batch_size",
    "trainer.accumulate_grad_batches",
    "trainer.max_steps",
    "optim.lr",
    "precision",
)
#: Settings that name a run or a table; they always differ and are not compared.
NAMES = ("name", "seed", "choices.preset", "choices.scale", "table", *NOT_IDENTITY)


def shared(summary: Summary) -> list[tuple[str, str, str]]:
    """(key, value here, value at scale=paper) of the settings in SHOWN; `by row` if rows differ."""
    here = [{key: get(cell.config, key) for key in SHOWN} for cell in summary.cells]
    paper = list(summary.at_paper_scale.values())
    return [(_name(key), _common(key, here), _common(key, paper)) for key in SHOWN]


def differing(summary: Summary) -> tuple[list[str], dict[str, list[str]]]:
    """Keys that all rows have with different values, and the values of each row."""
    first: dict[str, Cell] = {}
    for cell in summary.cells:
        first.setdefault(cell.row, cell)
    configs = {row: flatten(cell.config) for row, cell in first.items()}
    candidates = [key for key in next(iter(configs.values()), {}) if _is_compared(key)]
    keys = [
        key
        for key in candidates
        if all(key in config for config in configs.values())
        and len({str(config[key]) for config in configs.values()}) > 1
    ]
    keys.sort(key=lambda key: (not key.startswith("choices."), key))
    values = {row: [_text(config[key]) for key in keys] for row, config in configs.items()}
    return [_name(key) for key in keys], values


def trained_on(summary: Summary) -> list[str]:
    """Sentences: size of the training data by the records of the runs, and half precision."""
    sizes = []
    for cell in summary.cells:
        train = cell.record.get("data", {}).get("splits", {}).get("train", {})
        if train:
            sizes.append(f"Trained on {cell.config['choices']['data']}: {_size(train)}")
        if valid := cell.record.get("data", {}).get("splits", {}).get("valid", {}):
            limit = cell.config["trainer"].get("limit_val_batches")
            part = "" if limit is None else f"; each validation uses {limit} batches"
            sizes.append(f"Validation split: {_size(valid)}{part}")
    return [*dict.fromkeys(sizes), *filter(None, [other_text(summary)]), *in_half(summary)]


def other_text(summary: Summary) -> str:
    """A sentence if runs of the same settings were trained on different tokens; else empty."""
    return apart(text_of(cell.record) for cell in summary.cells)


def _size(split: Mapping[str, int]) -> str:
    names = ("documents", "examples", "bytes", "tokens")
    return ", ".join(f"{split[name]:,} {name}" for name in names if name in split)


def in_half(summary: Summary) -> list[str]:
    """What half precision adds to the errors of quantised layers; empty for float32."""
    errors = {"bf16": "1/256", "fp16": "1/2048"}
    used = sorted({str(cell.config.get("precision")) for cell in summary.cells} & errors.keys())
    names, most = " and ".join(used), " or ".join(errors[name] for name in used)
    return [
        f"Trained in {names}: quantised layers compute their grid in float32 and round products to"
        f" {names}, with a relative error of up to {most}"
    ] * bool(used)


def _is_compared(key: str) -> bool:
    parts = key.split(".")
    prefixes = {".".join(parts[: i + 1]) for i in range(len(parts))}
    return parts[-1] not in ("_target_", "_partial_") and (
        (key.startswith("choices.") and key not in NAMES) or prefixes.isdisjoint(NAMES)
    )


def _common(key: str, configs: list[dict[str, Any]]) -> str:
    values = list(dict.fromkeys(_text(config.get(key)) for config in configs))
    return values[0] if len(values) == 1 else "by row" if values else ""


def _text(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(_text, value))
    text = "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
    return portable(text)


def _name(key: str) -> str:
    return key.removeprefix("choices.")
