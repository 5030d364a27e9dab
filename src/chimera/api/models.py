"""Whole models: `ch.build` from choices, `ch.load` from a run or an exported folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from hydra.utils import instantiate

from chimera.api.words import composed, overrides_of
from chimera.config.init_from import causal_of, location
from chimera.config.schema import check_node, check_value
from chimera.errors import UserError
from chimera.export import Exported
from chimera.export import load as load_exported
from chimera.model.assemble import build_model, choose
from chimera.model.language import LanguageModel
from chimera.model.restore import start_from
from chimera.rundir.directory import RunDir
from chimera.train.restore import restore
from chimera.types import PositiveInt


def build(*words: str, vocab_size: int | None = None) -> LanguageModel:
    """Build a model of choices: `ch.build("mixer=retnet", "quant=bitnet158", "model.dim=256")`.

    It is called as `model(ids, mask=None)`, ids [b t] of int64, and returns `logits` [b t v] and
    auxiliary losses `aux`. `task=causal_lm` makes a decoder. Weights are drawn from `seed=` (by
    default 0), so that equal words make equal models; torch's generator is left as it was.

    Args:
        words: of the command line; what they do not say has the defaults of `chimera train`.
        vocab_size: entries of the vocabulary; None: those of `tokenizer=`.

    Raises:
        UserError: an unknown choice or key, a wrong value, parts that do not fit each other.
    """
    config = composed(overrides_of(words))
    check_value("vocab_size", vocab_size, PositiveInt | None)
    settings = instantiate(config["model"], _convert_="all")
    settings.check()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config["seed"])
        choices = choose(config)
        model = build_model(
            settings,
            choices,
            vocab_size=_vocabulary(config) if vocab_size is None else vocab_size,
            causal=causal_of(config["task"]),
            adapt=False,
        )
        if config["init_from"]:
            start_from(model, location(config))
        adapted: LanguageModel = choices.adapter(model)  # type: ignore[assignment]
        return adapted


def load(path: str | Path, *, trust: bool = False) -> Exported:
    """Load the model and the tokenizer of a run or of an exported folder.

    Returns:
        `(model, tokenizer)`. The model is in evaluation mode, without gradients, on the CPU; of a
        run it has the weights of the checkpoint that the final test was made with.

    Args:
        path: directory of a run, or a folder that `chimera export` wrote. Its files are data, never
            programs.
        trust: load the Hugging Face model that a run's file names, if it has to be.

    Raises:
        UserError: neither of both, or files that are damaged or more than data.
    """
    folder = Path(path).expanduser()
    if not (folder / "config.yaml").is_file():
        if not (folder / "config.json").is_file():
            raise UserError(
                f"{folder} is neither a run nor an exported model; name a directory that"
                " has a config.yaml (of chimera train) or a config.json (of chimera export)"
            )
        return load_exported(folder)
    threads = torch.get_num_threads()
    try:
        run = restore(RunDir(folder), trust=trust)
    finally:
        torch.set_num_threads(threads)  # those of the run are not for the caller
    return Exported(run.task.model.eval().requires_grad_(False), run.tokenizer)


def _vocabulary(config: dict[str, Any]) -> int:
    """Entries of the vocabulary of `tokenizer=`, whose text is not read.

    Raises:
        UserError: its files are missing.
    """
    check_node("tokenizer", config["tokenizer"])
    tokenizer = instantiate(config["tokenizer"], _convert_="all")
    if tokenizer.learns:
        return int(config["tokenizer"]["vocab_size"])
    tokenizer.check()
    return int(tokenizer.build(()).vocab_size)
