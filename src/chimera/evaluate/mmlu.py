"""python -m chimera.evaluate.mmlu run=<directory> [data=<folder>] [split=test] [subjects=a,b]

Asks the trained model of a run and, where an adapter changed it, the base it was made of; prints
both and writes `mmlu.json` into the run's directory. Also: limit=n, new=8 (tokens of an answer),
length=<tokens of a prompt>, batch=8, out=<file>. Without data= it asks the hub for cais/mmlu.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from chimera.errors import UserError, nearest
from chimera.rundir.atomic import write_json
from chimera.rundir.directory import RunDir
from chimera.task.mmlu.metrics import METRICS, summary
from chimera.task.mmlu.questions import Question, read

WORDS = ("run", "data", "split", "subjects", "limit", "new", "length", "batch", "out")


def main(argv: list[str]) -> int:
    """Ask, show, write.

    Raises:
        UserError: words that are not understood, a run that is not there.
    """
    words = _words(argv)
    if "run" not in words:
        raise UserError("name a run: python -m chimera.evaluate.mmlu run=<directory> data=<folder>")
    directory = RunDir(Path(words["run"]))
    config = directory.config()
    if words.get("split", "test") not in ("val", "test"):
        raise UserError(f"split={words['split']} is not allowed; it takes val or test")
    asked = read(
        words.get("data"),
        words.get("split", "test"),
        words["subjects"].split(",") if "subjects" in words else None,
        _number(words, "limit", None),
    )
    length = _number(words, "length", config["model"]["max_len"])
    sizes = {"new": _number(words, "new", 8), "batch": _number(words, "batch", 8)}
    found = evaluate(directory, config, asked, length=length, **sizes)
    target = Path(words.get("out", directory.path / "mmlu.json"))
    target.parent.mkdir(parents=True, exist_ok=True)
    write_json(target, {"run": str(directory.path), "questions": len(asked), **found})
    show(found, len(asked))
    print(target)
    return 0


def evaluate(
    directory: RunDir,
    config: dict[str, Any],
    asked: list[tuple[Question, Question | None]],
    **sizes: Any,
) -> dict[str, Any]:
    """By model: metrics with deviations, what was said first, prompts that were cut.

    Raises:
        UserError: a run without a checkpoint or of a task that does not generate.
    """
    from chimera.config.init_from import causal_of
    from chimera.task.mmlu.answer import answer
    from chimera.train.build import make_task
    from chimera.train.restore import restore

    if not causal_of(config["task"]):
        raise UserError(f"run={directory.path} is no causal model; it cannot answer")
    run = restore(directory, "newest")
    tokenizer = run.tokenizer
    models = {"trained": run.task.model}
    if config["choices"]["adapter"] != "none":
        base = make_task(config, tokenizer.vocab_size, start=True, adapter=False)
        models["base"] = base.model
    found = {}
    for name, model in models.items():
        answers = answer(model.eval(), tokenizer, asked, **sizes)
        found[name] = {
            "metrics": {
                metric: {"mean": mean, "std": deviation}
                for metric, (mean, deviation) in summary(answers.scores).items()
            },
            "shortened": answers.shortened,
            "said": answers.texts,
        }
    return found


def show(found: dict[str, Any], questions: int) -> None:
    """A table of both models."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"MMLU, one-shot, {questions} questions (bootstrap deviation)")
    table.add_column("metric")
    for name in found:
        table.add_column(name, justify="right")
    for metric in METRICS:
        cells = [one["metrics"][metric] for one in found.values()]
        table.add_row(metric, *(f"{c['mean']:.3f} ± {c['std']:.3f}" for c in cells))
    console = Console()
    console.print(table)
    for name, one in found.items():
        if one["shortened"]:
            console.print(f"{name}: {one['shortened']} prompts were cut at their beginning")


def _words(argv: list[str]) -> dict[str, str]:
    found = {}
    for word in argv:
        key, _, value = word.partition("=")
        if key not in WORDS or not value:
            raise UserError(f"'{word}' is not understood{nearest(key, WORDS)}; {', '.join(WORDS)}")
        found[key] = value
    return found


def _number(words: dict[str, str], key: str, default: Any) -> Any:
    if key not in words:
        return default
    if not words[key].isdigit() or not int(words[key]):
        raise UserError(f"{key}={words[key]} is not allowed; it takes an integer of at least 1")
    return int(words[key])


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
