"""Save and load adapters in the file format of `peft`: Chimera and peft load each other's files.

    adapter_config.json          type, r, α, names of layers
    adapter_model.safetensors    base_model.model.<layer>.lora_A.weight, …, other trained parameters

`LowRank.tensors` of each update class names the tensors in the file. peft supports LoRA and AdaLoRA
but not SoRA: only Chimera loads an unpruned SoRA. A pruned SoRA
(`chimera.adapter.shared.merge.prune`) is a LoRA with different ranks per layer, which peft loads.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from chimera.adapter.shared.draws import connect
from chimera.adapter.shared.low_rank import Adapted, LowRank, adapted, substitute
from chimera.config.groups import groups, node
from chimera.errors import UserError, nearest
from chimera.ops.shards import whole
from chimera.rundir.tensors import load_tensors, save_tensors
from chimera.safe_io import read_json, write_json

CONFIG = "adapter_config.json"
TENSORS = "adapter_model.safetensors"
PREFIX = "base_model.model."


def save(model: nn.Module, folder: str | Path, *, write: bool = True) -> None:
    """Save the adapter of a model, and the other trained parameters.

    All processes call it if the model is sharded; one of them with `write`.

    Names of layers are relative to `model`. For files that peft loads, pass the Hugging Face model
    inside a Chimera model.
    """
    folder = Path(folder)
    layers = adapted(model)
    tensors: dict[str, Tensor] = {}
    for name, layer in layers.items():
        for key, tensor in layer.update.tensors().items():
            tensors[f"{PREFIX}{name}.{key}"] = tensor
    of_updates = {id(p) for layer in layers.values() for p in layer.update.parameters()}
    file_names = {f"{name}.base.": f"{name}." for name in layers}
    extra: set[str] = set()
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and id(parameter) not in of_updates:
            for prefix, file_prefix in file_names.items():
                name = name.replace(prefix, file_prefix)
            tensors[PREFIX + name] = parameter.detach()
            extra.add(name.rpartition(".")[0])
    tensors = {key: whole(tensor).contiguous().cpu() for key, tensor in tensors.items()}
    if not write:
        return
    folder.mkdir(parents=True, exist_ok=True)
    save_tensors(tensors, folder / TENSORS)
    config = _config(layers) | {
        "modules_to_save": sorted(extra) or None,
        "base_model_name_or_path": getattr(model, "name_or_path", None) or None,
    }
    write_json(folder / CONFIG, config)


def load(model: nn.Module, folder: str | Path) -> nn.Module:
    """Load an adapter of Chimera or peft into a model; freezes the model and changes it in place.

    Raises:
        UserError: a file is missing, or names a layer that the model does not have.
    """
    folder = Path(folder)
    for file in (CONFIG, TENSORS):
        if not (folder / file).exists():
            raise UserError(f"{folder} has no adapter: {file} is missing")
    config = read_json(folder / CONFIG)
    tensors = {k.removeprefix(PREFIX): t for k, t in load_tensors(folder / TENSORS).items()}
    for key in ("peft_type", "lora_alpha"):
        if not isinstance(config.get(key), str | int | float):
            raise UserError(f"{folder / CONFIG} names no {key}")
    model.requires_grad_(False)
    layers: dict[str, dict[str, Tensor]] = {}
    for key in [k for k in tensors if ".lora_" in k]:
        name, _, part = key.rpartition(".lora_")
        layers.setdefault(name, {})[part.removesuffix(".weight")] = tensors.pop(key)
    for name, parts in layers.items():
        _attach(model, name, config, parts)
    for name, tensor in tensors.items():
        _copy(model, name, tensor)
    connect(model)
    return model


@cache
def update_classes() -> dict[str, type[LowRank]]:
    """Update classes by `peft_type`, from the modules of the choices in `conf/adapter`."""
    classes: dict[str, type[LowRank]] = {}
    for name in groups()["adapter"]:
        module = import_module(node("adapter", name)["_target_"].rpartition(".")[0])
        for value in vars(module).values():
            if isinstance(value, type) and issubclass(value, LowRank):
                classes[value.peft_type] = value
    return classes


def _config(layers: dict[str, Adapted]) -> dict[str, Any]:
    updates = {name: layer.update for name, layer in layers.items()}
    first = next(iter(updates.values()))
    max_rank = max(u.r for u in updates.values())
    alpha = max(u.alpha for u in updates.values())
    config: dict[str, Any] = {
        "peft_type": first.file_type or first.peft_type,
        "r": max_rank,
        "lora_alpha": alpha,
        "lora_dropout": first.dropout,
        "target_modules": list(layers),
        "bias": "none",
        "task_type": None,
        "rank_pattern": {n: u.r for n, u in updates.items() if u.r != max_rank},
        "alpha_pattern": {n: u.alpha for n, u in updates.items() if u.alpha != alpha},
    }
    return config | first.settings(max_rank)


def _attach(model: nn.Module, name: str, config: dict[str, Any], parts: dict[str, Tensor]) -> None:
    kind = "DORA" if config.get("use_dora") else config["peft_type"]
    update_class = update_classes().get(kind)
    if update_class is None or set(parts) != set(update_class.parts):
        raise UserError(
            f"{name}: an adapter of type {config['peft_type']} with tensors {', '.join(parts)} is"
            f" not supported; types are {', '.join(sorted(update_classes()))}"
        )
    names = {n for n, _ in model.named_modules()}
    if name not in names:
        near = nearest(name, names)
        raise UserError(f"the adapter is for {name}, which the model does not have{near}")
    old = model.get_submodule(name)
    base = old.base if isinstance(old, Adapted) else old
    alpha = (config.get("alpha_pattern") or {}).get(name, config["lora_alpha"])
    update = update_class.from_file(base, parts, config, alpha)
    update.read(parts)
    substitute(model, {old: Adapted(base, update.train(model.training))})


def _copy(model: nn.Module, name: str, tensor: Tensor) -> None:
    parameters = dict(model.named_parameters())
    layer, _, leaf = name.rpartition(".")
    key = name if name in parameters else f"{layer}.base.{leaf}"
    if key not in parameters:
        near = nearest(name, parameters)
        raise UserError(f"the adapter has {name}, which the model does not have{near}")
    parameters[key].data.copy_(tensor)
    parameters[key].requires_grad_(True)
