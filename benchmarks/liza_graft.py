"""Fine-tune a trained model with LiZAttention: does the loss at α = 0.5 end below the base's?

The model in the folder `LIZA_MODEL` (default: stories260k beside the checkout) is fine-tuned on
pydocs, text that it was not trained on. The table has the loss per token on the validation split:
of the base, of the graft before training, and after `STEPS` steps of LoRA (rank 8, α 16; lr 5e-4,
batch 4) with the memory's weight α at 0.5, at 1 (linear attention alone), and, for comparison, at 0
(no memory, LoRA only).
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from chimera import graft
from chimera.data.corpus.pydocs import PyDocs
from chimera.data.tokenizer.own import from_transformers
from chimera.paths import ROOT

MODEL = Path(os.environ.get("LIZA_MODEL", ROOT.parent / "shared/data/models/stories260k"))
STEPS, BATCH, LENGTH, VALID = 200, 4, 128, 64
ROWS = {"graft": 0.5, "linear only": 1.0, "LoRA only": 0.0}


def main() -> dict[str, Any]:
    """Train and print; return the contents of the results file, empty without a model."""
    if not MODEL.is_dir():
        print(f"the folder {MODEL} does not exist; set LIZA_MODEL to the folder of a model")
        return {}
    train, valid = (blocks(split) for split in ("train", "valid"))
    valid = valid[:VALID]
    base = loss(graft.liza(MODEL, lora=None, mag_weight=0.0).eval(), valid)
    results: dict[str, Any] = {"model": MODEL.name, "base": base, "steps": STEPS}
    print(f"base                    {base:.4f}")
    for name, weight in ROWS.items():
        torch.manual_seed(0)
        model = graft.liza(MODEL, mag_weight=weight)
        before = loss(model.eval(), valid)
        seconds = fit(model.train(), train)
        after = loss(model.eval(), valid)
        results[name] = {"weight": weight, "before": before, "after": after, "seconds": seconds}
        print(f"{name:12} α = {weight:<5g} {before:.4f} → {after:.4f}  in {seconds:.0f} s")
    return results


def blocks(split: str) -> Tensor:
    """Token ids of a split [rows, LENGTH + 1]."""
    tokenizer = from_transformers(str(MODEL))
    documents = PyDocs(max_bytes=4_000_000).splits()[split]  # type: ignore[index]
    ids = torch.cat([torch.from_numpy(document) for document in tokenizer.encode(documents)])
    width = LENGTH + 1
    return ids[: len(ids) // width * width].view(-1, width)


def fit(model: Any, rows: Tensor) -> float:
    """Fine-tune on shuffled rows of token ids; return the seconds."""
    trained = [p for p in model.parameters() if p.requires_grad]
    optimiser = torch.optim.AdamW(trained, lr=5e-4, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 5e-4, STEPS, pct_start=0.06)
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))
    start = time.perf_counter()
    for step in range(STEPS):
        batch = rows[order[torch.arange(step * BATCH, (step + 1) * BATCH) % len(order)]]
        score(model, batch).backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimiser.step()
        schedule.step()
        optimiser.zero_grad()
    return time.perf_counter() - start


@torch.no_grad()
def loss(model: Any, rows: Tensor) -> float:
    """Mean cross entropy per token of rows of token ids."""
    return float(torch.stack([score(model, part) for part in rows.split(BATCH)]).mean())


def score(model: Any, rows: Tensor) -> Tensor:
    """Cross entropy of the next token, with gradients."""
    logits = model(rows[:, :-1], use_cache=False).logits
    return F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
