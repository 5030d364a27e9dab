"""Five mixers as language models of 12 layers, 768 wide: loss after the same tokens and seconds.

Decoders in bf16, on the same tokens in the same order, with a rate that is constant after warm-up,
each for the same number of seconds. The table has the validation loss at the last number of tokens
that all of them reached, and at the end of the seconds. Validation comes after EVERY steps or a
fifth of the seconds, and is not counted in them.
"""

from __future__ import annotations

import bisect
import gzip
import json
import math
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.setting import Setting, harvest
from chimera.config.compose import compose, plain
from chimera.optim.groups import groups
from chimera.optim.optimizer import build
from chimera.train.build import make_task

NAMES = ("attention", "retnet", "delta", "mamba", "mlstm")
SHAPE = ["model.dim=768", "model.depth=12", "model.heads=12", "model.max_len=1024"]
SMALL = ["model.dim=32", "model.depth=1", "model.heads=4", "model.max_len=32"]
VOCABULARY = 256  # bytes: no tokenizer to carry
BATCH, EVERY, VALID = 16, 20, 8
WARMUP, RATE = 50, 6e-4


def main(setting: Setting) -> dict[str, Any]:
    """Train each mixer for a fifth of the time."""
    length, batch = (32, 2) if setting.tiny else (1024, BATCH)
    tokens = stream()
    valid, train = tokens[: VALID * batch * length + 1], tokens[VALID * batch * length + 1 :]
    # The rest is for validation and start-up.
    seconds = 1.0 if setting.tiny else 0.6 * setting.left / len(NAMES)
    rows = {}
    for name in NAMES:
        rows[name] = trained(setting, name, train, valid, length, batch, seconds)
        print(name, {k: v for k, v in rows[name].items() if k != "curve"}, flush=True)
    common = min(row["curve"][-1][0] for row in rows.values())
    for row in rows.values():
        seen = [tokens for tokens, *_ in row["curve"]]
        row["loss_at_equal_tokens"] = row["curve"][bisect.bisect_right(seen, common) - 1][2]
    return {"seconds_each": seconds, "equal_tokens": common, "batch": batch, "length": length,
            "rows": rows, "unigram_loss": unigram(train, valid)}  # fmt: skip


def stream() -> torch.Tensor:
    """Bytes of the packed corpus, or of this repository's documentation if none is packed."""
    if (file := harvest()) is not None:
        documents = json.loads(gzip.decompress(file.read_bytes()))
        text = "\n\n".join(documents[name] for name in sorted(documents))
    else:
        files = sorted(Path(__file__).parents[2].glob("docs/*.md"))
        text = "\n\n".join(file.read_text(encoding="utf-8") for file in files)
    return torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8).long()


def trained(
    setting: Setting, name: str, train: torch.Tensor, valid: torch.Tensor, length: int,
    batch: int, seconds: float,
) -> dict[str, Any]:  # fmt: skip
    """Train for so many seconds, validation not counted."""
    torch.manual_seed(0)
    overrides = ["task=causal_lm", f"mixer={name}", "quant=none", "norm=rmsnorm", "position=none"]
    overrides += SMALL if setting.tiny else SHAPE
    if name == "attention":
        overrides.append("position=rope")
    task = make_task(plain(compose(overrides)), VOCABULARY)
    model = task.model.to(setting.device).train()
    optimizer, _ = build(task.optim, groups(model, task.optim), 10**9, fused=True)
    curve: list[tuple[int, float, float]] = []
    spent, number, steps = 0.0, 0, 1
    while spent < seconds:
        setting.wait()
        start = time.perf_counter()
        for _ in range(steps):
            for group in optimizer.param_groups:
                group["lr"] = RATE * min(1.0, (number + 1) / WARMUP)
            ids, targets = batch_of(train, number, length, batch, setting.device)
            optimizer.zero_grad(set_to_none=True)
            with setting.autocast("bf16"):
                out = model(ids, targets=targets)
            task.total_loss(out.loss, out.aux).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            number += 1
        setting.wait()
        took = time.perf_counter() - start
        spent += took
        if not setting.tiny:
            steps = max(1, min(EVERY, int(steps * seconds / 5 / took)))
        loss = validated(setting, model, valid, length, batch)
        curve.append((number * batch * length, spent, loss))
        if not math.isfinite(loss):
            break
    count = sum(p.numel() for p in model.parameters())
    return {"parameters": count, "tokens_per_second": curve[-1][0] / spent,
            "loss_at_equal_seconds": curve[-1][2], "curve": curve}  # fmt: skip


def batch_of(
    tokens: torch.Tensor, number: int, length: int, batch: int, device: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """ids [b t] and next tokens [b·t] of one step; the text starts anew at its end."""
    places = (torch.arange(batch) + number * batch) * length % (len(tokens) - length - 1)
    rows = tokens[places[:, None] + torch.arange(length + 1)].to(device)
    return rows[:, :-1].contiguous(), rows[:, 1:].flatten()


@torch.no_grad()
def validated(setting: Setting, model: Any, valid: torch.Tensor, length: int, batch: int) -> float:
    """Mean loss in nats per byte."""
    model.eval()
    losses = []
    for number in range(1 if setting.tiny else VALID):
        ids, targets = batch_of(valid, number, length, batch, setting.device)
        with setting.autocast("bf16"):
            losses.append(float(model(ids, targets=targets).loss))
    model.train()
    return sum(losses) / len(losses)


def unigram(train: torch.Tensor, valid: torch.Tensor) -> float:
    """Loss of the frequencies of bytes: the trivial baseline."""
    counts = torch.bincount(train, minlength=VOCABULARY).double() + 1
    return float(-(counts / counts.sum()).log()[valid].mean())
