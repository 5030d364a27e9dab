"""Load weights into a model: all weights, or those of the backbone under another head.

Sources are checkpoints of runs and safetensors files. Missing tensors and other shapes are errors
of one line.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from torch import Tensor, nn

from chimera.config.start_model import source
from chimera.config.trusted_config import without_fetching
from chimera.errors import UserError
from chimera.model.from_hf import converted
from chimera.rundir.checkpoint_io import model_tensors
from chimera.rundir.tensors import load_tensors
from chimera.safe_io import write_json

#: Matrix of a head that is not tied to the embeddings.
UNTIED = "head.output.weight"


def read(file: Path) -> dict[str, Tensor]:
    """Read the model's tensors by name, from a checkpoint or a safetensors file."""
    if file.suffix == ".safetensors":
        return load_tensors(file)
    return model_tensors(file)


def restore(model: nn.Module, file: Path, *, tied: Mapping[str, str] | None = None) -> None:
    """Copy all weights of a file into a model of the same configuration.

    Args:
        model: changed in place; the `model` of a task, or the model of an export.
        file: checkpoint or safetensors file.
        tied: names of tied tensors that the file omits, to the name of the saved tensor.

    Raises:
        UserError: a tensor is missing in the file or the model, or has another shape.
    """
    tensors = read(file)
    for name, saved in (tied or {}).items():
        if saved not in tensors:
            raise UserError(f"{file} has no weights for {saved}, which {name} is tied to")
        if not tensors.setdefault(name, tensors[saved]).equal(tensors[saved]):
            raise UserError(f"{file} has other weights for {name} than for {saved}, its twin")
    names = model.state_dict().keys()
    if UNTIED in tensors.keys() - names:  # of an export, by peft
        cast(Any, model).head.add_layer(cast(Any, model).backbone.embedding, tied=False)
        names = model.state_dict().keys()
    hint = "the file belongs to a model with other components or another size"
    for name in tensors:
        if name not in names:
            raise UserError(f"{file} has weights for {name}, which this model lacks; {hint}")
    _copy(model, tensors, str(file), missing=hint, misfit=hint)


def save_body(model: nn.Module, folder: Path) -> None:
    """Write `body/config.json` of a model whose body is another library's, to build it again.

    Args:
        model: the model of a task.
        folder: of a run or an export.
    """
    inner = getattr(getattr(model, "backbone", None), "inner", None)
    config: Any = getattr(getattr(model, "model", None) or inner, "config", None)
    if config is None:
        return
    (folder / "body").mkdir(exist_ok=True)
    write_json(
        folder / "body" / "config.json", without_fetching(json.loads(config.to_json_string()))
    )


def start_from(model: nn.Module, init_from: str | None) -> None:
    """Copy the weights of `init_from` into `model`; only the backbone's if the heads differ.

    Does nothing if `init_from` names a Hugging Face model, which has its weights already.

    Raises:
        UserError: the source lacks weights, or its weights have other shapes.
    """
    run = source(init_from, trust=True) if init_from else None  # the model is there already
    if run is None:
        return
    folder = run.weights.is_dir()  # a checkpoint of transformers
    tensors = converted(model, run.weights) if folder else read(run.weights)
    part = model
    if UNTIED in tensors and getattr(getattr(model, "head", None), "table", None) is not None:
        raise UserError(
            f"init_from={init_from} has a matrix of its own in its head, which is no more the"
            " table of embeddings; add model.tie_head=false"
        )
    inner = getattr(model, "model", None)
    if inner is not None and inner.state_dict().keys() & tensors.keys():
        tensors = {f"model.{name}": tensor for name, tensor in tensors.items()}  # of a graft
    if not model.state_dict().keys() <= tensors.keys():  # another head
        tensors = _of_backbone(tensors, model)
        part = cast(nn.Module, model.backbone)
    _copy(
        part,
        tensors,
        f"init_from={init_from}",
        missing="omit mixer, norm, quant, ffn and position to copy them from init_from",
        misfit="omit model, its components and tokenizer to copy them from init_from",
    )


def _copy(
    model: nn.Module, tensors: Mapping[str, Tensor], source: str, *, missing: str, misfit: str
) -> None:
    """Copy tensors into all parameters and buffers of `model`.

    Args:
        model: changed in place.
        tensors: tensors by their names in `model`; other names are ignored.
        source: name of the source in error messages.
        missing, misfit: advice in error messages for a missing tensor, or another shape.
    """
    state = model.state_dict()
    for name, tensor in state.items():
        if name not in tensors:
            raise UserError(f"{source} has no weights for {name}; {missing}")
        if tensors[name].shape != tensor.shape:
            raise UserError(
                f"{source} has {name} {_shape(tensors[name])}, this model {_shape(tensor)};"
                f" {misfit}"
            )
    model.load_state_dict({name: tensors[name] for name in state})


def _of_backbone(tensors: dict[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """Select the tensors of the backbone, by their names in the backbone."""
    base_prefix = getattr(getattr(model, "model", None), "base_model_prefix", "")
    prefixes = {"backbone.": "", f"model.{base_prefix}.": "inner."}
    return {
        new_prefix + name.removeprefix(prefix): tensor
        for name, tensor in tensors.items()
        for prefix, new_prefix in prefixes.items()
        if name.startswith(prefix)
    }


def _shape(tensor: Tensor) -> str:
    return f"[{' '.join(map(str, tensor.shape))}]"
