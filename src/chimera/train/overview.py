"""What is known of a run before it starts: parameters, bytes, FLOPs, memory, a diagram.

The model is built on the meta device, which takes no memory; no data are read. The vocabulary has
the size that the tokenizer's settings ask for.
"""

from __future__ import annotations

from typing import Any

import torch
from hydra.utils import instantiate
from torch import Tensor, nn

from chimera.model.assemble import unfilled
from chimera.model.diagram import mermaid
from chimera.quant.shared.packing import byte_report
from chimera.rundir.plain import read_json
from chimera.task.base import Task
from chimera.task.flops import count, example, on_meta
from chimera.train.build import make_task
from chimera.train.console import parameters_by_component, ternary_by_component

#: Entries of a vocabulary whose size only the data tell.
VOCABULARY = 30_000


def overview(config: dict[str, Any]) -> dict[str, Any]:
    """Plain values by subject.

    Args:
        config: checked.
    """
    vocabulary = vocabulary_of(config)
    with torch.device("meta"), unfilled():
        task = make_task(config, vocabulary)
    model, data = task.model, config["data"]
    length = data.get("seq_len") or config["model"]["max_len"]
    flops = count(task, length)
    parameters = parameters_by_component(model)
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    return {
        "name": config["name"],
        "vocabulary": vocabulary,
        "parameters": {"total": sum(parameters.values()), **parameters},
        "trained": trained,
        "ternary": ternary_by_component(model),
        "bytes": {role: size._asdict() for role, size in byte_report(model).items()},
        "flops": flops._asdict() if flops else None,
        "memory": memory(config, task, length, trained),
        "diagram": mermaid(model, config["choices"]),
    }


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
    of it in half precision; logits and their gradient are added. The optimiser is taken to keep two
    numbers for each trained weight, as AdamW does.

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
        "optimiser": 8.0 * trained,
        "activations": sequences * (share * kept + 3 * logits),
    }
    return {**found, "total": sum(found.values())}


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
            out = model(**example(task, length, torch.device("meta")))
    except (RuntimeError, TypeError):  # a model that needs numbers to run
        return 0.0, 0.0
    weights = {p.untyped_storage()._cdata for p in model.parameters()}
    size = sum(x.untyped_storage().nbytes() for at, x in kept.items() if at not in weights)
    logits = out.logits if isinstance(getattr(out, "logits", None), Tensor) else out[0]
    return float(size), 4.0 * logits.numel()


def text(found: dict[str, Any]) -> str:
    """The overview as tables of fixed width."""
    total, flops = found["parameters"]["total"], found["flops"]
    by_component = flops["by_component"] if flops else {}
    lines = [found["name"], ""]
    lines.append(
        f"{'component':<16}{'parameters':>14}{'share':>8}{'ternary':>9}{'FLOPs/token':>14}"
    )
    for name, number in found["parameters"].items():
        ternary = f"{found['ternary'][name]:.0%}" if name in found["ternary"] else ""
        of = by_component.get(name) if name != "total" else flops and flops["forward"]
        lines.append(
            f"{name:<16}{number:>14,}{number / total:>8.1%}{ternary:>9}"
            f"{f'{of:,.0f}' if of else '':>14}"
        )
    lines.append(f"{'trained':<16}{found['trained']:>14,}{found['trained'] / total:>8.1%}")
    lines += ["", f"{'stored':<16}{'bits/weight':>14}{'packed':>12}{'fp16':>12}{'fp32':>12}"]
    for role, size in found["bytes"].items():
        bits = 8 * size["packed"] / size["parameters"]
        lines.append(
            f"{role:<16}{bits:>14.2f}"
            + "".join(f"{size[kind] / 1e6:>9.2f} MB" for kind in ("packed", "fp16", "fp32"))
        )
    if flops:
        lines += [
            "",
            f"matrix products: {flops['forward'] / 1e6:,.2f} MFLOP per token forward,"
            f" {flops['training'] / 1e6:,.2f} in training, at {flops['length']} tokens",
            *(f"at most: {reason}" for reason in flops["at_most"]),
            f"other operations write {flops['elementwise'] / 1e6:,.2f} million numbers per token",
        ]
    of = ", ".join(f"{k} {v / 1e6:,.1f} MB" for k, v in found["memory"].items() if k != "total")
    lines += ["", f"memory of a step: about {found['memory']['total'] / 1e6:,.0f} MB ({of})"]
    lines += [f"vocabulary: {found['vocabulary']:,}; diagram: format=mermaid"]
    return "\n".join(lines)
