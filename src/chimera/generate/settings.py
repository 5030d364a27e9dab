"""Settings of text generation, checked without importing torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from chimera.config.schema import attribute
from chimera.data.source.files import JSON, PARQUET, TABLES, field_texts, format_of, read_lines
from chimera.errors import UserError
from chimera.program import command_name
from chimera.safe_io import expanded
from chimera.types import Fraction, PositiveFloat, PositiveInt, Seed


@dataclass(frozen=True)
class Generation:
    """Settings of a generation.

    Args:
        run: directory of a finished or interrupted run of task=causal_lm.
        prompt: text to continue; empty starts a document.
        prompts: a file with a prompt a line, in place of `prompt`; of JSON, CSV, TSV or Parquet the
            field `prompt` is read.
        max_new: tokens at most.
        greedy: always the likeliest token; the next three then have no effect.
        temperature: logits are divided by it.
        top_k: only the k likeliest tokens; None for all.
        top_p: only the likeliest tokens that together have this probability.
        seed: of the choice.
        batch: prompts at a time.
        checkpoint: `last` or `best`.
        trust: load the Hugging Face model that the run's file names, if it has to be.
    """

    run: str
    prompt: str = ""
    prompts: str | None = None
    max_new: PositiveInt = 100
    greedy: bool = False
    temperature: PositiveFloat = 1.0
    top_k: PositiveInt | None = None
    top_p: Fraction = 1.0
    seed: Seed = 0
    batch: PositiveInt = 16
    checkpoint: Literal["last", "best"] = "last"
    trust: bool = False

    def __post_init__(self) -> None:
        if self.prompt and self.prompts:
            raise UserError("prompt= and prompts= are both there; give one of them")

    def texts(self) -> list[str]:
        """The prompts.

        Raises:
            UserError: a file that is not there, holds none, or has a row without one.
        """
        if self.prompts is None:
            return [self.prompt]
        file = expanded(self.prompts)
        if not file.is_file():
            raise UserError(
                f"prompts={self.prompts} is not there; it takes a file, a prompt a line"
            )
        if format_of(file) in (*JSON, *TABLES, PARQUET):
            lines = list(field_texts(file, "prompt", key="field "))
        else:
            lines = [line.rstrip("\r\n") for line in read_lines(file) if line.strip()]
        if not lines:
            raise UserError(f"prompts={self.prompts} holds no prompt; it takes one a line")
        return lines

    def check(self) -> None:
        """Check that the run and the prompts are there and that the run's task generates text.

        Raises:
            UserError: no run, no prompts, or a run of another task.
        """
        from chimera.config.trusted_config import recorded
        from chimera.rundir.directory import RunDir

        config = recorded(RunDir(expanded(self.run)))
        if not attribute(config["task"]["_target_"], "causal"):
            name = config["task"]["name"]
            raise UserError(
                f"run={self.run} was trained by task={name} and continues no text; train a decoder:"
                f" {command_name('train')} task=causal_lm"
            )
        self.texts()
