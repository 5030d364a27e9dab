"""Write the continuation of prompts, with a run's model and tokenizer."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from chimera.config.trusted_config import recorded
from chimera.data.tokenizer.base import Tokenizer
from chimera.generate.decode import decode
from chimera.generate.settings import Generation
from chimera.model.language import LanguageModel
from chimera.rundir.directory import RunDir
from chimera.train.check import checked_model
from chimera.train.restore import restore

#: A tokenizer decodes the bytes of an unfinished character to this.
UNFINISHED = "\ufffd"


def write(settings: Generation, out: Callable[[str], object] | None = None) -> int:
    """Continue every prompt: a single one as its tokens come, several when a batch has ended.

    Raises:
        UserError: no checkpoint.
    """
    out = out or _print
    texts = settings.texts()
    directory = RunDir(Path(settings.run).expanduser())
    config = recorded(directory)
    if not config["model"].get("name"):  # of Chimera's own parts: refused before weights are read
        cast(LanguageModel, checked_model(config)).init_state(1)
    run = restore(directory, settings.checkpoint, trust=settings.trust)
    gpu = torch.cuda.is_available() and run.settings.accelerator != "cpu"
    model = cast(LanguageModel, run.task.model.to("cuda" if gpu else "cpu").eval())
    tokenizer = run.tokenizer
    opening = tokenizer.opening(packed=run.task.plain_text)
    encoded = tokenizer.encode(texts)
    prompts = [[*opening, *map(int, ids)] or [tokenizer.sep_id] for ids in encoded]
    for start in range(0, len(prompts), settings.batch):
        batch = prompts[start : start + settings.batch]
        tokens = decode(
            model,
            batch,
            settings,
            pad_id=tokenizer.pad_id,
            end_id=tokenizer.sep_id,
            first=start,
        )
        if len(prompts) == 1:
            _stream(tokenizer, batch[0], tokens, out)
            break
        made = torch.stack(list(tokens), 1).tolist()
        for prompt, ids in zip(batch, made, strict=True):
            out(_whole(tokenizer.decode([*prompt, *ids])) + "\n")
    return 0


def _stream(
    tokenizer: Tokenizer, ids: list[int], tokens: Iterable[Tensor], out: Callable[[str], object]
) -> None:
    """Write what each token adds; a character of several tokens is written with the last one."""
    shown = tokenizer.decode(ids)
    out(shown)
    for token in tokens:
        ids = [*ids, int(token[0])]
        text = tokenizer.decode(ids)
        if text.endswith(UNFINISHED):
            continue
        out(text[len(shown) :])
        sys.stdout.flush()
        shown = text
    out("\n")


def _print(text: str) -> None:
    """Write to standard output; a terminal gets no control characters but line breaks and tabs."""
    if sys.stdout.isatty():
        text = "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text)
    sys.stdout.write(text)


def _whole(text: str) -> str:
    return text.rstrip(UNFINISHED)
