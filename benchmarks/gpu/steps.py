"""Training steps: through `run()` eager and compiled, Hugging Face's BERT, and what could be.

A job is a preset and a kind:

    (none)     `chimera.train.run.run`: the command line's own loop, data and callbacks
    auto       the same with `trainer.compile=auto`: what the budget counts as compiled
    graphs     the same with `trainer.compile=graphs` (on a CPU, which has none, `auto`)
    compiled   the same with `trainer.compile=true`
    graph      the bare step (forward, backward, clipping, update), all in one CUDA graph
    blocks     the bare step, blocks compiled, as calls and in one CUDA graph
    whole      the bare step, ids to loss compiled as a whole, as calls and in one CUDA graph
    overhead   the bare step, compiled with `mode="reduce-overhead"`

Bare steps have the vocabulary padded to a multiple of 64, and hashed dropout as in a run. All of
Hugging Face's BERT are bare. MFU counts the FLOPs of matrix products in
forward and backward (`chimera.ops.flops`) against the data sheet's rate
(`chimera.train.record`).
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from string import ascii_lowercase
from typing import Any, NamedTuple

import torch
from torch import nn

from benchmarks.gpu.job import Setting, reason
from benchmarks.gpu.meter import InTrainer, Measured, Meter, measured
from chimera.callback.state import randomness
from chimera.config.compose import compose, plain
from chimera.model.compiled import compile_model
from chimera.ops.flops import Count
from chimera.optim.optimizer import build, groups
from chimera.task.cost import count
from chimera.train.build import build_task
from chimera.train.record import rate_of

MASKED = 0.15
SMALL = ["model.dim=64", "model.depth=2", "model.max_len=32", "model.heads=4"]
DECODER = ["task=causal_lm", "quant=none", "norm=rmsnorm", "model.dim=768", "model.depth=12",
           "model.heads=12", "model.max_len=1024"]  # fmt: skip


class Preset(NamedTuple):
    """Command line, precision, batch, tokens, vocabulary."""

    words: list[str]
    precision: str = "bf16"
    batch: int = 64
    length: int = 128
    vocabulary: int = 30522


def decoder(mixer: str, position: str = "none") -> Preset:
    """A decoder of 12 layers, 768 wide, on bytes."""
    return Preset([*DECODER, f"mixer={mixer}", f"position={position}"], "bf16", 16, 1024, 256)


def titan(batch: int) -> Preset:
    """TITAN without gradient checkpointing."""
    words = ["preset=titan_bert_ultra", "model.gradient_checkpointing=false"]
    return Preset(words, "fp16", batch, 512, 50000)


PRESETS = {
    "bert": Preset(["preset=bert_base"]),
    "bitnet": Preset(["preset=bitnet_qdyt_base"]),
    "titan": titan(2),
    "titan8": titan(8),
    "attention": decoder("attention", "rope"),
    **{mixer: decoder(mixer) for mixer in ("gated_delta", "retnet", "mamba2")},
    "hf": Preset([]),
}
#: `trainer.compile` of the kinds that train by `run()`.
COMPILE = {"": "false", "auto": "auto", "graphs": "graphs", "compiled": "true"}
#: torch.compile's of the kinds that compile the bare step.
MODES = {"overhead": "reduce-overhead"}
#: Jobs that fit into 80 GB together.
WAVES = [
    [f"steps {job}" for job in wave.split(", ")]
    for wave in (
        "bert, bert auto, bert graphs, hf, hf compiled, bert graph, bert whole, hf graph",
        "bitnet, bitnet auto, attention, attention auto",
        "gated_delta auto, retnet auto, gated_delta, titan",
        "titan auto, titan graphs, retnet, bitnet graph, hf whole, bert compiled",
        "mamba2 auto, gated_delta graph, mamba2",
        "retnet graph, mamba2 graph, bert overhead, titan8 graphs",
    )
]


def main(setting: Setting, label: str) -> dict[str, Any]:
    """Measure one job."""
    name, _, kind = label.partition(" ")
    preset = PRESETS[name]
    if setting.tiny:
        extra = [*SMALL, *["mixer.members.retnet.heads=4"] * name.startswith("titan")]
        preset = Preset([*preset.words, *extra], preset.precision, 2, 32, 256)
    if name == "hf":
        row = hugging_face(setting, preset, kind)
    elif kind in COMPILE:
        there = kind == "graphs" and setting.device != "cuda"
        row = through_run(setting, preset, "auto" if there else COMPILE[kind])
    else:
        row = bare(setting, preset, kind)
    rate = rate_of(torch.device(setting.device), preset.precision)
    return {"tokens": preset.batch * preset.length, "flops_per_second": rate, **row}


def through_run(setting: Setting, preset: Preset, compiled: str) -> dict[str, Any]:
    """Train by `run()` on random words."""
    from chimera.train.run import run

    slow = preset.precision == "fp16"
    InTrainer.meter = Meter(setting, warmup=3 if slow else 8, profiled=1 if slow else 2)
    with tempfile.TemporaryDirectory() as folder:
        write_text(Path(folder), preset.vocabulary, 40_000 if setting.tiny else 2_000_000)
        line = [
            *preset.words, f"precision={preset.precision}", f"run_dir={folder}/run", "logger=none",
            "data=text", f"data.path={folder}/text.txt", f"data.cache_dir={folder}/cache",
            "tokenizer=bert", f"tokenizer.path={folder}/vocab.txt",
            f"data.batch_size={preset.batch}", "trainer.accumulate_grad_batches=1",
            "trainer.max_steps=1000", "trainer.val_check_interval=1000", "trainer.progress=none",
            f"trainer.compile={compiled}",
            f"trainer.accelerator={'gpu' if setting.device == 'cuda' else 'cpu'}",
            "+callbacks.meter._target_=benchmarks.gpu.meter.InTrainer",
        ]  # fmt: skip
        try:
            run(plain(compose(line)), line)
        except Measured as end:
            return InTrainer.meter.row | {"flops": flops(end.args[0], preset)}
    raise RuntimeError("the run ended before its steps were measured")


def write_text(folder: Path, vocabulary: int, letters: int) -> None:
    """A text of random words, and a vocabulary of its letters filled up to this size."""
    draw = random.Random(0)
    lines = [
        " ".join("".join(draw.choices(ascii_lowercase, k=draw.randint(1, 9))) for _ in range(100))
        for _ in range(letters // 600)
    ]
    (folder / "text.txt").write_text("\n\n".join(lines))
    entries = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *ascii_lowercase]
    entries += [f"##{letter}" for letter in ascii_lowercase]
    entries += [f"[unused{number}]" for number in range(vocabulary - len(entries))]
    (folder / "vocab.txt").write_text("\n".join(entries) + "\n")


def bare(setting: Setting, preset: Preset, kind: str) -> dict[str, Any]:
    """Time the step without Trainer."""
    task = build_task(plain(compose(preset.words)), -(-preset.vocabulary // 64) * 64)
    model = task.model.to(setting.device).train()
    work = flops(task, preset)
    fused = preset.precision != "fp16"
    optimizer, _ = build(task.optim, groups(model, task.optim), 1000, fused=fused)
    if kind == "blocks":
        compile_model(model, dynamic=False)
    ids, index, targets = inputs(setting, preset)
    draws = torch.randint(1 << 60, (preset.batch,), device=setting.device)
    batch = {"ids": ids, "mask": None, "index": index, "targets": targets}
    if task.causal:
        batch |= {"index": None, "targets": ids.roll(-1, 1).flatten()}
    if randomness.drops(model):  # without dropout a run makes no keys
        batch["draws"] = draws

    def loss() -> torch.Tensor:
        out = task.outputs(batch)
        parts = [task.weights.get(key, 0.0) * value for key, value in out.aux.items()]
        return sum(parts, start=out.loss)

    return both(setting, preset, model, optimizer, loss, kind) | {"flops": work}


def hugging_face(setting: Setting, preset: Preset, kind: str) -> dict[str, Any]:
    """Time BertForMaskedLM."""
    from transformers import BertConfig, BertForMaskedLM

    small: dict[str, Any] = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = BertConfig(vocab_size=preset.vocabulary, **(small if setting.tiny else {}))
    model: Any = BertForMaskedLM(config).train()
    model.to(setting.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    ids, index, targets = inputs(setting, preset)
    labels = torch.full_like(ids, -100)
    labels.view(-1)[index] = targets

    def loss() -> torch.Tensor:
        found: torch.Tensor = model(input_ids=ids, labels=labels).loss
        return found

    with Count() as counter, setting.autocast("bf16"):
        loss().backward()
    row = both(setting, preset, model, optimizer, loss, kind)
    return row | {"flops": counter.products}


def both(
    setting: Setting, preset: Preset, model: nn.Module, optimizer: Any,
    loss: Callable[[], torch.Tensor], kind: str,
) -> dict[str, Any]:  # fmt: skip
    """Measure a step as calls and, under `graph`, in one CUDA graph."""
    if kind in ("whole", "overhead", "compiled"):
        loss = torch.compile(loss, dynamic=False, mode=MODES.get(kind))
    for group in optimizer.param_groups:
        group["capturable"] = setting.device == "cuda"

    def step() -> None:
        torch.compiler.cudagraph_mark_step_begin()
        optimizer.zero_grad(set_to_none=True)
        with setting.autocast(preset.precision):
            found = loss()
        found.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    for _ in range(0 if kind == "graph" else 4):
        step()
    row = dict[str, Any]()
    try:
        replay = setting.captured(step) if kind in ("graph", "blocks", "whole") else None
    except Exception as error:  # noqa: BLE001 - what a graph cannot hold is a result
        replay, row["graph"] = None, {"error": reason(error)}
    if replay is None or kind != "graph":
        row |= measured(setting, step)
    return row if replay is None else row | {"graph": measured(setting, replay)}


def inputs(setting: Setting, preset: Preset) -> tuple[torch.Tensor, ...]:
    """Random ids [b t], flat masked positions [n] and their targets [n]."""
    shape = preset.batch, preset.length
    ids = torch.randint(preset.vocabulary, shape)
    index = torch.randperm(ids.numel())[: round(MASKED * ids.numel())].sort().values
    return tuple(x.to(setting.device) for x in (ids, index, ids.flatten()[index]))


def flops(task: Any, preset: Preset) -> float | None:
    """FLOPs of the products of a step."""
    counted = count(task, preset.length)
    return counted and counted.training * preset.batch * preset.length
