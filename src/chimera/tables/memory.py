"""Estimate the memory of training TITAN and a Transformer of its shape (TITAN abstract, 9.4).

    chimera table titan/memory [to=<folder>]

The abstract trains a width of 2048 on a card of 24 GB, «where equivalent standard transformers
would exceed memory constraints»; 9.4 has a batch of 4 × 512 tokens with gradient checkpointing
there. The Transformer has the same width, 24 layers as TITAN's 12 × 2, and d_ff = 4d. All numbers
are those of `chimera show` (`train.model_summary.memory`).

The second part trains small models on the CPU and holds the estimate against what torch's allocator
gave to the second step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from chimera.config.compose import compose, plain
from chimera.model.assemble import unfilled
from chimera.ops.live_bytes import allocated_bytes
from chimera.optim.optimizer import build, groups
from chimera.tables import Grid, place, publish
from chimera.task.base import Task
from chimera.task.memory import autocast_of, nbytes, passes_bytes, weight_bytes
from chimera.train.build import build_task
from chimera.train.model_summary import memory, update_of, vocabulary_of

TABLE = "titan/memory"
#: Bytes of the card of the claim.
CARD = 24e9
MODELS = {
    "TITAN, d = 1024, 4 experts": ["preset=titan_bert_ultra"],
    "Transformer, d = 1024": ["preset=titan_baseline", "model.dim=1024"],
    "TITAN, d = 2048, 8 experts": ["preset=titan_bert_ultra_2048"],
    "Transformer, d = 2048": ["preset=titan_baseline", "model.dim=2048"],
}
LIKE_TITAN = ["model.depth=24", "model.heads=16"]
OPTIMISERS = {"AdamW": "optim=adamw", "8-bit AdamW": "optim=adamw8bit"}
CHECKPOINTING = {"recomputed": True, "kept": False}
BATCHES = (2, 4)
#: Both models at a size that a CPU trains in a second.
SMALL = [
    *("model.dim=128", "model.heads=4", "model.max_len=128", "tokenizer.vocab_size=2000"),
    *("data.batch_size=4", "precision=fp32", "trainer.accelerator=cpu"),
    "trainer.accumulate_grad_batches=1",
]
SMALL_MODELS = {
    "TITAN": ["preset=titan_bert_ultra", "mixer.members.retnet.heads=2", "model.depth=6"],
    "Transformer": ["preset=titan_baseline", "model.depth=12"],
}


def composed(*overrides: str, checkpointing: bool) -> dict[str, Any]:
    """A configuration; the data are of no account, and those of the preset are not here."""
    recomputed = f"model.gradient_checkpointing={str(checkpointing).lower()}"
    return plain(compose(["data=pydocs", *overrides, recomputed]))


def shape(config: dict[str, Any]) -> Task:
    """The task of a configuration, without numbers."""
    with torch.device("meta"), unfilled():
        return build_task(config, vocabulary_of(config))


def estimates(words: Sequence[str], batch: int, *, checkpointing: bool) -> dict[str, Any]:
    """What `chimera show` says of a step's memory, by optimiser."""
    found = {}
    passes = None
    for name, optimiser in OPTIMISERS.items():
        more = (optimiser, f"data.batch_size={batch}")
        config = composed(*words, *more, checkpointing=checkpointing)
        task = shape(config)
        length = config["model"]["max_len"]
        if passes is None:
            kept = config["trainer"]["accumulate_grad_batches"] > 1
            passes = passes_bytes(task, batch, length, config["precision"], kept=kept)
        found[name] = memory(config, task, length, passes)
    return found


def at_full_size() -> Grid:
    """A line for each model, batch and way to keep activations."""
    head = ["model", "activations", "batch", "weights", "gradients", "more at the peak, AdamW"]
    for name in OPTIMISERS:
        head += [f"state of {name}", f"total with {name}", "24 GB"]
    body = []
    for model, words in MODELS.items():
        same = LIKE_TITAN if model.startswith("Transformer") else []
        for kept, checkpointing in CHECKPOINTING.items():
            for batch in BATCHES:
                found = estimates([*words, *same], batch, checkpointing=checkpointing)
                body.append([model, kept, str(batch), *_cells(found)])
    return Grid("memory", "GB of a training step, fp16, 512 tokens", head, body)


def _cells(found: dict[str, Any]) -> list[str]:
    first = next(iter(found.values()))
    cells = [_gb(first[part]) for part in ("weights", "gradients", "activations")]
    for needed in found.values():
        fits = "fits" if needed["total"] <= CARD else "exceeds"
        cells += [_gb(needed["optimiser"]), _gb(needed["total"]), fits]
    return cells


def _gb(size: float) -> str:
    return f"{size / 1e9:.2f}"


def against_steps() -> Grid:
    """The estimate beside the peak of a real step, at a small size."""
    body = []
    for model, words in SMALL_MODELS.items():
        for optimiser, choice in OPTIMISERS.items():
            for kept, checkpointing in CHECKPOINTING.items():
                config = composed(*words, *SMALL, choice, checkpointing=checkpointing)
                length = config["model"]["max_len"]
                estimate = memory(config, shape(config), length)["total"]
                peak = measured(config, length)
                cells = [
                    f"{estimate / 1e6:.2f}",
                    f"{peak / 1e6:.2f}",
                    f"{estimate / peak - 1:+.1%}",
                ]
                body.append([model, optimiser, kept, *cells])
    head = ["model", "optimiser", "activations", "estimate", "measured", "difference"]
    return Grid("measured", "MB of a training step at a small size, on a CPU", head, body)


def measured(config: dict[str, Any], length: int) -> float:
    """Bytes of weights, optimiser's state and the peak of the second step, of real tensors.

    An 8-bit update has temporaries here that its compiled one, which a run has, does not make.
    """
    torch.manual_seed(0)
    entries = vocabulary_of(config)
    task = build_task(config, entries).train()
    batch = task.training_batch(config["data"]["batch_size"], length, torch.device("cpu"))
    batch["ids"] = torch.randint(entries, batch["ids"].shape)
    fused = update_of(config) == "fused"
    optimizer, _ = build(task.optim, groups(task.model, task.optim), 10, fused=fused)

    def step() -> None:
        with autocast_of(config["precision"]):
            out: Any = task.training_step(batch, 0)
        out["loss"].backward()
        with torch.compiler.set_stance("force_eager"):  # as the estimate
            optimizer.step()
        optimizer.zero_grad()

    step()  # makes the optimiser's state
    values = [v for of in optimizer.state.values() for v in of.values()]
    state = sum(nbytes(v) for v in values if isinstance(v, torch.Tensor))
    return weight_bytes(task) + state + allocated_bytes(step)


def main(arguments: Sequence[str]) -> None:
    """Print and write both tables."""
    folder = place(TABLE, arguments)
    publish(TABLE, [at_full_size(), against_steps()], {}, folder)
