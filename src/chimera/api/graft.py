"""Graft LiZAttention onto a pretrained Hugging Face causal model (SPEC A4; TPTT 3.4).

    model = graft.liza("meta-llama/Llama-3.2-1B")      # memory in every attention, with LoRA
    graft.set_weight(model, 0.5)                       # α
    graft.save(model, "folder")                        # new and trained tensors, as safetensors
    model = graft.load("folder", "meta-llama/Llama-3.2-1B")       # the base, with these tensors
    model.generate(...)                                # method of transformers
    graft.save(model, "whole", whole=True)             # loads where this package is not installed:
    AutoModelForCausalLM.from_pretrained("whole", trust_remote_code=True)

The model keeps its class and the names of its weights; its `save_pretrained` saves it whole.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, Literal, get_type_hints

import torch
from torch import nn

from chimera.adapter.graft.attach import attach, sites
from chimera.adapter.graft.memory import GraftedMemory
from chimera.adapter.shared.inject import inject
from chimera.adapter.shared.low_rank import LowRank, adapted
from chimera.adapter.shared.merge import merged_weight
from chimera.config.schema import check_value
from chimera.errors import UserError, one_line
from chimera.export.folder import distinct, without_adapters, write_graft
from chimera.ops.liza import Beta, Gate, GateInput, Nonlinearity, Trick
from chimera.rundir.tensors import load_tensors, save_tensors
from chimera.safe_io import read_json, write_json

SETTINGS = "liza.json"
NEW = "liza.safetensors"
WHOLE = "model.safetensors"


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
    gate_input: GateInput = "normalised",
    pool: int | Literal["all"] = 3,
    beta: Beta | None = None,
    mag: Literal["additive", "cross_gate"] = "additive",
    mag_weight: float = 0.5,
    mag_learn: Literal["head"] | None = None,
    nonlinearity: Nonlinearity = "none",
    chunk: int = 64,
    max_cache: int | None = None,
) -> Any:
    """Load a pretrained causal model and add a linear memory to every attention.

    Args:
        model: folder, hub id, or a transformers model, which is changed in place.
        lora: rank of the LoRA on the four projections; None for no LoRA.
        lora_alpha, lora_dropout: α and dropout of the LoRA.
        train, order, trick, gate, gate_input, pool, beta, mag, mag_weight,
            mag_learn, nonlinearity, chunk, max_cache: see `chimera.adapter.liza.liza`.

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

    attach(
        base,
        inner=inner,
        train=train,
        max_cache=max_cache,
        mag=mag,
        mag_weight=mag_weight,
        mag_learn=mag_learn,
        order=order,
        trick=trick,
        gate=gate,
        gate_input=gate_input,
        pool=pool,
        beta=beta,
        nonlinearity=nonlinearity,
        chunk=chunk,
    )
    base.save_pretrained = partial(_save_pretrained, base)
    return base


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
        whole: True writes a model of transformers, as an export does, with the LoRA merged;
            False writes only the base's name, and the new and trained tensors.

    Raises:
        UserError: with whole, the LoRA cannot be merged, or the base's class is a stranger's.
    """
    folder = Path(folder)
    options = _options(model)
    if whole:
        _save_whole(model, folder)
        return
    folder.mkdir(parents=True, exist_ok=True)
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    new = {
        name: tensor.contiguous()
        for name, tensor in model.state_dict().items()
        if name in trained or ".liza." in name or ".update." in name
    }
    save_tensors(new, folder / NEW)
    settings = {"base": model.name_or_path, "dtype": _dtype(model)}
    write_json(folder / SETTINGS, settings | options)


def _save_whole(model: Any, folder: Path) -> None:
    tensors = without_adapters(model)
    for name, layer in adapted(model).items():
        weight = merged_weight(layer)
        if weight is None:
            raise UserError(
                f"the LoRA of {name} cannot be merged into a {type(layer.base).__name__};"
                " graft.save without whole=True keeps it apart"
            )
        tensors[f"{name}.weight"] = weight.to(layer.weight.dtype)
    config = write_graft(folder, model, {})
    save_tensors(distinct(tensors)[0], folder / WHOLE, {"format": "pt"})
    write_json(folder / "config.json", config)


def _save_pretrained(model: Any, save_directory: str | Path, **_: Any) -> None:
    """In the place of transformers' method, whose files would name tensors that no class has."""
    save(model, save_directory, whole=True)


def load(folder: str | Path, base: str | Path | None = None) -> Any:
    """Load a grafted model that `save` wrote without `whole`, in evaluation mode.

    Args:
        folder: folder of `save`.
        base: folder or hub id of the base model. The name that the folder records is not loaded on
            its own: the folder may be a stranger's.

    Raises:
        UserError: no such folder, no base, one that does not fit, or files that are more than data.
    """
    place = Path(folder)
    if not (place / SETTINGS).exists():
        raise UserError(
            f"{place} has no {SETTINGS}; graft.save writes it, and whole models are loaded by"
            " AutoModelForCausalLM.from_pretrained(…, trust_remote_code=True)"
        )
    settings = read_json(place / SETTINGS)
    name = settings.pop("base", None)
    dtype = _dtype_of(place, settings.pop("dtype", None))
    hints = get_type_hints(liza, include_extras=True)
    for key, value in settings.items():
        if key not in hints or key in ("model", "return"):
            raise UserError(f"{place / SETTINGS}: {one_line(key)} is not a setting of a graft")
        check_value(f"{place / SETTINGS}: {key}", value, hints[key])
    if base is None:
        raise UserError(
            f"graft.load({str(place)!r}, base=…) takes the base model, which a folder alone does"
            f" not load; it was saved with the base {one_line(name)}"
        )
    model = liza(_pretrained(str(base), dtype), **settings)
    new = load_tensors(place / NEW)
    own = model.state_dict()
    misfits = [k for k, v in new.items() if k not in own or own[k].shape != v.shape]
    if misfits:
        raise UserError(
            f"{base} is not the base of {place}: {misfits[0]} is missing or has another"
            " shape; name the base that was saved"
        )
    model.load_state_dict(new, strict=False)
    return model.eval()


def _options(model: nn.Module) -> dict[str, Any]:
    """Arguments with which `liza` builds this model."""
    memory = memories(model)[0]
    updates = list(adapted(model).values())
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
        return AutoModelForCausalLM.from_pretrained(
            name, dtype=dtype or "auto", trust_remote_code=False
        )
    except OSError as error:
        raise UserError(
            f"{name} is no folder with a causal model, and the hub does not provide one; download"
            f" it once while connected (huggingface-cli download {name}), or name a folder"
        ) from error


def _dtype_of(place: Path, name: object) -> torch.dtype:
    dtype = getattr(torch, str(name), None)
    if not isinstance(dtype, torch.dtype):
        raise UserError(f"{place / SETTINGS}: dtype={one_line(name)} is no type of torch's numbers")
    return dtype


def _dtype(model: nn.Module) -> str:
    return str(next(model.parameters()).dtype).removeprefix("torch.")
