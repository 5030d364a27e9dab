"""What is known of a run before it starts: parameters, FLOPs, memory, disk, a diagram.

The model is built on the meta device, which takes no memory; no data are read. The vocabulary has
the size that the tokenizer's settings ask for.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from hydra.utils import instantiate
from torch import Tensor, nn

from chimera.contract import Packable
from chimera.model.assemble import unfilled
from chimera.model.diagram import mermaid
from chimera.optim.optimizer import build, components, groups
from chimera.quant.shared.packing import byte_report
from chimera.safe_io import read_json
from chimera.task.base import Task
from chimera.task.cost import count, on_meta
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
    needed = memory(config, task, length, facts["trained"]["parameters"])
    return {
        "name": config["name"],
        "vocabulary": vocabulary,
        **facts,
        "ternary": ternary_by_component(model),
        "memory": needed,
        "disk": disk(config["trainer"], needed["weights"] + needed["optimiser"]),
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
        counts[owner[name]] += parameter.numel()
    return dict(counts)


def ternary_weights(model: nn.Module) -> list[nn.Parameter]:
    """Latent weights of the ternary layers, and of a ternary table; a shared one counts once."""
    layers = (module for module in model.modules() if isinstance(module, Packable))
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


def memory(config: dict[str, Any], task: Task, length: int, trained: int) -> dict[str, float]:
    """Bytes of a training step: an estimate without the caches of allocators and libraries.

    Activations are what autograd keeps of one sequence, times the sequences of a micro-batch, half
    of it in half precision; logits and their gradient are added.

    Args:
        config: of the run.
        task: on the meta device.
        length: tokens of a sequence.
        trained: number of trained parameters.
    """
    weights = 4.0 * sum(p.numel() for p in task.model.parameters())
    sequences = config["data"].get("batch_size") or 1
    share = 1.0 if config["precision"] == "fp32" else 0.5
    kept, logits = activations(task, length)
    found = {
        "weights": weights,
        "gradients": 4.0 * trained,
        "optimiser": optimiser_state(task, trained),
        "activations": sequences * (share * kept + 3 * logits),
    }
    return {**found, "total": sum(found.values())}


def optimiser_state(task: Task, trained: int) -> float:
    """Bytes of the optimiser's state, from a step on weights without storage.

    AdamW, the default, keeps two numbers for each weight; it takes no step, which would import
    torch's compiler.
    """
    made = task.optim.optimizer
    if made is None or getattr(made, "func", made) is torch.optim.AdamW:
        return 8.0 * trained
    for parameter in task.model.parameters():
        parameter.grad = torch.empty_like(parameter) if parameter.requires_grad else None
    try:
        optimizer, _ = build(task.optim, groups(task.model, task.optim), 10, fused=False)
        with torch.compiler.set_stance("force_eager"):
            optimizer.step()
    except (RuntimeError, TypeError, NotImplementedError):  # it needs numbers
        return 8.0 * trained
    values = [value for state in optimizer.state.values() for value in state.values()]
    return float(sum(_bytes(value) for value in values if isinstance(value, Tensor)))


def _bytes(x: Any) -> int:
    """Bytes of a tensor; of a quantised one those of its codes and scales."""
    parts = x.__tensor_flatten__()[0] if hasattr(x, "__tensor_flatten__") else ()
    return sum(getattr(x, name).nbytes for name in parts) if parts else int(x.nbytes)


def disk(trainer: dict[str, Any], checkpoint: float) -> dict[str, Any]:
    """Bytes of a checkpoint, and how many a run keeps at most: newest, best, at ends of epochs.

    `epoch` is None where one is kept at each end of an epoch and only the data tell how many
    epochs there are.

    Args:
        trainer: its settings.
        checkpoint: bytes of the weights and of the optimiser's state.
    """
    newest = trainer["checkpoint_keep"]
    if steps := trainer["max_steps"]:
        newest = min(newest, -(-steps // trainer["checkpoint_every_n_steps"]))
    limits = (trainer["checkpoint_keep_epochs"], trainer["max_epochs"])
    epoch = min((limit for limit in limits if limit is not None), default=None)
    best = trainer["checkpoint_keep_best"]
    total = checkpoint * (newest + best + (epoch or 0))
    return {
        "checkpoint": checkpoint, "newest": newest, "best": best, "epoch": epoch, "total": total,
    }  # fmt: skip


def activations(task: Task, length: int) -> tuple[float, float]:
    """Bytes that autograd keeps of one sequence, and bytes of its logits; zero if unknown."""
    model: nn.Module = on_meta(task.model).train()
    own = {id(p.untyped_storage()) for p in model.parameters()}
    kept: dict[int, Tensor] = {}

    def keep(x: Tensor) -> Tensor:
        if id(x.untyped_storage()) not in own:
            kept[x.untyped_storage()._cdata] = x
        return x

    try:
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
            out = model(**task.example(length, torch.device("meta")))
    except (RuntimeError, TypeError):  # a model that needs numbers to run
        return 0.0, 0.0
    weights = {p.untyped_storage()._cdata for p in model.parameters()}
    size = sum(x.untyped_storage().nbytes() for at, x in kept.items() if at not in weights)
    logits = out.logits if isinstance(getattr(out, "logits", None), Tensor) else out[0]
    return float(size), 4.0 * logits.numel()


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
    of = ", ".join(f"{k} {_mb(v)}" for k, v in needed.items() if k != "total")
    kept = found["disk"]
    ends = f"{kept['epoch']} at ends of epochs"
    if kept["epoch"] is None:
        ends = "one at each end of an epoch (trainer.checkpoint_keep_epochs=1 keeps the last)"
    return "\n".join(
        [
            *lines,
            f"memory of a step: about {_mb(needed['total'])} ({of})",
            f"disk: at most about {_mb(kept['total'])}: checkpoints of {_mb(kept['checkpoint'])},"
            f" {kept['newest']} newest, {kept['best']} best, {ends}",
            f"vocabulary: {found['vocabulary']:,}; diagram: format=mermaid",
        ]
    )


_whole = "{:,.0f}".format
_share = "{:.1%}".format
_percent = "{:.0%}".format


def _mb(size: float) -> str:
    return f"{size / 1e6:,.2f} MB"
