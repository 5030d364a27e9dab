"""Repeat the final test of a run from its directory alone: `python eval.py run=<dir>`.

A causal language model is tested at other lengths than it was trained at, too, on the same tokens:
`length=1024` prints and writes `eval-1024.json` into the run's directory.
"""

from __future__ import annotations

import json
import sys
from typing import cast

import lightning.pytorch as pl
import torch
from hydra.utils import instantiate

from chimera.data.tokenizer.base import load as load_tokenizer
from chimera.errors import UserError
from chimera.model.language import LanguageModel
from chimera.rundir import checkpoints as files
from chimera.rundir.atomic import write_json
from chimera.rundir.checkpoint_io import load
from chimera.rundir.directory import RunDir
from chimera.train.build import make_data, make_task
from chimera.train.trainer import precision_arguments, quiet


def evaluate(directory: RunDir, length: int | None = None) -> int:
    """Print the test metrics as JSON beside those that the run recorded.

    Args:
        directory: of the run.
        length: of the sequences, in tokens; None takes the run's own.

    Raises:
        UserError: no checkpoint, or one that does not fit the recorded configuration.
    """
    quiet()
    newest = files.newest(directory.checkpoints)
    if not newest.path:
        raise UserError(f"run={directory.path}: {newest}")
    if newest.passed_over:
        print(newest, file=sys.stderr)
    config = directory.config()
    settings = instantiate(config["trainer"], _convert_="all")
    if settings.threads:
        torch.set_num_threads(settings.threads)
    task = make_task(config, load_tokenizer(directory.tokenizer).vocab_size)
    best = directory.checkpoints / "best.ckpt"
    saved = load(best if task.final == "best" and best.exists() else newest.path)
    task.load_state_dict(saved["state_dict"])
    trainer = pl.Trainer(
        accelerator=settings.accelerator,
        devices=1,
        **precision_arguments(config["precision"], settings.accelerator),
        limit_test_batches=settings.limit_test_batches or 1.0,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
    )
    data = make_data(config)
    data.load_test(directory.test_data)
    if length and not task.causal:
        name = config["task"]["name"]
        raise UserError(f"length={length} is for task=causal_lm; this is task={name}")
    if length:
        cast(LanguageModel, task.model).check_reach(length)
        data = data.lengthened(length)
    found = trainer.test(task, datamodule=data, verbose=False)[0]
    recorded = directory.record().get("metrics", {})
    shown = {k: {"now": v, "recorded": recorded.get(k)} for k, v in found.items()}
    summary = {"run": str(directory.path), "step": saved["global_step"]}
    if length:
        summary["length"] = length
        write_json(directory.path / f"eval-{length}.json", {**summary, **found})
    print(json.dumps({**summary, **shown}, indent=2))
    return 0
