"""Keep NaN and infinity out of the weights (SPEC T6; TITAN 8.4.3); report a step with them.

The guard checks the losses of a step's micro-batches and its gradient norm. These numbers are
fetched from the device anyway, so it costs nothing. Fused Adam leaves a step that is not finite out
on the device, so its update starts before the check; other optimisers wait for it.

Its report has three files: `nan_report-<step>.json` for programs and `replay=`, `.md` to be read,
`.npz` with the step's micro-batches: token ids, masked positions, targets, the samples' numbers.
Each process of a run writes those of its own share; the names of all but the first one's end in
`-rank<r>`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import lightning.pytorch as pl
import numpy as np
import rich
import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor

from chimera.callback import find
from chimera.callback.state.checkpoint import Checkpoints, StepSnapshot
from chimera.data.source.files import read_arrays, save_arrays
from chimera.errors import NotFiniteError, UserError
from chimera.ops import reduce
from chimera.ops.shards import whole
from chimera.program import command_name
from chimera.rundir.directory import RunDir
from chimera.safe_io import read_json, write_atomic, write_json
from chimera.types import PositiveInt

log = logging.getLogger("chimera")


class NanGuard(Callback):
    """Reports a step that is not finite, saves the state before it, and stops or leaves it out.

    An infinite gradient under fp16 is at first the scaler's to handle: it leaves the step out and
    halves its scale. At a scale of 1 nothing is left to halve: the gradient itself is infinite.

    Args:
        policy: `stop` ends the run; `skip` leaves the step out and goes on.
        max_skips: steps of a run that `skip` leaves out before it stops after all.
        show: print the shortened report.
    """

    def __init__(
        self,
        *,
        policy: Literal["stop", "skip"] = "stop",
        max_skips: PositiveInt = 10,
        show: bool = True,
    ) -> None:
        self.policy = policy
        self.max_skips = max_skips
        self.show = show
        self.skipped = self.scaler_skipped = 0
        self._batches: list[Any] = []
        self._before = -1

    def state_dict(self) -> dict[str, int]:
        return {"skipped": self.skipped, "scaler_skipped": self.scaler_skipped}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        self.skipped = state_dict["skipped"]
        self.scaler_skipped = state_dict["scaler_skipped"]

    def chart(self) -> dict[str, float]:
        """Steps left out so far, by the guard and by the scaler."""
        return {"guard/skipped": self.skipped, "guard/scaler_skipped": self.scaler_skipped}

    def setup(self, trainer: pl.Trainer, pl_module: Any, stage: str) -> None:
        self.directory = RunDir(Path(trainer.default_root_dir))
        self.snapshot = find(trainer, StepSnapshot)
        self.checkpoints = find(trainer, Checkpoints)
        pl_module.guard = self

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, *_: Any
    ) -> None:
        if trainer.global_step > self._before:
            self._batches = []
        self._before = trainer.global_step
        self._batches.append(batch)

    def begin_update(self) -> None:
        """See `task.base.Guard`."""
        self.snapshot.updating = True

    def check(self, task: Any, grad_norm: float, losses: list[float]) -> None:
        """Let the step pass, take the gradients away, or stop.

        Raises:
            NotFiniteError: the policy is to stop, or enough has been skipped.
        """
        trainer = task.trainer
        self.begin_update()
        broken = reduce.any_of(not all(map(math.isfinite, losses)))
        if math.isfinite(grad_norm) and not broken:
            return
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        if scaler is not None and not broken and scaler.get_scale() > 1:
            self.scaler_skipped += 1
            _drop_gradients(task)
            return
        self.snapshot.updating = False
        skip = self.policy == "skip" and self.skipped < self.max_skips
        why = self._report(trainer, task, grad_norm, losses)
        if not skip:
            spent = f" ({self.skipped} steps were skipped before)" if self.skipped else ""
            raise NotFiniteError(f"{why}{spent}")
        self.skipped += 1
        log.warning("%s; step left out (%d of %d)", why, self.skipped, self.max_skips)
        self.snapshot.restore_buffers()
        _drop_gradients(task)
        self.snapshot.updating = True

    def _report(self, trainer: pl.Trainer, task: Any, grad_norm: float, losses: list[float]) -> str:
        """Write the report, the batch and the state; returns the report's first line."""
        self.snapshot.restore_buffers()
        recorded = (self.directory.path / "config.yaml").exists()
        config = self.directory.config() if recorded else {}
        facts = collect_report(trainer, task, self._batches, losses, grad_norm, config)
        broken = bool(facts["weights_not_finite"])
        state = self.checkpoints.emergency(
            trainer, "broken" if broken else "emergency", resumable=not broken
        )
        if broken and trainer.is_global_zero:
            self.checkpoints.rescue()
        facts["state"] = None if state is None else str(state.relative_to(self.directory.path))
        file = write_report(self.directory.path, facts, self._batches)
        # On the console of the progress bar, which would be drawn over otherwise.
        if self.show and trainer.is_global_zero:
            text = "\n  ".join(shortened(facts, file))
            rich.get_console().print(text, highlight=False, soft_wrap=True, markup=False)
        return f"{facts['what']} at step {facts['step']}; report: {file.with_suffix('.md')}"


def _drop_gradients(task: Any) -> None:
    """An optimiser passes over what has no gradient, and callbacks see that there is no update."""
    for parameter in task.parameters():
        parameter.grad = None


LARGE = 1000.0
#: Groups of the configuration that affect whether numbers stay finite.
STABILITY = ("quant", "norm", "mixer", "ffn", "optim", "precision")


def collect_report(
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
    scale = task.gradient_scale(trainer.optimizers[0])
    given = {
        n: whole(p.grad if scale is None else p.grad / scale)
        for n, p in task.named_parameters()
        if p.grad is not None
    }
    gradients = {name: gradient for name, gradient in given.items() if not _idle(gradient)}
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


def write_report(directory: Path, facts: dict[str, Any], batches: Sequence[dict[str, Any]]) -> Path:
    """Write the three files; returns the path of the JSON."""
    rank = facts["random"]["rank"]
    file = directory / f"nan_report-{facts['step']}{f'-rank{rank}' * (rank > 0)}.json"
    arrays = {
        f"{number}/{key}": _array(value)
        for number, batch in enumerate(batches)
        for key, value in batch.items()
        if isinstance(value, Tensor)
    }
    save_arrays(file.with_suffix(".npz"), **arrays)
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
        facts: of `collect_report`, with the state of before.
        file: of the report.
    """
    rates = facts["learning_rates"].values()
    return [
        f"{facts['what']} at step {facts['step']}, before the update",
        f"losses {facts['losses']}, gradient norm {facts['grad_norm']},"
        f" rates {min(rates):.1e} to {max(rates):.1e}, scale of the loss {facts['scaler_scale']:g}",
        f"gradients not finite: {_few(facts['gradients_not_finite'])}",
        f"gradients above {LARGE:g}: {_few(facts['gradients_large'])}",
        f"weights not finite: {_few(facts['weights_not_finite'])}",
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
        return "weight", f"{_few(bad, 1)} is not finite in the model's weights"
    for number, loss in enumerate(losses):
        if not math.isfinite(loss):
            return "loss", f"loss of micro-batch {number} is {loss}"
    bad = facts["gradients_not_finite"]
    return (
        "gradient",
        f"gradient of {_few(bad, 1) if bad else 'all parameters together'} is not finite",
    )


def _at_fault(trainer: Any, losses: list[float]) -> list[int]:
    """Ranks of the processes with a loss that is not finite; all have to ask for it."""
    flags = [0.0] * trainer.world_size
    flags[trainer.global_rank] = float(not all(map(math.isfinite, losses)))
    return [rank for rank, flag in enumerate(reduce.totals(flags)) if flag]


def _few(names: Mapping[str, Any], most: int = 3) -> str:
    more = f" (and {len(names) - most} more)" if len(names) > most else ""
    return (", ".join(list(names)[:most]) or "none") + more


def _not_finite(tensors: dict[str, Tensor]) -> dict[str, int]:
    """Number of NaN or infinite values, of the tensors that have any."""
    counts = {
        n: int((~torch.isfinite(t)).sum()) for n, t in tensors.items() if t.is_floating_point()
    }
    return {name: count for name, count in counts.items() if count}


def _idle(gradient: Tensor) -> bool:
    """Whether a gradient is that of an expert without tokens, whatever the loss is.

    `ops.routing.touch` multiplies one number of the weight by 0, so that a loss that is not finite
    leaves NaN there and zero everywhere else.
    """
    flat = gradient.detach().flatten()
    return len(flat) > 1 and not torch.isfinite(flat[0]) and not flat[1:].any()


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
