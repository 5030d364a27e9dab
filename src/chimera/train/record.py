"""The contents of run.json: what is known before training, and what training and test gave."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import lightning.pytorch as pl

from chimera.callback.log.metrics import peak_memory_gb
from chimera.callback.log.steps import Steps
from chimera.callback.lookup import find
from chimera.callback.state.checkpoint import Checkpoints
from chimera.callback.state.guard import NanGuard
from chimera.config.scale import PAST, past_bounds
from chimera.data.batch.module import DataModule
from chimera.rundir.corpus_hash import SETTINGS, settings_hash
from chimera.rundir.directory import RunDir
from chimera.rundir.extend import EXTENDED
from chimera.rundir.identity import NUMERICS, identity
from chimera.rundir.steps import epochs
from chimera.task.base import Task
from chimera.train.model_summary import model_facts
from chimera.train.peak_flops import rate_of


def facts_before(config: dict[str, Any], data: DataModule, task: Task) -> dict[str, Any]:
    """The facts of a run that are known before training."""
    length = config["data"].get("seq_len") or config["model"]["max_len"]
    prepared = data.prepared
    past = past_bounds(config)
    return {
        "name": config["name"],
        "identity": identity(config),
        "numerics": NUMERICS,
        "choices": config["choices"],
        "seed": config["seed"],
        **({"tags": config["tags"]} if config.get("tags") else {}),
        **({EXTENDED: config[EXTENDED]} if EXTENDED in config else {}),
        **({PAST: past} if past else {}),
        **model_facts(task, length),
        "tokenizer": {
            "sha256": prepared.tokenizer.sha256,
            "vocab_size": prepared.tokenizer.vocab_size,
        },
        "data": {**prepared.report, SETTINGS: settings_hash(config)},
        **trivial(task, data),
    }


def trivial(task: Task, data: DataModule) -> dict[str, Any]:
    """Metrics of predictions without a network, for reports' baselines; only those there are."""
    names = ("constant_prediction", "overlap_prediction")  # tasks with labels have them
    found = {name: getattr(task, name)(data) for name in names if hasattr(task, name)}
    return {name: metrics for name, metrics in found.items() if metrics}


def facts_after(trainer: pl.Trainer) -> dict[str, Any]:
    """What the callbacks have counted in training."""
    steps = find(trainer, Steps)
    checkpoints = find(trainer, Checkpoints)
    guard = find(trainer, NanGuard)
    log = RunDir(Path(trainer.default_root_dir)).steps
    return {
        "tokens_per_second": steps.tokens_per_second,
        "peak_memory_gb": peak_memory_gb(),
        "wall_seconds": steps.wall_seconds,
        "steps": trainer.global_step,
        "validations": checkpoints.validations,
        "epochs": epochs(log, checkpoints.validations, checkpoints.scores),
        "skipped": {"not_finite": guard.skipped, "scaler": guard.scaler_skipped},
        "checkpoints": {
            "saves": len(checkpoints.stalls),
            "seconds": sum(checkpoints.stalls),
            "longest": max(checkpoints.stalls, default=0.0),
        },
    }


def utilisation(trainer: pl.Trainer, precision: str, facts: dict[str, Any]) -> dict[str, Any]:
    """`mfu` of a run and its `gemm_rate`, that of products of all its processes in FLOP/s.

    Empty where FLOPs or tokens/s are not known: of a model that cannot be counted, after one step.

    Args:
        trainer: has trained.
        precision: of the run.
        facts: with `flops` and `tokens_per_second`.
    """
    if not facts["flops"] or not math.isfinite(facts["tokens_per_second"]):
        return {}
    rate = rate_of(trainer.strategy.root_device, precision) * trainer.world_size
    done = facts["flops"]["training"] * facts["tokens_per_second"]
    return {"mfu": done / rate, "gemm_rate": rate}
