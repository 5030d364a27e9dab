"""What a run prints: the table of its parameters before training, its results at the end."""

from __future__ import annotations

import logging
import math
import shutil
import warnings
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import rich
from lightning.pytorch.callbacks import Callback
from rich.table import Table
from torch import nn

from chimera import world
from chimera.errors import UserError, one_line, printable
from chimera.optim.optimizer import Group, groups
from chimera.rundir.directory import RunDir
from chimera.task.memory import optimiser_bytes, weight_bytes
from chimera.train.model_summary import (
    disk,
    parameters_by_component,
    ternary_by_component,
    ternary_weights,
)

#: Parameters from which on a model is large for a CPU.
LARGE = 100_000_000
#: Bytes of weights in checkpoints from ends of epochs, from which on a run names them.
MUCH = 1_000_000_000
#: Steps below which no model here is expected to have learnt more than frequencies.
LEARNS = 100


def quiet() -> None:
    """Silence Lightning's tips and hardware notes, show our log lines, print to standard error."""
    rich.reconfigure(stderr=True)  # the progress bar's console, so that prints go above the bar
    if not world.is_first():
        rich.get_console().quiet = True
        warnings.simplefilter("ignore")
    for name in ("lightning.pytorch", "lightning.fabric", "lightning.pytorch.utilities.rank_zero"):
        logging.getLogger(name).setLevel(logging.WARNING)
    # Loaders count what they hand out; workers are the user's choice; one CPU batch is small.
    warnings.filterwarnings("ignore", message=".*does not have many workers.*")
    warnings.filterwarnings("ignore", message=".*smaller than the logging interval.*")
    warnings.filterwarnings("ignore", message=".*treespec, LeafSpec.*")
    warnings.filterwarnings("ignore", message=".*`srun` command is available.*")
    warnings.filterwarnings("ignore", message=".*code generation for complex operators.*")
    warnings.filterwarnings("ignore", message=".*sync_dist=True.*")  # they are of all processes
    log = logging.getLogger("chimera")
    if not log.handlers:
        log.addHandler(_Say())
        log.setLevel(logging.INFO)


def say(text: str) -> None:
    """Print lines, above a progress bar if there is one; they may quote a stranger's file."""
    text = "\n".join(map(printable, text.split("\n")))
    rich.get_console().print(text, highlight=False, soft_wrap=True, markup=False)


class _Say(logging.Handler):
    """Prints log lines."""

    def emit(self, record: logging.LogRecord) -> None:
        say(record.getMessage())


def show_parameters(title: str, trained: list[Group], model: nn.Module) -> None:
    """Print a row per optimiser group and per frozen component: parameters, share, rate, decay."""
    components = parameters_by_component(model)
    total = sum(components.values())
    trained_count = sum(group.count for group in trained)
    table = Table(title=title, title_justify="left")
    table.add_column("component")
    ternary = ternary_by_component(model)
    for column in ("parameters", "share", "peak lr", "weight decay"):
        table.add_column(column, justify="right")
    for component, count in components.items():
        for group in (group for group in trained if group.component == component):
            name = f"{component}: {', '.join(group.undecayed)}" if group.undecayed else component
            rates = (f"{group.lr:.2e}", f"{group.weight_decay:g}")
            table.add_row(name, f"{group.count:,}", f"{group.count / total:.1%}", *rates)
            count -= group.count
        if count:
            table.add_row(component, f"{count:,}", f"{count / total:.1%}", "frozen", "")
    table.add_row("total", f"{total:,}", "", "", "", style="bold")
    if ternary:
        shares = ", ".join(f"{name} {share:.0%}" for name, share in ternary.items())
        count = sum(p.numel() for p in ternary_weights(model))
        table.add_row("ternary", f"{count:,}", f"{count / total:.1%}", "", "")
        table.caption = f"ternary: {shares}"
    if trained_count < total:
        table.add_row("trained", f"{trained_count:,}", f"{trained_count / total:.2%}", "", "")
    rich.get_console().print(table)


def show_draws(model: nn.Module) -> None:
    """Say what depends on the number of processes or micro-batches; nothing if nothing does."""
    parts = dict.fromkeys(getattr(module, "torch_draws", "") for module in model.modules())
    if places := " and ".join(part for part in parts if part):
        say(
            f"dropout inside {places} is drawn by micro-batch and process, not by sample: other"
            " numbers of processes or micro-batches draw otherwise"
        )
    capped = {name for module in model.modules() for name in getattr(module, "per_process", ())}
    if capped and world.world_size() > 1:
        say(
            f"{' and '.join(sorted(capped))} counts each process's own tokens: where it overflows,"
            " other numbers of processes drop other tokens"
        )


def show_frozen(config: dict[str, Any]) -> None:
    """Warn of an adapter beside random weights, which it freezes."""
    adapter = config["choices"]["adapter"]
    if adapter != "none" and not config["init_from"] and not config["model"].get("pretrained"):
        say(
            f"adapter={adapter} freezes the model's random weights;"
            " init_from=<run or folder> starts from trained ones"
        )


def show_size(config: dict[str, Any], model: nn.Module, device: str) -> None:
    """Say that a large model of our parts has small forms, where no GPU trains it."""
    count = sum(parameters_by_component(model).values())
    ours = "pretrained" not in config["model"]
    if device == "cpu" and ours and count >= LARGE:
        say(
            f"{count / 1e6:.0f} M parameters without a GPU: a step takes minutes;"
            " scale=small trains the same parts in a small model"
        )


def show_disk(config: dict[str, Any], task: Any, epochs: int, folder: Path) -> None:
    """Say how much the checkpoints take, where one of a large model stays at each end of an epoch.

    Args:
        config: of the run.
        task: that is trained.
        epochs: whole ones of the run.
        folder: of the run, for the bytes that are free there.
    """
    trainer = config["trainer"]
    weights = weight_bytes(task)
    if trainer["checkpoint_keep_epochs"] is not None or epochs * weights < MUCH:
        return
    kept = disk(trainer, weights + optimiser_bytes(task)[0], epochs)
    one = f"{kept['checkpoint'] / 1e9:,.2f} GB"
    total = f"{kept['total'] / 1e9:,.1f} GB"
    free = f"{shutil.disk_usage(folder).free / 1e9:,.1f} GB"
    say(
        f"checkpoints will take {total} ({free} are free): one of {one}"
        f" stays at each of {epochs} ends of an epoch;"
        " trainer.checkpoint_keep_epochs=1 keeps the last"
    )


class ConsoleSummary(Callback):
    """Prints before training what the model is made of, and what to know of it."""

    def setup(self, trainer: pl.Trainer, pl_module: Any, stage: str) -> None:
        if stage != "fit" or not trainer.is_global_zero:
            return
        config = RunDir(Path(trainer.default_root_dir)).config()
        show_parameters(config["name"], groups(pl_module.model, pl_module.optim), pl_module.model)
        show_draws(pl_module.model)
        show_frozen(config)
        show_size(config, pl_module.model, trainer.strategy.root_device.type)
        batches = trainer.max_steps * trainer.accumulate_grad_batches
        epochs = batches // len(trainer.datamodule.train_dataloader())  # type: ignore[attr-defined]
        show_disk(config, pl_module, epochs, Path(trainer.default_root_dir))


def report(record: dict[str, Any], folder: Path) -> None:
    """Print the results of a finished run in a few lines.

    Raises:
        UserError: the record, of a file that somebody may have changed, lacks one of them.
    """
    try:
        text = _results(record)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise UserError(
            f"{folder / 'run.json'} is no record of a run ({one_line(error)[:80]}); restore it"
        ) from error
    say(f"{text}\n{folder}")


def _results(record: dict[str, Any]) -> str:
    skipped = record["skipped"]
    left_out = (
        f", {skipped.get('not_finite', 0)} steps left out as not finite,"
        f" {skipped.get('scaler', 0)} by the scaler"
        if any(skipped.values())
        else ""
    )
    rate = record["tokens_per_second"]  # NaN, or null in a file, of a run of one step
    speed = f"{rate:,.0f} tokens/s{_utilisation(record)}, " if rate and math.isfinite(rate) else ""
    return (
        f"{headline(record['metrics'], record.get('steps'))}\n"
        f"{speed}peak memory"
        f" {record['peak_memory_gb']:.2f} GB, {record['wall_seconds']:.0f} s for training"
        f" and tests{left_out}"
    )


def _utilisation(record: dict[str, Any]) -> str:
    """The rate of a run in FLOP/s and its share of that of matrix products; empty if unknown."""
    if not (mfu := record.get("mfu")):  # of a model whose FLOPs are not known
        return ""
    rate = record.get("gemm_rate") or math.nan
    return f", {mfu * rate / 1e9:,.1f} GFLOP/s (MFU {mfu:.1%} of {rate / 1e9:,.0f})"


def headline(metrics: dict[str, float], steps: int | None = None) -> str:
    """Perplexities beside that of word frequencies; all metrics where there are none.

    Args:
        metrics: of validation and test.
        steps: of training, if they are known.
    """
    if not {"val/unigram_perplexity", "val/perplexity", "test/perplexity"} <= set(metrics):
        lines = [
            ", ".join(f"{k} {v:.4f}" for k, v in metrics.items() if k.startswith(stage))
            for stage in ("val/", "test/")
        ]
        return "\n".join(filter(None, lines))
    unigram = metrics["val/unigram_perplexity"]
    ours = metrics["val/perplexity"]
    compared = "lower" if ours <= unigram else "higher"
    if ours > unigram and steps is not None and steps < LEARNS:
        compared += f", as expected after {steps} step{'s' * (steps > 1)}"
    return (
        f"validation perplexity {ours:.1f}, of a unigram model on the same tokens {unigram:.1f}:"
        f" {max(unigram, ours) / min(unigram, ours):.2f} times {compared}\n"
        f"test perplexity {metrics['test/perplexity']:.1f},"
        f" accuracy {metrics.get('test/accuracy', math.nan):.1%}"
    )
