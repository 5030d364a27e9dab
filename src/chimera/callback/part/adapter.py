"""Log an adapter's effective ranks at validation, and save it alone at the end (SPEC A5)."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.trainer.states import TrainerFn
from torch import nn

from chimera.adapter.shared import files
from chimera.adapter.shared.low_rank import adapted
from chimera.callback import parts_with


class AdapterLog(Callback):
    """Logs the rank of each update, and saves the adapter alone.

    At each validation it logs `val/adapted`, the number of adapted layers; `val/entropy_rank` and
    `val/rank`, the means over them of the entropy rank and of the number of nonzero directions;
    `rank/<layer>` and `alive/<layer>` of each, and `rank/layer_<n>`, the mean of a block. It keeps
    those of every validation in training, for run.json. After the final test it writes `adapter/`
    in the run's directory.

    Args:
        save: write the files.
    """

    def __init__(self, *, save: bool = True) -> None:
        self.save = save
        self.history: dict[str, dict[str, Any]] = {}

    def state_dict(self) -> dict[str, Any]:
        return {"history": self.history} if self.history else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.history = dict(state_dict.get("history", {}))

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.sanity_checking:
            return
        model = pl_module.get_submodule("model")
        log = ranks(model)
        pl_module.log_dict(log)
        if log and trainer.state.fn == TrainerFn.FITTING:
            self.history[str(trainer.global_step)] = summary(model, log)

    def on_test_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        model = pl_module.get_submodule("model")
        if self.save and adapted(model):
            folder = Path(trainer.default_root_dir) / "adapter"
            named = getattr(model, "model", model)  # of transformers, whose names peft knows
            files.save(named, folder, write=trainer.is_global_zero)


def summary(model: nn.Module, log: dict[str, float]) -> dict[str, Any]:
    """What run.json says of an epoch: mean ranks, share of zero directions, nonzero ones by layer.

    Args:
        model: with an adapter.
        log: its `ranks`.
    """
    start = "alive/"
    alive = {key.removeprefix(start): n for key, n in log.items() if key.startswith(start)}
    size = sum(part.nonzero_directions().numel() for part in parts_with(model, "effective_rank"))
    return {
        "rank": log["val/rank"],
        "entropy_rank": log["val/entropy_rank"],
        "gate_sparsity": 1 - sum(alive.values()) / size,
        "alive": alive,
    }


def ranks(model: nn.Module) -> dict[str, float]:
    """Entropy rank and surviving rank of every update, by layer, by block and on average."""
    updates = {
        name.removesuffix(".update"): (module.effective_rank(), module.nonzero_directions().sum())
        for name, module in model.named_modules()
        if hasattr(module, "effective_rank")
    }
    if not updates:
        return {}
    table = torch.stack([torch.stack([e, a.to(e.dtype)]) for e, a in updates.values()]).tolist()
    blocks: dict[str, list[float]] = defaultdict(list)
    log: dict[str, float] = {}
    for name, (entropy, alive) in zip(updates, table, strict=True):
        log[f"rank/{name}"] = entropy
        log[f"alive/{name}"] = alive
        if block := re.search(r"(?:^|\.)(\d+)(?:\.|$)", name):
            blocks[block[1]].append(entropy)
    log |= {f"rank/layer_{n}": sum(of) / len(of) for n, of in blocks.items()}
    means = [sum(column) / len(table) for column in zip(*table, strict=True)]
    log["val/adapted"] = float(len(updates))
    return {"val/entropy_rank": means[0], "val/rank": means[1], **log}
