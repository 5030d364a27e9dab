"""Compare a SoRA model with its pruned export: are the logits equal, with fewer parameters?

`SORA_RUN` is the directory of a finished fine-tuning run with `adapter=sora`. Its model, and its
export by `export.py adapter=keep`, which leaves gates of zero out, classify the run's test data.
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
    """Export, compare, print; return the contents of the results file, empty without a run."""
    if "SORA_RUN" not in os.environ:
        print("SORA_RUN is not set; set it to the directory of a finished run with adapter=sora")
        return {}
    run = RunDir(Path(os.environ["SORA_RUN"]))
    restored = restore(run)
    tokenizer, settings = restored.tokenizer, instantiate(restored.config["data"])
    model = restored.task.model.eval()
    with tempfile.TemporaryDirectory() as folder:
        about = export(run, Path(folder), pack=False, adapter="keep")
        pruned = load(Path(folder)).model.eval()
    parts = list(batches.load_parts(run.test_data).values())
    loader = batches.loader(parts, settings, tokenizer.pad_id, name="the test part")
    original, exported = (logits(each, loader) for each in (model, pruned))
    results: dict[str, Any] = {
        "run": run.path.name,
        "metrics": {k: v for k, v in run.record()["metrics"].items() if k.startswith("val/")},
        "adapter": about["adapter"],
        "examples": len(original),
        "numbers_of_updates": {"run": update_size(model), "exported": update_size(pruned)},
        "largest_difference_of_logits": float((original - exported).abs().max()),
        "largest_logit": float(original.abs().max()),
    }
    for key, value in results.items():
        print(f"{key:<30}{value}")
    return results


@torch.no_grad()
def logits(model: nn.Module, loader: Any) -> Tensor:
    """Logits [n c] of all examples, in the order of the data set."""
    outputs, indices = [], []
    for batch in loader:
        outputs.append(model(batch["ids"], batch["mask"], batch["segments"]).logits)
        indices.append(batch["indices"])
    return torch.cat(outputs)[torch.cat(indices).argsort()]


def update_size(model: nn.Module) -> int:
    """Number of parameters in the updates of all adapted layers."""
    return sum(p.numel() for m in adapted(model).values() for p in m.update.parameters())
