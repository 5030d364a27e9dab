"""MMLU one-shot on a run: `python -m chimera.evaluate.mmlu run=<directory> [data=<folder>] …`.

Asks the trained model of a run and, where an adapter changed it, the model that the adapter was put
on. Prints both and writes `mmlu.json` into the run's directory.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from chimera.config.arguments import describe, read, usage
from chimera.config.groups import read_folders
from chimera.config.schema import shown
from chimera.config.start_model import causal_of, location
from chimera.config.trusted_config import recorded
from chimera.errors import UserError, one_line
from chimera.rundir.directory import RunDir
from chimera.safe_io import write_json
from chimera.task import mmlu
from chimera.task.mmlu import METRICS, Asked, answer, summary
from chimera.types import PositiveInt


@dataclass(frozen=True)
class Examination:
    """What is asked of which run.

    Args:
        run: directory of a run of a causal model.
        data: folder with MMLU's questions; without it they come from the hub, cais/mmlu.
        split: `val` or `test`.
        subjects: only these; all if it is left out.
        limit: questions of each subject; all if it is left out.
        new: tokens of an answer.
        length: tokens of a prompt; the model's max_len if it is left out.
        batch: questions at a time.
        out: file of the results; `mmlu.json` in the run's directory if it is left out.
        trust: load the models that the run's file names: what its adapter was put on, or a Hugging
            Face model that has to be fetched.
    """

    run: Path
    data: str | None = None
    split: Literal["val", "test"] = "test"
    subjects: list[str] | None = None
    limit: PositiveInt | None = None
    new: PositiveInt = 8
    length: PositiveInt | None = None
    batch: PositiveInt = 8
    out: Path | None = None
    trust: bool = False


def main(arguments: Sequence[str]) -> int:
    """Ask, print, write; returns the exit code.

    Raises:
        UserError: arguments that cannot be read, no run, no questions.
    """
    line = usage("python -m chimera.evaluate.mmlu", Examination)
    if {"-h", "--help"} & set(arguments):
        print(describe(Examination, line))
        return 0
    what = read(Examination, read_folders(arguments), line)
    directory = RunDir(what.run)
    config = recorded(directory)
    base = config["choices"]["adapter"] != "none" and (
        location(config) or config["model"].get("name")
    )
    if base and not what.trust:
        raise UserError(
            f"run={directory.path} is compared with the model that its adapter was put on,"
            f" {shown(base)}, which is not loaded on a file's word; add trust=true if you know it"
        )
    questions = mmlu.read(what.data, what.split, what.subjects, what.limit)
    length = what.length or config["model"]["max_len"]
    sizes = {"new": what.new, "batch": what.batch, "length": length}
    results = evaluate(directory, config, questions, trust=what.trust, **sizes)
    target = what.out or directory.path / "mmlu.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    write_json(target, {"run": str(directory.path), "questions": len(questions), **results})
    show(results, len(questions))
    print(target)
    return 0


def evaluate(
    directory: RunDir,
    config: dict[str, Any],
    questions: list[Asked],
    *,
    trust: bool = False,
    **sizes: Any,
) -> dict[str, Any]:
    """By model: metrics with deviations, the first answers, the number of shortened prompts.

    Args:
        directory: of the run.
        config: of the run.
        questions: each with the example that is shown before it.
        trust: load the models that the configuration names.
        sizes: `new`, `length` and `batch` as of `chimera.task.mmlu.answer`.

    Raises:
        UserError: a run without a checkpoint or of a task that does not generate.
    """
    from chimera.train.build import build_task
    from chimera.train.restore import restore

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
    results = {}
    for name, model in models.items():
        answers = answer(model.eval(), tokenizer, questions, start=opening, **sizes)
        results[name] = {
            "metrics": {
                metric: {"mean": mean, "std": deviation}
                for metric, (mean, deviation) in summary(answers.scores).items()
            },
            "shortened": answers.shortened,
            "said": answers.texts,
        }
    return results


def show(results: dict[str, Any], questions: int) -> None:
    """Print a table of both models."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"MMLU, one-shot, {questions} questions (bootstrap deviation)")
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
            console.print(f"{name}: {one['shortened']} prompts were cut at their beginning")


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except UserError as error:
        print(f"error: {one_line(error)}", file=sys.stderr)
        sys.exit(2)
