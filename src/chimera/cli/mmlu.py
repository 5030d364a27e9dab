"""`chimera mmlu run=<directory> [data=<folder>]`: ask a causal model MMLU's questions, one-shot."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from chimera.cli.command import command
from chimera.errors import UserError
from chimera.types import PositiveInt


@dataclass(frozen=True)
class Examination:
    """What is asked of which run.

    Asks the trained model of the run and, where an adapter changed it, the model that the adapter
    was put on. Prints both and writes them to a file.

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


@command("mmlu", Examination)
def main(options: Examination, words: list[str]) -> int:
    """Ask, print, write."""
    from chimera.config.schema import shown
    from chimera.config.start_model import location
    from chimera.config.trusted_config import recorded
    from chimera.rundir.directory import RunDir
    from chimera.safe_io import write_json
    from chimera.task import mmlu

    directory = RunDir(options.run)
    config = recorded(directory)
    base = config["choices"]["adapter"] != "none" and (
        location(config) or config["model"].get("name")
    )
    if base and not options.trust:
        raise UserError(
            f"run={directory.path} is compared with the model that its adapter was put on,"
            f" {shown(base)}, which is not loaded on a file's word; add trust=true if you know it"
        )
    questions = mmlu.read(options.data, options.split, options.subjects, options.limit)
    length = options.length or config["model"]["max_len"]
    from chimera.evaluate import examine, show

    sizes = {"new": options.new, "batch": options.batch, "length": length}
    results = examine(directory, config, questions, trust=options.trust, **sizes)
    target = options.out or directory.path / "mmlu.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    write_json(target, {"run": str(directory.path), "questions": len(questions), **results})
    show(results, len(questions))
    print(target)
    return 0
