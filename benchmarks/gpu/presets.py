"""Time and peak memory of a training step of the papers' presets, and BERT of Hugging Face beside.

TITAN trains on one card of 24 GB (TITAN Table 8): with gradient checkpointing or without, with
AdamW or its 8-bit form. BERT-Base is timed beside `BertForMaskedLM` of the same shape on the same
batch. Steps are of random tokens, as many masked as in training; a step is forward, backward and
update. MFU counts the FLOPs of matrix products in forward and backward (`chimera.ops.flops`)
against the rate that `chimera.train.rate` gives: the data sheet's, or a measured one.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from benchmarks.gpu.setting import Setting, kernels, median_seconds
from chimera.config.compose import compose, plain
from chimera.ops.flops import Count
from chimera.optim.groups import groups
from chimera.optim.optimizer import build
from chimera.train.build import make_task
from chimera.train.rate import rate_of

MASKED = 0.15
#: Name, preset, further choices, precision, batch, length.
Row = tuple[str, str, list[str], str, int, int]
CHECKPOINTED, WHOLE = "model.gradient_checkpointing=true", "model.gradient_checkpointing=false"
TITAN, BASE, BERT = "titan_bert_ultra", "bitnet_qdyt_base", "bert_base"
ROWS: list[Row] = [
    ("BERT-Base", BERT, [], "bf16", 64, 128),
    ("BERT-Base", BERT, [], "fp32", 64, 128),
    ("BitNet-QDyT-Base", BASE, [], "bf16", 64, 128),
    ("TITAN", TITAN, [CHECKPOINTED], "fp16", 2, 512),
    ("TITAN", TITAN, [WHOLE], "fp16", 2, 512),
    ("TITAN, 8-bit AdamW", TITAN, [CHECKPOINTED, "optim=adamw8bit"], "fp16", 2, 512),
    ("TITAN, 8-bit AdamW", TITAN, [WHOLE, "optim=adamw8bit"], "fp16", 2, 512),
    ("TITAN", TITAN, [CHECKPOINTED], "bf16", 8, 512),
    ("BitNet-QDyT-Base", BASE, [], "fp16", 64, 128),
]
SMALL = ["model.dim=64", "model.heads=4", "model.depth=2", "model.max_len=32", "ffn.expand=2"]
ROUNDS, WARMUP = 5, 2


def main(setting: Setting) -> dict[str, Any]:
    """Measure each row that there is time for; a row that fails says why."""
    rate = {p: rate_of(torch.device(setting.device), p) for p in ("fp32", "bf16", "fp16")}
    rows: list[dict[str, Any]] = []
    for name, preset, extra, precision, batch, length in ROWS:
        overrides = [f"preset={preset}", *extra]
        if setting.tiny:
            overrides += SMALL if preset != TITAN else [*SMALL[:4], "mixer.members.retnet.heads=4"]
            batch, length = 2, 16
        row: dict[str, Any] = {"name": name, "choices": overrides, "precision": precision}
        row |= {"batch": batch, "length": length}
        if setting.left < 5:
            rows.append({**row, "error": "no time left"})
            continue
        rows.append(row | tried(lambda: ours(setting, overrides, precision, batch, length, rate)))  # noqa: B023
        if preset == BERT:
            theirs = {**row, "name": "BertForMaskedLM", "choices": []}
            rows.append(theirs | tried(lambda: bert(setting, precision, batch, length, rate)))  # noqa: B023
        print(rows[-1], flush=True)
    return {"flops_per_second": rate, "rows": rows}


def tried(measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What was measured, or `error`; memory is free again afterwards."""
    try:
        return measure()
    except Exception as error:  # noqa: BLE001 - whatever it is, the row says so
        return {"error": f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"}
    finally:
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def ours(
    setting: Setting, overrides: list[str], precision: str, batch: int, length: int,
    rate: dict[str, float],
) -> dict[str, Any]:  # fmt: skip
    """Measure a preset of Chimera."""
    config = plain(compose(overrides))
    vocabulary = 512 if setting.tiny else config["tokenizer"].get("vocab_size") or 30522
    task = make_task(config, vocabulary)
    model = task.model.to(setting.device).train()
    optimizer, _ = build(task.optim, groups(model, task.optim), 1000, fused=precision != "fp16")
    ids, index, targets = inputs(setting, vocabulary, batch, length)

    def loss() -> torch.Tensor:
        out = model(ids, index=index, targets=targets)
        return task.total_loss(out.loss, out.aux)

    return measured(setting, model, optimizer, loss, precision, batch * length, rate)


def bert(
    setting: Setting, precision: str, batch: int, length: int, rate: dict[str, float]
) -> dict[str, Any]:
    """Measure Hugging Face's BERT of the same shape."""
    from transformers import BertConfig, BertForMaskedLM

    vocabulary = 512 if setting.tiny else 30522
    small: dict[str, Any] = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = BertConfig(vocab_size=vocabulary, **(small if setting.tiny else {}))
    model: nn.Module = BertForMaskedLM(config)
    model = model.to(setting.device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    ids, index, targets = inputs(setting, vocabulary, batch, length)
    labels = torch.full_like(ids, -100)
    labels.view(-1)[index] = targets
    return measured(
        setting, model, optimizer, lambda: model(input_ids=ids, labels=labels).loss, precision,
        batch * length, rate,
    )  # fmt: skip


def inputs(setting: Setting, vocabulary: int, batch: int, length: int) -> tuple[torch.Tensor, ...]:
    """Random ids [b t], flat masked positions [n] and their targets [n]."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(vocabulary, (batch, length), generator=generator)
    count = max(1, round(MASKED * batch * length))
    index = torch.randperm(batch * length, generator=generator)[:count].sort().values
    return tuple(x.to(setting.device) for x in (ids, index, ids.flatten()[index]))


def measured(
    setting: Setting, model: nn.Module, optimizer: torch.optim.Optimizer,
    loss: Callable[[], torch.Tensor], precision: str, tokens: int, rate: dict[str, float],
) -> dict[str, Any]:  # fmt: skip
    """Seconds of a step, tokens/s, MFU, peak memory and number of parameters."""

    def forward() -> torch.Tensor:
        with setting.autocast(precision):
            return loss()

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        forward().backward()
        optimizer.step()

    rounds, warmup = (1, 1) if setting.tiny else (ROUNDS, WARMUP)
    if setting.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    seconds = median_seconds(setting, step, rounds=rounds, warmup=warmup)
    peak = torch.cuda.max_memory_allocated() if setting.device == "cuda" else None
    with kernels(on=False), Count() as count:
        optimizer.zero_grad(set_to_none=True)
        forward().backward()
    flops = count.products
    return {
        "seconds": seconds,
        "tokens_per_second": tokens / seconds,
        "flops": flops,
        "mfu": flops / seconds / rate[precision],
        "peak_gib": peak and peak / 2**30,
        "parameters": sum(p.numel() for p in model.parameters()),
    }
