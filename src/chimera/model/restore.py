"""Load weights into a model: all of them, or the body's under another head.

Tensors come from a checkpoint of a run or from safetensors. One that is missing, or of another
shape, is an error of one line.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from torch import Tensor, nn

from chimera.config.init_from import source
from chimera.errors import UserError
from chimera.rundir.checkpoint_io import load


def read(file: Path) -> dict[str, Tensor]:
    """The model's tensors by name, of a checkpoint or of safetensors."""
    if file.suffix == ".safetensors":
        from safetensors.torch import load_file

        return load_file(file)
    saved: dict[str, Any] = load(file)["state_dict"]
    return {k.removeprefix("model."): v for k, v in saved.items() if k.startswith("model.")}


def restore(model: nn.Module, file: Path, *, tied: Mapping[str, str] | None = None) -> None:
    """Copy all weights of a file into the model that they were saved from, or one built alike.

    Args:
        model: changed in place; a task's `model`, or one that `export` wrote.
        file: a checkpoint or safetensors.
        tied: names that the file leaves out, to the name of the same tensor in it.

    Raises:
        UserError: a tensor is missing on either side, or has another shape.
    """
    given = read(file)
    given |= {name: given[first] for name, first in (tied or {}).items()}
    wanted = model.state_dict()
    hint = "it belongs to a model of other parts or another size"
    for name in given:
        if name not in wanted:
            raise UserError(f"{file} has weights for {name}, which this model lacks; {hint}")
    _copy(model, given, str(file), missing=hint, misfit=hint)


def start_from(model: nn.Module, init_from: str | None) -> None:
    """Copy all weights into `model`, or the body's where the source has another head.

    A Hugging Face model already has its weights: `init_from` then names it, and nothing is done.

    Raises:
        UserError: the source lacks weights, or has them in other shapes.
    """
    ours = source(init_from) if init_from else None
    if ours is None:
        return
    given, part = read(ours.weights), model
    if not model.state_dict().keys() <= given.keys():  # another head: both have a body
        given, part = _body(given, model), cast(nn.Module, model.backbone)
    _copy(
        part,
        given,
        f"init_from={init_from}",
        missing="leave the choice of its parts to it",
        misfit="leave model, parts and tokenizer to it",
    )


def _copy(
    model: nn.Module, given: Mapping[str, Tensor], source: str, *, missing: str, misfit: str
) -> None:
    """Copy the tensors that `model` has.

    Args:
        model: changed in place.
        given: tensors by their names in `model`; those that it does not have are left out.
        source: what errors call the file.
        missing, misfit: what errors advise where a tensor is missing, or has another shape.
    """
    wanted = model.state_dict()
    for name, tensor in wanted.items():
        if name not in given:
            raise UserError(f"{source} has no weights for {name}; {missing}")
        if given[name].shape != tensor.shape:
            raise UserError(
                f"{source} has {name} {_shape(given[name])}, this model {_shape(tensor)}; {misfit}"
            )
    model.load_state_dict({name: given[name] for name in wanted})


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


def _shape(tensor: Tensor) -> str:
    return f"[{' '.join(map(str, tensor.shape))}]"
