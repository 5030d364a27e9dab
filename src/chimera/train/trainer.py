"""Lightning's Trainer for a run: precision, plugins, and the callbacks that components bring."""

from __future__ import annotations

import logging
import warnings
from typing import Any

import lightning.pytorch as pl
import torch
from hydra.utils import instantiate
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.plugins.precision import MixedPrecision

from chimera.callback.state.validation import NEVER
from chimera.config.groups import ZOO
from chimera.config.settings import Measured
from chimera.rundir.checkpoint_io import CheckedIO
from chimera.rundir.directory import RunDir


def make_trainer(
    config: dict[str, Any],
    settings: Measured,
    directory: RunDir,
    loggers: list[Any],
    callbacks: list[Callback],
) -> pl.Trainer:
    """Lightning's Trainer; what it would print, log or save by itself is ours to do."""
    arguments = precision_arguments(config["precision"], settings.accelerator)
    plugins = [CheckedIO(), *arguments.pop("plugins", [])]
    return pl.Trainer(
        **arguments,
        plugins=plugins,
        default_root_dir=directory.path,
        max_steps=settings.max_steps,
        max_epochs=-1,
        accumulate_grad_batches=settings.accumulate_grad_batches,
        gradient_clip_val=settings.gradient_clip_val or None,
        val_check_interval=NEVER,  # its callback says when
        check_val_every_n_epoch=None,
        limit_val_batches=settings.limit_val_batches or 1.0,
        limit_test_batches=settings.limit_test_batches or 1.0,
        accelerator=settings.accelerator,
        devices=settings.devices,
        deterministic=settings.deterministic,
        logger=loggers,
        callbacks=callbacks,
        log_every_n_steps=settings.log_every_n_steps,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,
    )


def quiet() -> None:
    """Lightning's tips and hardware notes out of the way; our own log lines shown."""
    for name in ("lightning.pytorch", "lightning.fabric", "lightning.pytorch.utilities.rank_zero"):
        logging.getLogger(name).setLevel(logging.WARNING)
    # Loaders count what they hand out; workers are the user's choice; one CPU batch is small.
    warnings.filterwarnings("ignore", message=".*does not have many workers.*")
    warnings.filterwarnings("ignore", message=".*smaller than the logging interval.*")
    warnings.filterwarnings("ignore", message=".*treespec, LeafSpec.*")
    log = logging.getLogger("chimera")
    if not log.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(message)s"))
        log.addHandler(handler)
        log.setLevel(logging.INFO)


def component_callbacks(cfg: dict[str, Any]) -> list[Any]:
    """What the chosen components ask of training, each once: a pattern may name a part twice."""
    found: dict[str, Any] = {}

    def walk(node: Any) -> None:
        if isinstance(node, dict):
            found.update(node.get("callbacks") or {})
            for key, inner in node.items():
                if key != "callbacks":
                    walk(inner)

    for group in ZOO:
        walk(cfg[group])
    return [instantiate(node, _convert_="all") for node in found.values()]


def precision_arguments(precision: str, accelerator: str) -> dict[str, Any]:
    """Arguments of Lightning's Trainer.

    Asked for fp16 on a CPU Lightning silently takes bf16 without a scaler; so it is given the real
    thing.

    Args:
        precision: fp32, bf16 or fp16.
        accelerator: auto, cpu or gpu.
    """
    if precision == "fp16":
        gpu = torch.cuda.is_available() and accelerator != "cpu"
        device = "cuda" if gpu else "cpu"
        scaler = torch.amp.GradScaler(device)
        return {"plugins": [MixedPrecision("16-mixed", device, scaler)]}
    return {"precision": {"fp32": "32-true", "bf16": "bf16-mixed"}[precision]}
