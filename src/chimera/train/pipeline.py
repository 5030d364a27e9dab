"""Mermaid diagram of a run's training loop, as TITAN's Figure 4 and TORM's Figure 2 show theirs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chimera.model.diagram import label


def pipeline(config: Mapping[str, Any]) -> str:
    """Flow chart from the text to the checkpoints of a run.

    Args:
        config: of the run.
    """
    names = config["choices"]
    data, trainer, optim = (config[key] for key in ("data", "trainer", "optim"))
    length = data.get("seq_len") or config["model"]["max_len"]
    parts = trainer["accumulate_grad_batches"] or 1
    half = "" if config["precision"] == "fp32" else f"autocast: {config['precision']}"
    again = "blocks are computed again backwards"
    again *= bool(config["model"].get("gradient_checkpointing"))
    scaler = "GradScaler" if config["precision"] == "fp16" else ""
    steps, epochs = (trainer[key] for key in ("max_steps", "max_epochs"))
    ends = f"{steps:,} steps" if steps else f"{epochs} epochs"
    boxes = {
        "text": ("text", f"data: {names['data']}"),
        "ids": ("token ids", f"tokenizer: {names['tokenizer']}"),
        "batch": ("micro-batch", f"{data.get('batch_size')} × {length} tokens"),
        "forward": ("forward", f"task: {names['task']}", half, again),
        "backward": ("backward", scaler, f"sum of {parts} micro-batches" if parts > 1 else ""),
        "clip": ("clip", f"gradient norm ≤ {trainer['gradient_clip_val']}"),
        "update": (
            "update",
            f"optim: {names['optim']}, lr {optim['lr']:g}",
            f"schedule: {names['schedule']}, warm-up {optim['warmup']:g}",
        ),
        "log": ("steps.csv, loggers", f"logger: {names['logger']}"),
        "report": ("nan_report, state of before", f"guard: {names['guard']}"),
        "newest": _every("checkpoint", trainer, "checkpoint_every_n_steps", "checkpoint_keep"),
        "best": _every("validation", trainer, "val_check_interval", "checkpoint_keep_best"),
        "epoch": ("end of an epoch", f"keep {_number(trainer['checkpoint_keep_epochs'])}"),
        "test": ("validation, test, run.json", f"after {ends}"),
    }
    if not trainer["gradient_clip_val"]:
        del boxes["clip"]
    before = "clip" if "clip" in boxes else "update"
    finite = label("losses and gradient", "norm finite?")
    lines = ["flowchart TB", *(f"  {name}[{label(*box)}]" for name, box in boxes.items())]
    lines += [
        f"  finite{{{finite}}}",
        "  text --> ids --> batch --> forward --> backward --> finite",
    ]
    lines += ["  finite -- no --> report", f"  finite -- yes --> {before}"]
    lines += ["  clip --> update"] * (before == "clip")
    lines += [f"  update --> {name}" for name in ("log", "newest", "best", "epoch")]
    return "\n".join([*lines, "  update -. next step .-> batch", "  update --> test", ""])


def _every(what: str, trainer: Mapping[str, Any], every: str, keep: str) -> tuple[str, ...]:
    kind = "newest" if keep == "checkpoint_keep" else "best"
    value = trainer[every]
    often = {0: "at the end", "epoch": "every epoch"}.get(value) or f"every {_number(value)} steps"
    if isinstance(value, float) and value:
        often = f"every {value:g} of an epoch"
    return what, often, f"keep {trainer[keep]} {kind}"


def _number(value: float | None) -> str:
    return "all" if value is None else f"{value:,}"
