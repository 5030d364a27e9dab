"""Repeat the final test of a run from its directory alone: `python eval.py run=<dir>`.

A causal language model is tested at other lengths than it was trained at, too, on the same tokens:
`length=1024` prints and writes `eval-1024.json` into the run's directory.
"""

from __future__ import annotations

import json
from typing import cast

import lightning.pytorch as pl
from lightning.fabric.plugins.environments import LightningEnvironment

from chimera.errors import UserError
from chimera.model.language import LanguageModel
from chimera.rundir.directory import RunDir
from chimera.safe_io import write_json
from chimera.train.build import build_data
from chimera.train.restore import restore
from chimera.train.trainer import precision_arguments


def evaluate(directory: RunDir, length: int | None = None, *, trust: bool = False) -> int:
    """Print the test metrics as JSON beside those that the run recorded.

    Args:
        directory: of the run.
        length: of the sequences, in tokens; None takes the run's own.
        trust: load the Hugging Face model that the run's file names, if it has to be.

    Raises:
        UserError: no checkpoint, or one that does not fit the recorded configuration.
    """
    run = restore(directory, trust=trust)
    task = run.task
    settings = run.settings
    precision = precision_arguments(run.config["precision"], settings.accelerator)
    trainer = pl.Trainer(
        accelerator=settings.accelerator,
        devices=1,
        # One process, also where Slurm is installed: Lightning would hint at srun.
        plugins=[LightningEnvironment(), *precision.pop("plugins", [])],
        **precision,
        limit_test_batches=settings.limit_test_batches or 1.0,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
    )
    data = build_data(
        run.config["data"], run.config["tokenizer"], run.config["task"], run.config["seed"]
    )
    data.load_test(directory.test_data)
    if length and not task.causal:
        name = run.config["task"]["name"]
        raise UserError(f"length={length} is for task=causal_lm; this is task={name}")
    if length:
        cast(LanguageModel, task.model).check_length(length)
        data = data.lengthened(length)
    metrics = trainer.test(task, datamodule=data, verbose=False)[0]
    recorded = directory.record().get("metrics", {})
    shown = {k: {"now": v, "recorded": recorded.get(k)} for k, v in metrics.items()}
    summary = {"run": str(directory.path), "step": run.step}
    if length:
        summary["length"] = length
        write_json(directory.path / f"eval-{length}.json", {**summary, **metrics})
    print(json.dumps({**summary, **shown}, indent=2))
    return 0
