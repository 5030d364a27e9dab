"""Evaluate a run from its directory alone: repeat its final test, or ask it MMLU's questions.

A causal language model is tested at other lengths than it was trained at, too, on the same tokens:
`length=1024` prints and writes `eval-1024.json` into the run's directory.
"""

from __future__ import annotations

import json
from typing import Any, cast

import lightning.pytorch as pl
from lightning.fabric.plugins.environments import LightningEnvironment
from rich.console import Console
from rich.table import Table

from chimera.config.start_model import causal_of, location
from chimera.errors import UserError
from chimera.model.language import LanguageModel
from chimera.rundir.directory import RunDir
from chimera.safe_io import write_json
from chimera.task.mmlu import answer, prompt_length
from chimera.task.mmlu_protocol import METRICS, Asked, Protocol
from chimera.train.build import build_data, build_task
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


def examine(
    directory: RunDir,
    config: dict[str, Any],
    questions: list[Asked],
    protocol: Protocol,
    *,
    trust: bool = False,
    length: int | None = None,
    **sizes: Any,
) -> dict[str, Any]:
    """Ask MMLU's questions; by model: metrics with deviations, answers, shortened prompts.

    Args:
        directory: of the run.
        config: of the run.
        questions: each with the example that is shown before it.
        protocol: of the questions.
        trust: load the models that the configuration names.
        length: tokens of a prompt; None for what the protocol says.
        sizes: `new` and `batch` as of `chimera.task.mmlu.answer`.

    Raises:
        UserError: a run without a checkpoint or of a task that does not generate.
    """
    if not causal_of(config["task"]):
        raise UserError(f"run={directory.path} is no causal model; it cannot answer")
    run = restore(directory, "newest", trust=trust)
    tokenizer = run.tokenizer
    opening = tokenizer.opening(packed=run.task.plain_text)
    models = {"trained": run.task.model}
    if config["choices"]["adapter"] != "none":
        start = location(config)
        base = build_task(config, tokenizer.vocab_size, start_weights=start, adapter=False)
        models["base"] = base.model
    if protocol.chats:
        nodes = (config["data"], config["tokenizer"], config["task"])
        sizes["chat"] = build_data(*nodes, config["seed"]).tokenizer_settings.chat()
    results = {}
    for name, model in models.items():
        answers = answer(
            model.eval(),
            tokenizer,
            questions,
            start=opening,
            length=length or prompt_length(model, protocol, config["model"]["max_len"]),
            protocol=protocol,
            **sizes,
        )
        results[name] = {
            "metrics": {
                metric: {"mean": mean, "std": deviation}
                for metric, (mean, deviation) in protocol.summary(questions, answers.scores).items()
            },
            "shortened": answers.shortened,
            "said": answers.texts,
        }
    return results


def show(results: dict[str, Any], questions: int) -> None:
    """Print a table of both models."""
    table = Table(title=f"MMLU, one-shot, {questions} questions (± standard error)")
    table.add_column("metric")
    for name in results:
        table.add_column(name, justify="right")
    for metric in METRICS:
        cells = [one["metrics"][metric] for one in results.values()]
        table.add_row(metric, *(f"{c['mean']:.3f} ± {c['std']:.3f}" for c in cells))
    console = Console()
    console.print(table)
    for name, one in results.items():
        if one["shortened"]:
            console.print(f"{name}: {one['shortened']} prompts lost their beginning or example")
