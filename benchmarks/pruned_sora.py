"""SoRA pruned on export: the same logits with fewer numbers?

`SORA_RUN` names a finished run of fine-tuning with `adapter=sora`. Its model, and the folder that
`export.py adapter=keep` makes of it (dead gates left out), judge all examples of the run's test.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import torch
from hydra.utils import instantiate
from torch import Tensor, nn

from chimera.adapter.shared.low_rank import adapted
from chimera.data.batch import labelled as batches
from chimera.export import export, load
from chimera.rundir.directory import RunDir
from chimera.train.restore import restore


def main() -> dict[str, Any]:
    """Export, compare, print."""
    if "SORA_RUN" not in os.environ:
        print("no run; name one by SORA_RUN")
        return {}
    run = RunDir(Path(os.environ["SORA_RUN"]))
    restored = restore(run)
    tokenizer, settings = restored.tokenizer, instantiate(restored.config["data"])
    whole = restored.task.model.eval()
    with tempfile.TemporaryDirectory() as folder:
        about = export(run, Path(folder), pack=False, adapter="keep")
        pruned = load(Path(folder)).model.eval()
    parts = list(batches.load_parts(run.test_data).values())
    rows = batches.loader(parts, settings, tokenizer.pad_id, name="the test part")
    judged = [answers(model, rows) for model in (whole, pruned)]
    found: dict[str, Any] = {
        "run": run.path.name,
        "metrics": {k: v for k, v in run.record()["metrics"].items() if k.startswith("val/")},
        "adapter": about["adapter"],
        "examples": len(judged[0]),
        "numbers_of_updates": {"run": numbers(whole), "exported": numbers(pruned)},
        "largest_difference_of_logits": float((judged[0] - judged[1]).abs().max()),
        "largest_logit": float(judged[0].abs().max()),
    }
    for key, value in found.items():
        print(f"{key:<30}{value}")
    return found


@torch.no_grad()
def answers(model: nn.Module, loader: Any) -> Tensor:
    """Logits [n c] of all examples, in their own order."""
    made, places = [], []
    for batch in loader:
        made.append(model(batch["ids"], batch["mask"], batch["segments"]).logits)
        places.append(batch["indices"])
    return torch.cat(made)[torch.cat(places).argsort()]


def numbers(model: nn.Module) -> int:
    """Those that the updates of all adapted layers consist of."""
    return sum(p.numel() for m in adapted(model).values() for p in m.update.parameters())
