"""The report of a step that was not finite: the seven parts of TITAN 8.4.3, and how to repeat it.

`nan_report-<step>.json` for programs and `replay=`, `.md` to be read, `.npz` with the step's
micro-batches: token ids, masked positions, targets, the samples' numbers. Each process of a run
writes those of its own share; the names of all but the first one's end in `-rank<r>`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from chimera.data.source.files import read_arrays
from chimera.errors import UserError
from chimera.ops import reduce
from chimera.ops.shards import whole
from chimera.program import command_name
from chimera.rundir.safe_io import read_json, replacing, write_atomic, write_json

LARGE = 1000.0
#: Groups of the configuration that affect whether numbers stay finite.
STABILITY = ("quant", "norm", "mixer", "ffn", "optim", "precision")


def collect(
    trainer: Any,
    task: Any,
    batches: Sequence[dict[str, Any]],
    losses: list[float],
    grad_norm: float,
    config: dict[str, Any],
) -> dict[str, Any]:
    """Collect the report as plain values.

    Args:
        trainer: of the run, before the update.
        task: with the gradients of the step.
        batches: micro-batches of the step.
        losses: of the micro-batches.
        grad_norm: L2 norm of all gradients.
        config: of the run; `{}` leaves it out of the report.
    """
    gradients = {n: whole(p.grad) for n, p in task.named_parameters() if p.grad is not None}
    weights = {n: whole(p) for n, p in task.named_parameters()} | dict(task.named_buffers())
    micro = trainer.fit_loop.epoch_loop.total_batch_idx
    scaler = getattr(trainer.precision_plugin, "scaler", None)
    facts: dict[str, Any] = {
        "step": trainer.global_step + 1,
        "epoch": trainer.current_epoch,
        "losses": [_plain(loss) for loss in losses],
        "grad_norm": _plain(grad_norm),
        "learning_rates": {g["name"]: float(g["lr"]) for g in trainer.optimizers[0].param_groups},
        "gradients_not_finite": _not_finite(gradients),
        "gradients_large": _large(gradients),
        "weights_not_finite": _not_finite(weights),
        "batch": [
            {key: _statistics(value) for key, value in batch.items() if isinstance(value, Tensor)}
            for batch in batches
        ],
        "memory": _memory(),
        "configuration": {key: config[key] for key in ("choices", *STABILITY) if key in config},
        "scaler_scale": 1.0 if scaler is None else float(scaler.get_scale()),
        "random": {
            "seed": config.get("seed"),
            "micro_batches": list(range(micro - len(batches) + 1, micro + 1)),
            "rank": trainer.global_rank,
        },
        "at_fault": _at_fault(trainer, losses),
        "absent": [[k for k, v in b.items() if v is None] for b in batches],
        "batches_an_epoch": int(trainer.num_training_batches),
        "indices": [b["indices"].tolist() for b in batches if "indices" in b],
    }
    kind, what = _verdict(facts, losses)
    return {**facts, "kind": kind, "what": what}


def write(directory: Path, facts: dict[str, Any], batches: Sequence[dict[str, Any]]) -> Path:
    """Write the three files; returns the path of the JSON."""
    rank = facts["random"]["rank"]
    file = directory / f"nan_report-{facts['step']}{f'-rank{rank}' * (rank > 0)}.json"
    arrays = {
        f"{number}/{key}": _array(value)
        for number, batch in enumerate(batches)
        for key, value in batch.items()
        if isinstance(value, Tensor)
    }
    with replacing(file.with_suffix(".npz")) as new, new.open("wb") as opened:
        np.savez_compressed(opened, **arrays)  # type: ignore[arg-type]
    write_atomic(file.with_suffix(".md"), markdown(facts, file))
    write_json(file, facts)
    return file


def read_batches(report: Path) -> list[dict[str, Any]]:
    """Read the micro-batches that were saved with a report.

    Raises:
        UserError: the files hold something else.
    """
    absent = read_json(report)["absent"]
    batches: list[dict[str, Any]] = [dict.fromkeys(keys) for keys in absent]
    numbers = {str(number) for number in range(len(batches))}
    for name, array in read_arrays(report.with_suffix(".npz")).items():
        number, _, key = name.partition("/")
        if number not in numbers:
            raise UserError(f"{report} is of {len(batches)} micro-batches; its .npz holds {name}")
        batches[int(number)][key] = torch.from_numpy(array)
    return batches


def shortened(facts: dict[str, Any], file: Path) -> list[str]:
    """The report in a few lines, for a terminal.

    Args:
        facts: of `collect`, with the state of before.
        file: of the report.
    """

    def few(names: dict[str, Any]) -> str:
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        return (", ".join(list(names)[:3]) or "none") + more

    rates = facts["learning_rates"].values()
    return [
        f"{facts['what']} at step {facts['step']}, before the update",
        f"losses {facts['losses']}, gradient norm {facts['grad_norm']},"
        f" rates {min(rates):.1e} to {max(rates):.1e}, scale of the loss {facts['scaler_scale']:g}",
        f"gradients not finite: {few(facts['gradients_not_finite'])}",
        f"gradients above {LARGE:g}: {few(facts['gradients_large'])}",
        f"weights not finite: {few(facts['weights_not_finite'])}",
        f"state of before: {facts['state']}",
        f"report: {file.with_suffix('.md')}",
        f"repeat: {command_name('train')} replay={file}",
    ]


def markdown(facts: dict[str, Any], file: Path) -> str:
    """The whole report as Markdown."""
    title, *short = shortened(facts, file)
    random = facts["random"]
    short.append(
        f"epoch {facts['epoch']}, samples {facts['indices']}, seed {random['seed']},"
        f" micro-batches {random['micro_batches']}, rank {random['rank']}"
    )
    sections = {
        "Learning rates": facts["learning_rates"],
        "Gradients: values that are not finite": facts["gradients_not_finite"],
        f"Gradients above {LARGE:g}: the largest": facts["gradients_large"],
        "Weights and buffers: values that are not finite": facts["weights_not_finite"],
        "Batch": {
            f"micro-batch {random['micro_batches'][number]}, {key}": statistics
            for number, batch in enumerate(facts["batch"])
            for key, statistics in batch.items()
        },
        "Memory": facts["memory"],
        "Configuration that affects stability": facts["configuration"],
    }
    lines = [f"# {title}", "", *(f"- {line}" for line in short)]
    for heading, values in sections.items():
        items = [f"- `{name}`: {value}" for name, value in values.items()]
        lines += ["", f"## {heading}", "", *(items or ["none"])]
    return "\n".join(lines) + "\n"


def _verdict(facts: dict[str, Any], losses: list[float]) -> tuple[str, str]:
    """The kind of the first quantity that is not finite, and a line that names it."""
    if bad := facts["weights_not_finite"]:
        return "weight", f"{_first(bad)} is not finite in the model's weights"
    for number, loss in enumerate(losses):
        if not math.isfinite(loss):
            return "loss", f"loss of micro-batch {number} is {loss}"
    bad = facts["gradients_not_finite"]
    return (
        "gradient",
        f"gradient of {_first(bad) if bad else 'all parameters together'} is not finite",
    )


def _at_fault(trainer: Any, losses: list[float]) -> list[int]:
    """Ranks of the processes with a loss that is not finite; all have to ask for it."""
    flags = [0.0] * trainer.world_size
    flags[trainer.global_rank] = float(not all(map(math.isfinite, losses)))
    return [rank for rank, flag in enumerate(reduce.totals(flags)) if flag]


def _first(names: dict[str, int]) -> str:
    more = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
    return f"{next(iter(names))}{more}"


def _not_finite(tensors: dict[str, Tensor]) -> dict[str, int]:
    """Number of NaN or infinite values, of the tensors that have any."""
    counts = {
        n: int((~torch.isfinite(t)).sum()) for n, t in tensors.items() if t.is_floating_point()
    }
    return {name: count for name, count in counts.items() if count}


def _large(gradients: dict[str, Tensor]) -> dict[str, float]:
    largest = {
        name: float(torch.nan_to_num(g.detach().float(), 0.0, 0.0, 0.0).abs().max())
        for name, g in gradients.items()
        if g.numel()
    }
    return {name: value for name, value in largest.items() if value > LARGE}


def _statistics(value: Tensor) -> dict[str, Any]:
    floating = value.is_floating_point()
    return {
        "shape": list(value.shape),
        "dtype": str(value.dtype).removeprefix("torch."),
        "min": _plain(value.min().item()) if value.numel() else None,
        "max": _plain(value.max().item()) if value.numel() else None,
        "not_finite": int((~torch.isfinite(value)).sum()) if floating else 0,
    }


def _memory() -> dict[str, Any]:
    """In GB."""
    from chimera.callback.log.metrics import peak_memory_gb

    found: dict[str, Any] = {"gpu": None, "peak": peak_memory_gb()}
    if torch.cuda.is_available():
        found["gpu"] = torch.cuda.get_device_name()
        found["allocated"] = torch.cuda.memory_allocated() / 1e9
        found["reserved"] = torch.cuda.memory_reserved() / 1e9
    return found


def _plain(value: float) -> float | str:
    """JSON has no NaN: a text stands for it."""
    return value if math.isfinite(value) else str(value)


def _array(value: Tensor) -> np.ndarray[Any, Any]:
    value = value.detach().cpu()
    return (value.float() if value.dtype == torch.bfloat16 else value).numpy()
