"""What run.json holds."""

from __future__ import annotations

from typing import Any

from chimera.data.encode.prepare import Prepared
from chimera.quant.shared.packing import byte_report
from chimera.rundir.identity import identity
from chimera.task.base import Task
from chimera.train import parameters


def describe(config: dict[str, Any], data: Prepared, task: Task) -> dict[str, Any]:
    """The facts of a run that are known before training."""
    by_component = parameters.parameters_by_component(task.model)
    total = sum(by_component.values())
    trained = sum(p.numel() for p in task.model.parameters() if p.requires_grad)
    return {
        "name": config["name"],
        "identity": identity(config),
        "choices": config["choices"],
        "seed": config["seed"],
        "parameters": {"total": total, **by_component},
        "trained": {"parameters": trained, "share": trained / total},
        "bytes": {role: size._asdict() for role, size in byte_report(task.model).items()},
        "tokenizer": {"sha256": data.tokenizer.sha256, "vocab_size": data.tokenizer.vocab_size},
        "data": data.report,
    }
