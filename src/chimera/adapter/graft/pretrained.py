"""Graft LiZAttention onto a pretrained Hugging Face causal model (SPEC A4; TPTT 3.4).

    model = graft.liza("meta-llama/Llama-3.2-1B")      # memory in every attention, with LoRA
    graft.set_weight(model, 0.5)                       # α
    graft.save(model, "folder")                        # new and trained tensors, as safetensors
    model = graft.load("folder")                       # base model with these tensors
    model.generate(...)                                # method of transformers

The model keeps its class and the names of its weights.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import load_file, load_model, save_file, save_model
from torch import nn

from chimera.adapter.graft.attach import attach
from chimera.adapter.graft.memory import GraftedMemory
from chimera.adapter.graft.sites import sites
from chimera.adapter.shared.inject import inject
from chimera.adapter.shared.low_rank import LowRank, adapted
from chimera.errors import UserError
from chimera.ops.liza import Gate, Nonlinearity, Trick

SETTINGS, NEW, WHOLE = "liza.json", "liza.safetensors", "model.safetensors"


def liza(
    model: str | Path | nn.Module,
    *,
    lora: int | None = 8,
    lora_alpha: float = 16.0,
    lora_dropout: float = 0.05,
    train: Literal["inner", "projections"] = "inner",
    order: int = 2,
    trick: Trick = "derivative",
    gate: Gate = "k",
    mag: Literal["additive", "cross_gate"] = "additive",
    mag_weight: float = 0.5,
    nonlinearity: Nonlinearity = "none",
    chunk: int = 64,
    max_cache: int | None = None,
) -> Any:
    """Load a pretrained causal model and add a linear memory to every attention.

    Args:
        model: folder, hub id, or a transformers model, which is changed in place.
        lora: rank of the LoRA on the four projections; None for no LoRA.
        lora_alpha, lora_dropout: α and dropout of the LoRA.
        train, order, trick, gate, mag, mag_weight, nonlinearity, chunk, max_cache: see
            `chimera.adapter.liza.liza`.

    Raises:
        UserError: the model cannot be loaded, or has no supported attention.
    """
    base: Any = _pretrained(str(model), None) if isinstance(model, str | Path) else model
    targets = [f"{name}.{part}" for name, layout in sites(base).items() for part in layout.names]

    def inner(model: nn.Module) -> nn.Module:
        if lora is None:
            return model
        scale = lora_alpha / lora
        return inject(model, lambda layer: LowRank(layer, lora, scale, lora_dropout), targets, None)

    return attach(
        base,
        inner=inner,
        train=train,
        max_cache=max_cache,
        mag=mag,
        mag_weight=mag_weight,
        branch={
            "order": order,
            "trick": trick,
            "gate": gate,
            "nonlinearity": nonlinearity,
            "chunk": chunk,
        },
    )


def memories(model: nn.Module) -> list[GraftedMemory]:
    """Memories of a grafted model, in the order of layers.

    Raises:
        UserError: the model has no memory.
    """
    grafted = [module for module in model.modules() if isinstance(module, GraftedMemory)]
    if not grafted:
        raise UserError(f"this {type(model).__name__} has no LiZAttention; graft.liza adds it")
    return grafted


def set_weight(model: nn.Module, weight: float) -> None:
    """Set α of every layer: 0 for the base model, 1 for the linear branch only."""
    for memory in memories(model):
        memory.set_mag_weight(weight)


def save(model: Any, folder: str | Path, *, whole: bool = False) -> None:
    """Save a grafted model as safetensors.

    Args:
        model: grafted model.
        folder: target folder, created if missing.
        whole: True saves the base's weights and configuration too; False saves only the base's
            name, and the new and trained tensors.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    settings = {"base": None if whole else model.name_or_path, "dtype": _dtype(model)}
    settings |= _options(model)
    (folder / SETTINGS).write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")
    if whole:
        model.config.save_pretrained(folder)
        save_model(model, str(folder / WHOLE))
        return
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    new = {
        name: tensor.contiguous()
        for name, tensor in model.state_dict().items()
        if name in trained or ".liza." in name or ".update." in name
    }
    save_file(new, folder / NEW)


def load(folder: str | Path, base: str | Path | None = None) -> Any:
    """Load a grafted model that `save` wrote, in evaluation mode.

    Args:
        folder: folder of `save`.
        base: folder or hub id of the base model; None for the base that `save` recorded.

    Raises:
        UserError: the folder or the base is missing, or the base does not fit.
    """
    folder = Path(folder)
    try:
        settings = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{folder} has no {SETTINGS}; graft.save writes it") from error
    name, dtype = settings.pop("base"), getattr(torch, settings.pop("dtype"))
    if (folder / WHOLE).exists():
        from transformers import AutoConfig, AutoModelForCausalLM

        config = AutoConfig.from_pretrained(folder)
        model = liza(AutoModelForCausalLM.from_config(config, dtype=dtype), **settings)
        load_model(model, str(folder / WHOLE))
        return model.eval()
    model = liza(_pretrained(str(base or name), dtype), **settings)
    new = load_file(folder / NEW)
    state = model.state_dict()
    misfits = [k for k, v in new.items() if k not in state or state[k].shape != v.shape]
    if misfits:
        raise UserError(
            f"{base or name} is not the base of {folder}: {misfits[0]} is missing or has another"
            " shape; name the base that was saved"
        )
    model.load_state_dict(new, strict=False)
    return model.eval()


def _options(model: nn.Module) -> dict[str, Any]:
    """Arguments with which `liza` builds this model."""
    memory, updates = memories(model)[0], list(adapted(model).values())
    projection = model.get_submodule(next(iter(sites(model))))
    weights = [p for n, p in projection.named_parameters() if n.endswith("proj.weight")]
    lora: dict[str, Any] = {"lora": None}
    if updates:
        update = updates[0].update
        lora = {
            "lora": update.r,
            "lora_alpha": update.scale * update.r,
            "lora_dropout": update.dropout,
        }
    trained = any(p.requires_grad for p in weights)
    return {**memory.options, **lora, "train": "projections" if trained else "inner"}


def _pretrained(name: str, dtype: torch.dtype | None) -> Any:
    from transformers import AutoModelForCausalLM

    try:
        return AutoModelForCausalLM.from_pretrained(name, dtype=dtype or "auto")
    except OSError as error:
        raise UserError(
            f"{name} is no folder with a causal model, and the hub does not provide one; download"
            f" it once while connected (huggingface-cli download {name}), or name a folder"
        ) from error


def _dtype(model: nn.Module) -> str:
    return str(next(model.parameters()).dtype).removeprefix("torch.")
