"""Write and read an adapter in files laid out as `peft` does: each loads the other's.

    adapter_config.json          kind, r, α, names of layers
    adapter_model.safetensors    base_model.model.<layer>.lora_A.weight, …, other trained parameters

Each update says itself how its tensors are called there (`LowRank.tensors`). peft knows LoRA and
AdaLoRA, not SoRA: as it is, SoRA loads here only; pruned (`chimera.adapter.shared.merge.prune`) it
is a LoRA whose ranks differ by layer, which peft loads.
"""

from __future__ import annotations

import json
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from chimera.adapter.shared.low_rank import Adapted, LowRank, adapted, substitute
from chimera.config.groups import groups, node
from chimera.errors import UserError, nearest

CONFIG, TENSORS, PREFIX = "adapter_config.json", "adapter_model.safetensors", "base_model.model."


def save(model: nn.Module, folder: str | Path) -> None:
    """Write the adapter of a model, and the other parameters that are trained with it.

    Names are those inside `model`: of a Hugging Face model inside one of ours, give the former for
    files that peft's users load.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    layers = adapted(model)
    tensors: dict[str, Tensor] = {}
    for name, layer in layers.items():
        for key, tensor in layer.update.tensors().items():
            tensors[f"{PREFIX}{name}.{key}"] = tensor
    own = {id(p) for layer in layers.values() for p in layer.update.parameters()}
    bare = {f"{name}.base.": f"{name}." for name in layers}
    extra: set[str] = set()
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and id(parameter) not in own:
            for inside, outside in bare.items():
                name = name.replace(inside, outside)
            tensors[PREFIX + name] = parameter.detach()
            extra.add(name.rpartition(".")[0])
    save_file({k: t.contiguous().cpu() for k, t in tensors.items()}, folder / TENSORS)
    config = _config(layers) | {"modules_to_save": sorted(extra) or None}
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def load(model: nn.Module, folder: str | Path) -> nn.Module:
    """Put an adapter that Chimera or peft wrote on a model, which is frozen and changed in place.

    Raises:
        UserError: a file is missing, or names a layer that the model does not have.
    """
    folder = Path(folder)
    for file in (CONFIG, TENSORS):
        if not (folder / file).exists():
            raise UserError(f"{folder} holds no adapter: {file} is missing")
    config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    tensors = {k.removeprefix(PREFIX): t for k, t in load_file(folder / TENSORS).items()}
    model.requires_grad_(False)
    layers: dict[str, dict[str, Tensor]] = {}
    for key in [k for k in tensors if ".lora_" in k]:
        name, _, part = key.rpartition(".lora_")
        layers.setdefault(name, {})[part.removesuffix(".weight")] = tensors.pop(key)
    for name, parts in layers.items():
        _attach(model, name, config, parts)
    for name, tensor in tensors.items():
        _copy(model, name, tensor)
    return model


@cache
def kinds() -> dict[str, type[LowRank]]:
    """Updates by the `peft_type` of their files: those that the modules of `conf/adapter` hold."""
    classes: dict[str, type[LowRank]] = {}
    for name in groups()["adapter"]:
        module = import_module(node("adapter", name)["_target_"].rpartition(".")[0])
        for value in vars(module).values():
            if isinstance(value, type) and issubclass(value, LowRank):
                classes[value.kind] = value
    return classes


def _config(layers: dict[str, Adapted]) -> dict[str, Any]:
    updates = {name: layer.update for name, layer in layers.items()}
    one = next(iter(updates.values()))
    most = max(u.r for u in updates.values())
    alpha = max(u.alpha for u in updates.values())
    config: dict[str, Any] = {
        "peft_type": one.kind,
        "r": most,
        "lora_alpha": alpha,
        "lora_dropout": one.dropout,
        "target_modules": list(layers),
        "bias": "none",
        "task_type": None,
        "rank_pattern": {n: u.r for n, u in updates.items() if u.r != most},
        "alpha_pattern": {n: u.alpha for n, u in updates.items() if u.alpha != alpha},
    }
    return config | one.settings(most)


def _attach(model: nn.Module, name: str, config: dict[str, Any], parts: dict[str, Tensor]) -> None:
    kind = kinds().get(config["peft_type"])
    if kind is None or set(parts) != set(kind.parts):
        raise UserError(
            f"{name}: an adapter of kind {config['peft_type']} with {', '.join(parts)} is not known"
        )
    names = {n for n, _ in model.named_modules()}
    if name not in names:
        raise UserError(f"the adapter is for {name}, which the model has not{nearest(name, names)}")
    old = model.get_submodule(name)
    base = old.base if isinstance(old, Adapted) else old
    alpha = (config.get("alpha_pattern") or {}).get(name, config["lora_alpha"])
    update = kind.of_file(base, parts, config, alpha)
    update.read(parts)
    substitute(model, {old: Adapted(base, update.train(model.training))})


def _copy(model: nn.Module, name: str, tensor: Tensor) -> None:
    parameters = dict(model.named_parameters())
    layer, _, leaf = name.rpartition(".")
    at = name if name in parameters else f"{layer}.base.{leaf}"
    if at not in parameters:
        near = nearest(name, parameters)
        raise UserError(f"the adapter holds {name}, which the model has not{near}")
    parameters[at].data.copy_(tensor)
    parameters[at].requires_grad_(True)
