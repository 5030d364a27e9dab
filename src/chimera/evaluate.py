"""Repeat the final test of a run from its directory alone: `python eval.py run=<dir>`."""

from __future__ import annotations

import json

import lightning.pytorch as pl
import torch
from hydra.utils import instantiate

from chimera.data.tokenizer import load as load_tokenizer
from chimera.errors import UserError
from chimera.record import RunDir
from chimera.run import PRECISION, make_task, quiet


def evaluate(directory: RunDir) -> int:
    """Print the test metrics as JSON beside those that the run recorded.

    Raises:
        UserError: no checkpoint, or one that does not fit the recorded configuration.
    """
    quiet()
    checkpoint = directory.checkpoints / "last.ckpt"
    if not checkpoint.exists():
        raise UserError(f"run={directory.path} has no checkpoint yet ({checkpoint} is missing)")
    config = directory.config()
    settings = instantiate(config["trainer"], _convert_="all")
    if settings.threads:
        torch.set_num_threads(settings.threads)
    task = make_task(config, load_tokenizer(directory.tokenizer).vocab_size)
    saved = torch.load(checkpoint, map_location="cpu", weights_only=True)
    task.load_state_dict(saved["state_dict"])
    trainer = pl.Trainer(
        accelerator=settings.accelerator,
        devices=1,
        precision=PRECISION[config["precision"]],
        limit_test_batches=settings.limit_test_batches or 1.0,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
    )
    corpus = instantiate(config["data"], _convert_="all")
    found = trainer.test(task, task.load_test(directory.test_data, corpus), verbose=False)[0]
    recorded = directory.record().get("metrics", {})
    shown = {k: {"now": v, "recorded": recorded.get(k)} for k, v in found.items()}
    print(json.dumps({"run": str(directory.path), "step": saved["global_step"], **shown}, indent=2))
    return 0
