"""The contents of run.json: what is known before training, and what training and test gave.

A part may be evaluated by several rules: QDyT's mean (SPEC N3) is the running mean of the paper, or
each token's own. One trained run is judged by the chosen rule and by each of the others.

    MFU = FLOPs per token · tokens/s / rate                          (arXiv 2204.02311, appendix B)

The rate of a GPU is that of its data sheet: dense products, the precision of the run, without TF32
in fp32. Lightning's table of data sheets is not used: it has the rates of sparse products for some
GPUs, twice the dense ones. Where there is none in `SHEET`, and on a CPU, the rate is that of the
fastest square product within a tenth of a second. On a CPU whose half precision is slower than its
float32, the rate is that of float32.
"""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch

from chimera.callback import find
from chimera.callback.log.metrics import peak_memory_gb
from chimera.callback.log.steps import Steps
from chimera.callback.part.adapter import AdapterLog
from chimera.callback.state.checkpoint import Checkpoints
from chimera.callback.state.guard import NanGuard
from chimera.config.scale import PAST, past_bounds
from chimera.contract import EvaluatedBy
from chimera.data.batch.module import DataModule
from chimera.model.sharding import load_state
from chimera.rundir import checkpoints as files
from chimera.rundir.checkpoint_io import load
from chimera.rundir.directory import RunDir
from chimera.rundir.identity import EXTENDED, NUMERICS, SETTINGS, identity, settings_hash
from chimera.rundir.steps import epochs
from chimera.task.base import Task
from chimera.train.model_summary import model_facts
from chimera.train.ranks import Ranks


def facts_before(
    config: dict[str, Any], data: DataModule, task: Task, batches: int | None
) -> dict[str, Any]:
    """The facts of a run that are known before training; `batches` are those of a validation."""
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
        **trivial(task, data, batches),
    }


def trivial(task: Task, data: DataModule, batches: int | None) -> dict[str, Any]:
    """Metrics of predictions without a network, for reports' baselines; only those there are."""
    names = ("constant_prediction", "overlap_prediction")  # tasks with labels have them
    found = {name: getattr(task, name)(data, batches) for name in names if hasattr(task, name)}
    return {name: metrics for name, metrics in found.items() if metrics}


def facts_after(trainer: pl.Trainer) -> dict[str, Any]:
    """What the callbacks have counted in training."""
    steps = find(trainer, Steps)
    checkpoints = find(trainer, Checkpoints)
    guard = find(trainer, NanGuard)
    log = RunDir(Path(trainer.default_root_dir)).steps
    by_epoch = epochs(log, checkpoints.validations, checkpoints.scores)
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        for epoch in by_epoch.values() if isinstance(callback, AdapterLog) else ():
            epoch.update(callback.history.get(str(epoch["step"]), {}))
    return {
        "tokens_per_second": steps.tokens_per_second,
        "peak_memory_gb": peak_memory_gb(),
        "wall_seconds": steps.wall_seconds,
        "steps": trainer.global_step,
        "validations": checkpoints.validations,
        "epochs": by_epoch,
        "gradient_spikes": steps.spikes.count,
        "skipped": {"not_finite": guard.skipped, "scaler": guard.scaler_skipped},
    }


def final_metrics(
    trainer: pl.Trainer, task: Task, data: DataModule, batches: int | None, ranks: Ranks
) -> dict[str, float]:
    """Metrics of the trained model, by the checkpoint that the task is judged by.

    Args:
        trainer: has trained the task.
        task: gets the weights of the best checkpoint if its `final` says so.
        data: of the task.
        batches: of a validation; None for all.
        ranks: the processes of the run.
    """
    directory = RunDir(Path(trainer.default_root_dir))
    best = ranks.on_first(lambda: [str(path) for _, path in files.best(directory.checkpoints)])
    if task.final == "best" and best:
        load_state(task, load(Path(best[0]))["state_dict"])
    metrics: dict[str, float] = {
        **trainer.validate(task, datamodule=data, verbose=False)[0],
        **trainer.test(task, datamodule=data, verbose=False)[0],
        **task.baselines(data, batches),
        **task.extra_metrics(trainer, data),
    }
    if trainer.is_global_zero:
        task.write_predictions(directory.path)
    return metrics


def by_other_rules(
    trainer: pl.Trainer, task: Task, data: DataModule
) -> dict[str, dict[str, float]]:
    """Metrics of the validation by each rule that was not chosen; empty if no part has another.

    All parts that know a rule evaluate by it at once; afterwards they do by the chosen one again.

    Args:
        trainer: has trained and tested the task. It runs a validation of its own, so this is no
            callback of its test.
        task: with the weights that were tested.
        data: of the task.
    """
    parts = [part for part in task.model.modules() if isinstance(part, EvaluatedBy)]
    metrics: dict[str, dict[str, Any]] = {}
    for rule in dict.fromkeys(rule for part in parts for rule in part.other_rules()):
        able = [part for part in parts if rule in part.other_rules()]
        for part in able:
            part.evaluate_by(rule)
        try:
            metrics[rule] = dict(trainer.validate(task, datamodule=data, verbose=False)[0])
        finally:
            for part in able:
                part.evaluate_by(None)
    return metrics


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


#: Dense FLOP/s of matrix products in half precision and in fp32, from the makers' data sheets.
SHEET = {
    "B200": (2.25e15, 7.5e13),
    "GH200": (9.89e14, 6.7e13),
    "H200": (9.89e14, 6.7e13),
    "H100 PCIe": (7.56e14, 5.1e13),
    "H100 NVL": (8.35e14, 6.0e13),
    "H100": (9.89e14, 6.7e13),
    "A100": (3.12e14, 1.95e13),
    "A10G": (7.0e13, 3.5e13),
    "L40S": (3.62e14, 9.16e13),
    "L4": (1.21e14, 3.03e13),
    "RTX 4090": (1.652e14, 8.26e13),
    "RTX 3090": (7.1e13, 3.56e13),
    "V100": (1.25e14, 1.57e13),
    "T4": (6.5e13, 8.1e12),
}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
#: Seconds of a measurement.
SECONDS = 0.1


def rate_of(device: torch.device, precision: str) -> float:
    """FLOP/s of matrix products of one process.

    Args:
        device: of the model.
        precision: fp32, bf16 or fp16.
    """
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
        for part, (half, single) in SHEET.items():
            if part in name:
                return single if precision == "fp32" else half
    rate = measure(device, DTYPES[precision])
    if device.type == "cpu" and precision != "fp32":  # part of the work is in float32 there
        return max(rate, measure(device, torch.float32))
    return rate


@torch.no_grad()
def measure(device: torch.device, dtype: torch.dtype, seconds: float = SECONDS) -> float:
    """FLOP/s of the fastest square product of 512, 1024 or 2048 rows in about so many seconds."""
    best = 0.0
    size = 512
    began = time.perf_counter()
    while True:
        a = torch.ones(size, size, dtype=dtype, device=device)
        out = torch.empty_like(a)
        spent = 0.0
        for _ in range(3):
            start = time.perf_counter()
            torch.mm(a, a, out=out)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            spent = time.perf_counter() - start
            best = max(best, 2 * size**3 / spent)
            if time.perf_counter() - began + spent > seconds:
                return best
        if 8 * spent < seconds / 4 and size < 2048:
            size *= 2
