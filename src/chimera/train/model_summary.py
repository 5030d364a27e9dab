"""What is known of a run before it starts: parameters, FLOPs, memory, disk, a diagram.

The model is built on the meta device, which takes no memory; no data are read. The vocabulary has
the size that the tokenizer's settings ask for.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from hydra.utils import instantiate
from torch import nn

from chimera.contract import Ternary
from chimera.model.assemble import unfilled
from chimera.model.diagram import mermaid
from chimera.ops.four_bit import entries
from chimera.optim.optimizer import components
from chimera.quant.shared.packing import byte_report
from chimera.safe_io import read_json
from chimera.task.base import Task
from chimera.task.cost import count
from chimera.task.memory import StepBytes, Update, nbytes, optimiser_bytes, step_bytes, weight_bytes
from chimera.train.build import build_task

#: Entries of a vocabulary whose size only the data tell.
VOCABULARY = 30_000


def overview(config: dict[str, Any]) -> dict[str, Any]:
    """Plain values by subject.

    Args:
        config: checked.
    """
    vocabulary = vocabulary_of(config)
    with torch.device("meta"), unfilled():
        task = build_task(config, vocabulary)
    model = task.model
    data = config["data"]
    length = data.get("seq_len") or config["model"]["max_len"]
    facts = model_facts(task, length)
    needed = memory(config, task, length)
    shards = ranks(config["trainer"]) if config["trainer"]["strategy"] == "fsdp" else 1
    return {
        "name": config["name"],
        "vocabulary": vocabulary,
        "processes": ranks(config["trainer"]),
        **facts,
        "ternary": ternary_by_component(model),
        "memory": needed,
        "disk": disk(config["trainer"], shards * (needed["weights"] + needed["optimiser"])),
        "diagram": mermaid(model, config["choices"]),
    }


def model_facts(task: Task, length: int) -> dict[str, Any]:
    """Parameters by component, how many are trained, FLOPs and bytes, as run.json has them.

    Args:
        task: with its model, on any device.
        length: tokens of a sequence.
    """
    by_component = parameters_by_component(task.model)
    total = sum(by_component.values())
    trained = sum(p.numel() for p in task.model.parameters() if p.requires_grad)
    flops = count(task, length)
    return {
        "parameters": {"total": total, **by_component},
        "trained": {"parameters": trained, "share": trained / total},
        "flops": flops._asdict() if flops else None,
        "bytes": {role: size._asdict() for role, size in byte_report(task.model).items()},
    }


def parameters_by_component(model: nn.Module) -> dict[str, int]:
    """Number of parameters of each component; a shared table counts once."""
    owner = components(model)
    counts: Counter[str] = Counter()
    for name, parameter in model.named_parameters():
        counts[owner[name]] += entries(parameter)
    return dict(counts)


def ternary_weights(model: nn.Module) -> list[nn.Parameter]:
    """Latent weights of the ternary layers, and of a ternary table; a shared one counts once."""
    layers = (module for module in model.modules() if isinstance(module, Ternary))
    weights = (getattr(layer, "weight", None) for layer in layers)
    return list({id(w): w for w in weights if isinstance(w, nn.Parameter)}.values())


def ternary_by_component(model: nn.Module) -> dict[str, float]:
    """Ternary share of each component's parameters; empty if the model has no ternary weight."""
    owner = components(model)
    ternary = {id(weight) for weight in ternary_weights(model)}
    counts: Counter[str] = Counter()
    for name, parameter in model.named_parameters():
        counts[owner[name]] += parameter.numel() * (id(parameter) in ternary)
    every = parameters_by_component(model) if ternary else {}
    return {name: counts[name] / number for name, number in every.items()}


def vocabulary_of(config: dict[str, Any]) -> int:
    """Entries of the vocabulary: of the tokenizer's settings, or of another library's body."""
    if size := config["tokenizer"].get("vocab_size"):
        return int(size)
    folder = getattr(instantiate(config["model"], _convert_="all"), "folder", None)
    place = folder() if folder else None
    body = read_json(place / "config.json") if place else {}
    size = body.get("vocab_size") or (body.get("text_config") or {}).get("vocab_size")
    return int(size or VOCABULARY)


def memory(
    config: dict[str, Any], task: Task, length: int, passes: int | None = None
) -> dict[str, float]:
    """Bytes of a training step in one process: an estimate without the caches of allocators.

    DDP copies weights and states to each process and keeps the gradients in buckets. FSDP2 has a
    share of the three in each, and at its peak whole weights and gradients of what lies outside the
    blocks and of two blocks.

    Args:
        config: of the run.
        task: on the meta device.
        length: tokens of a sequence.
        passes: as of `step_bytes`.
    """
    trainer = config["trainer"]
    count = ranks(trainer)
    sequences = -(-(config["data"].get("batch_size") or 1) // count)
    found = step_bytes(
        task,
        sequences,
        length,
        config["precision"],
        kept=count > 1 or (trainer["accumulate_grad_batches"] or 1) > 1,
        update=update_of(config),
        passes=passes,
    )
    if found is None:  # the model needs numbers to run
        found = StepBytes(weight_bytes(task), 0.0, optimiser_bytes(task)[0], 0.0)
    needed = found._asdict()
    if trainer["strategy"] == "fsdp" and count > 1:
        for part in ("weights", "gradients", "optimiser"):
            needed[part] /= count
        needed["gathered"] = 2.0 * whole_at_once(task.model)
    return {**needed, "total": sum(needed.values())}


def ranks(trainer: dict[str, Any]) -> int:
    """Number of processes of a run."""
    return int(trainer["devices"] or 1) * int(trainer["num_nodes"] or 1)


def update_of(config: dict[str, Any]) -> Update:
    """How a run's optimiser takes its step (`Task.configure_optimizers`)."""
    trainer = config["trainer"]
    cpu = trainer["accelerator"] == "cpu"
    if trainer["strategy"] != "fsdp" and not (cpu and config["precision"] == "fp16"):
        return "fused"
    return "loop" if cpu else "foreach"


def whole_at_once(model: nn.Module) -> float:
    """Bytes of the weights outside the blocks and of the two largest blocks."""
    from chimera.model.sharding import blocks  # imports FSDP2, which takes half a second

    sizes = sorted(sum(map(nbytes, block.parameters())) for block in blocks(model))
    total = sum(map(nbytes, model.parameters()))
    return float(total - sum(sizes) + sum(sizes[-2:]))


def disk(trainer: dict[str, Any], checkpoint: float, epochs: int | None = None) -> dict[str, Any]:
    """Bytes of a checkpoint, and how many a run keeps at most: newest, best, at ends of epochs.

    `epoch` is None where one is kept at each end of an epoch and only the data tell how many
    epochs there are.

    Args:
        trainer: its settings.
        checkpoint: bytes of the weights and of the optimiser's state.
        epochs: of the run, as the data tell.
    """
    newest = trainer["checkpoint_keep"]
    if steps := trainer["max_steps"]:
        newest = min(newest, -(-steps // trainer["checkpoint_every_n_steps"]))
    limits = (trainer["checkpoint_keep_epochs"], trainer["max_epochs"], epochs)
    epoch = min((limit for limit in limits if limit is not None), default=None)
    best = trainer["checkpoint_keep_best"]
    total = checkpoint * (newest + best + (epoch or 0))
    return {
        "checkpoint": checkpoint, "newest": newest, "best": best, "epoch": epoch, "total": total,
    }  # fmt: skip


def text(found: dict[str, Any]) -> str:
    """The overview as tables of fixed width."""
    import pandas

    counts = {**found["parameters"], "trained": found["trained"]["parameters"]}
    flops = found["flops"]
    products = {**flops["by_component"], "total": flops["forward"]} if flops else {}
    columns = {"parameters": counts, "ternary": found["ternary"], "FLOPs/token": products}
    parts = pandas.DataFrame(columns, index=list(counts), dtype=float)
    parts.insert(1, "share", parts["parameters"] / counts["total"])
    stored = pandas.DataFrame(found["bytes"]).T
    stored.insert(0, "bits/weight", 8 * stored["packed"] / stored["parameters"])
    lines = [found["name"], ""]
    lines += [parts.to_string(na_rep="", formatters=[_whole, _share, _percent, _whole]), ""]
    kinds = {"bits/weight": "{:.2f}".format, "packed": _mb, "fp16": _mb, "fp32": _mb}
    lines += [stored.to_string(columns=list(kinds), formatters=kinds), ""]
    if flops:
        lines += [
            f"matrix products: {flops['forward'] / 1e6:,.2f} MFLOP per token forward,"
            f" {flops['training'] / 1e6:,.2f} in training, at {flops['length']} tokens",
            *(f"at most: {reason}" for reason in flops["at_most"]),
            f"other operations write {flops['elementwise'] / 1e6:,.2f} million numbers per token",
            "",
        ]
    needed = found["memory"]
    each = " in each process" if found["processes"] > 1 else ""
    of = ", ".join(f"{k} {_mb(v)}" for k, v in needed.items() if k != "total")
    kept = found["disk"]
    ends = f"{kept['epoch']} at ends of epochs"
    if kept["epoch"] is None:
        ends = (
            "and one more at each end of an epoch, which the run counts when it has the data"
            " (trainer.checkpoint_keep_epochs=1 keeps the last)"
        )
    return "\n".join(
        [
            *lines,
            f"memory of a step: about {_mb(needed['total'])}{each} ({of});"
            " allocators and libraries take more",
            f"disk: at most about {_mb(kept['total'])}: checkpoints of {_mb(kept['checkpoint'])},"
            f" {kept['newest']} newest, {kept['best']} best, {ends}",
            f"vocabulary: {found['vocabulary']:,}; diagrams: format=mermaid, format=pipeline",
        ]
    )


_whole = "{:,.0f}".format
_share = "{:.1%}".format
_percent = "{:.0%}".format


def _mb(size: float) -> str:
    return f"{size / 1e6:,.2f} MB"
