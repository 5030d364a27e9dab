"""Weights of a model of ours into a new one (`init_from=`), all of them or one line why not."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from chimera.config.init_from import source
from chimera.errors import UserError
from chimera.rundir.checkpoint_io import load


def start_from(model: nn.Module, init_from: str | None) -> None:
    """Copy all weights into `model`, or the body's where the source has another head.

    A Hugging Face model has been loaded by now: `init_from` then names it, and nothing is done.

    Raises:
        UserError: the source lacks weights, or has them in other shapes.
    """
    ours = source(init_from) if init_from else None
    if ours is None:
        return
    given, wanted = read(ours.weights), model.state_dict()
    if not wanted.keys() <= given.keys():  # of another head; a body is all that both have
        wanted = cast(nn.Module, model.backbone).state_dict()
        given = _body(given, model)
    for name, tensor in wanted.items():
        if name not in given:
            raise UserError(
                f"init_from={init_from} has no weights for {name}; leave the choice of its parts to"
                " it"
            )
        if given[name].shape != tensor.shape:
            raise UserError(
                f"init_from={init_from} has {name} {_shape(given[name])}, this model"
                f" {_shape(tensor)}; leave model, parts and tokenizer to it"
            )
    with torch.no_grad():
        for name, tensor in wanted.items():
            tensor.copy_(given[name])


def _body(given: dict[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """The tensors of the body by their names in it, whatever head they came under."""
    theirs = getattr(getattr(model, "model", None), "base_model_prefix", "")
    outer = {"backbone.": "", f"model.{theirs}.": "inner."}
    return {
        inside + name.removeprefix(prefix): tensor
        for name, tensor in given.items()
        for prefix, inside in outer.items()
        if name.startswith(prefix)
    }


def read(file: Path) -> dict[str, Tensor]:
    """The model's tensors by name, of a checkpoint or of safetensors."""
    if file.suffix == ".safetensors":
        from safetensors.torch import load_file

        return load_file(file)
    saved: dict[str, Any] = load(file)["state_dict"]
    return {k.removeprefix("model."): v for k, v in saved.items() if k.startswith("model.")}


def _shape(tensor: Tensor) -> str:
    return f"[{' '.join(map(str, tensor.shape))}]"
