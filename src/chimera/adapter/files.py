"""An adapter in files of its own, laid out as `peft` does it: theirs load here, ours load there.

    adapter_config.json          kind, r, α, names of layers
    adapter_model.safetensors    base_model.model.<layer>.lora_A.weight, …, and what else is trained

LoRA and AdaLoRA are known to both. SoRA is not known to peft: as it is it loads here only, pruned
(`chimera.adapter.merge.prune`) it is a LoRA whose ranks differ by layer, which peft loads.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from chimera.adapter.adalora import SVDLike
from chimera.adapter.lora import LoRA
from chimera.adapter.low_rank import Adapted, LowRank, adapted, substitute
from chimera.adapter.sora import SoRA
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
        for key, tensor in _tensors(layer.update).items():
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
    """Put an adapter of ours or of peft's on a model, which is frozen and changed in place.

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
    found: dict[str, dict[str, Tensor]] = {}
    for key in [k for k in tensors if ".lora_" in k]:
        name, _, part = key.rpartition(".lora_")
        found.setdefault(name, {})[part.removesuffix(".weight")] = tensors.pop(key)
    for name, parts in found.items():
        _attach(model, name, config, parts)
    for name, tensor in tensors.items():
        _copy(model, name, tensor)
    return model


def _tensors(update: LowRank) -> dict[str, Tensor]:
    a, b, m = update.A.detach(), update.B.detach(), update.middle()
    if isinstance(update, SVDLike):
        return {"lora_A": a, "lora_B": b, "lora_E": update.E.detach()[:, None]}
    both = {"lora_A.weight": a, "lora_B.weight": b}
    return both if m is None else both | {"lora_gate": m.detach()}


def _config(layers: dict[str, Adapted]) -> dict[str, Any]:
    updates = {name: layer.update for name, layer in layers.items()}
    one = next(iter(updates.values()))
    svd = isinstance(one, SVDLike)
    alphas = {n: u.scale * (u.r + 1e-5 if svd else u.r) for n, u in updates.items()}
    most = max(u.r for u in updates.values())
    alpha = max(alphas.values())
    config: dict[str, Any] = {
        "peft_type": one.kind,
        "r": most,
        "lora_alpha": alpha,
        "lora_dropout": one.dropout,
        "target_modules": list(layers),
        "bias": "none",
        "task_type": None,
        "rank_pattern": {n: u.r for n, u in updates.items() if u.r != most},
        "alpha_pattern": {n: a for n, a in alphas.items() if a != alpha},
    }
    if svd:  # peft wants a schedule even where nothing is trained
        config |= {"r": 8, "init_r": most, "total_step": 1, "rank_pattern": None}
    return config


def _attach(model: nn.Module, name: str, config: dict[str, Any], parts: dict[str, Tensor]) -> None:
    kind, a = config["peft_type"], parts.get("A")
    if kind not in ("LORA", "ADALORA", "SORA") or a is None or set(parts) - {"A", "B", "E", "gate"}:
        raise UserError(f"{name}: an adapter of kind {kind} with {', '.join(parts)} is not known")
    names = {n for n, _ in model.named_modules()}
    if name not in names:
        raise UserError(f"the adapter is for {name}, which the model has not{nearest(name, names)}")
    old = model.get_submodule(name)
    base = old.base if isinstance(old, Adapted) else old
    r, dropout = len(a), config.get("lora_dropout") or 0.0
    alpha = (config.get("alpha_pattern") or {}).get(name, config["lora_alpha"])
    update: LowRank
    if kind == "ADALORA":
        update = SVDLike(base, r, alpha, dropout)
        update.scale = alpha / (config["init_r"] + 1e-5)
        update.E.data.copy_(parts["E"].flatten())
    else:
        scale = alpha / (r**0.5 if config.get("use_rslora") else r)
        update = (SoRA if kind == "SORA" else LoRA)(base, r, scale, dropout)
        if isinstance(update, SoRA):
            update.gate.g.data.copy_(parts["gate"])
    update.A.data.copy_(a)
    update.B.data.copy_(parts["B"])
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
