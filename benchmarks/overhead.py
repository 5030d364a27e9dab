"""Measure the overhead of the platform: a complete run against a bare loop over the same model.

Both train the components of the main job at the shape of `train_step` (d 256, 6 layers; batch
16 × 128), on the same batches of the same loader, with the same optimiser. They run in turns of
`STEPS` steps. The bare loop clips gradients and steps the optimiser; it logs nothing.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from typing import Any

import torch
import torch.nn.functional as F

from chimera.config.compose import compose, plain
from chimera.optim.optimizer import build, groups
from chimera.train.build import build_data, build_task
from chimera.train.run import run

STEPS, TURNS = 16, 5
MAIN_JOB = ["mixer=retnet", "quant=bitnet158", "norm=qdyt"]
FEW = ["trainer.limit_val_batches=1", "trainer.limit_test_batches=1", "trainer.progress=lines"]
SHAPE = ["model.dim=256", "model.depth=6", "model.heads=8"]


def main() -> dict[str, Any]:
    """Measure and print seconds per step of both, and the platform's overhead as a share."""
    torch.set_num_threads(2)
    platform: list[float] = []
    bare: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(TURNS):
            size = [f"run_dir={folder}/{turn}", f"trainer.max_steps={STEPS + 1}"]
            config = plain(compose([*MAIN_JOB, *SHAPE, *FEW, *size]))
            record = run(config, MAIN_JOB)
            tokens = config["data"]["batch_size"] * config["data"]["seq_len"]
            platform.append(tokens / record["tokens_per_second"])
            bare.append(_bare(config))
    platform_median, bare_median = statistics.median(platform), statistics.median(bare)
    overhead = platform_median / bare_median - 1
    print(
        f"bare loop {bare_median * 1e3:.1f} ms per step, platform {platform_median * 1e3:.1f} ms:"
        f" {overhead:+.1%}"
    )
    return {"bare_seconds": bare, "platform_seconds": platform, "overhead": overhead}


def _bare(config: dict[str, Any]) -> float:
    """Mean seconds per step of the bare loop without the first step, as the platform measures."""
    torch.manual_seed(config["seed"])
    data = build_data(config["data"], config["tokenizer"], config["task"], config["seed"])
    task = build_task(config, data.prepared.tokenizer.vocab_size).train()
    train = data.train_dataloader()
    optimizer, _ = build(task.optim, groups(task.model, task.optim), STEPS, fused=True)
    start = 0.0
    for number, batch in enumerate(train):
        if number == 1:
            start = time.perf_counter()
        if number == STEPS + 1:
            break
        optimizer.zero_grad()
        out = task.model(batch["ids"], batch["mask"], index=batch["index"])
        loss = F.cross_entropy(out.logits, batch["targets"])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(task.parameters(), 1.0)
        optimizer.step()
    return (time.perf_counter() - start) / STEPS
