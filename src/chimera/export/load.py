"""Read an exported model from its folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple, cast

from torch import nn

from chimera.adapter.shared import files as adapters
from chimera.config.hydra_calls import one_line
from chimera.config.schema import check_value
from chimera.config.trusted_config import exported, trusted_model
from chimera.data.tokenizer.base import Tokenizer
from chimera.data.tokenizer.base import load as load_tokenizer
from chimera.data.tokenizer.own import from_transformers
from chimera.errors import UserError
from chimera.export.folder import grafted
from chimera.model.assemble import choose, unadapted
from chimera.model.classifier import Classifier, Pool
from chimera.model.restore import restore
from chimera.quant.shared.packing import packed
from chimera.types import ProperFraction

#: Settings of a classifier's head.
HEAD: dict[str, Any] = {"pool": Pool, "dropout": ProperFraction, "hidden": bool}


class Exported(NamedTuple):
    """A model, in evaluation mode, and its tokenizer."""

    model: nn.Module
    tokenizer: Tokenizer


def load(folder: str | Path) -> Exported:
    """The model and the tokenizer of an exported folder.

    Raises:
        UserError: the folder was not written by `export`, or holds more than data.
    """
    folder = Path(folder)
    about = exported(folder, str(folder))
    if about is None:
        raise UserError(f"{folder} was not written by export.py: it has no config.json of its kind")
    model = build(about, folder)
    if (folder / "adapter").is_dir():
        adapters.load(grafted(model) or model, folder / "adapter")
    own = folder / "tokenizer"  # transformers' save_pretrained writes only its own form
    tokenizer = load_tokenizer(own) if own.is_dir() else from_transformers(str(folder))
    return Exported(model.eval().requires_grad_(False), tokenizer)


def build(about: dict[str, Any], folder: Path) -> nn.Module:
    """The model with its weights, without what an adapter keeps beside them."""
    config = about["chimera"]
    node = trusted_model(config, folder, str(folder), advice="export its run again")
    with one_line():
        choices = choose(config)
        model: nn.Module = unadapted(config | {"model": node}, choices, about["vocab_size"])
    if about["outputs"]:
        # That of transformers, if it put a new head on the model.
        head = about["classifier"] if "pool" in (about.get("classifier") or {}) else config["task"]
        options = {key: head.get(key) for key in HEAD}
        for key, hint in HEAD.items():
            check_value(f"{folder}: {key}", options[key], hint)
        model = Classifier(cast(Any, model).backbone, about["outputs"], **options)
    model = choices.adapter(model)  # a graft, or none
    if about["packed"]:
        model = packed(model)
    restore(grafted(model) or model, folder / "model.safetensors", tied=about["tied"])
    return model
