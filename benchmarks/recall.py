"""Measure multi-query associative recall of every mixer, and the size of its state.

A sequence is 8 pairs of a key and a value, then 48 queries, each one of the keys; the model
predicts the value of the key (MQAR, Zoology, arXiv 2312.04927; here every later token is a query).
Keys of a sequence differ; the pairing is drawn anew for each sequence, so weights cannot store it.

The model has two blocks of width 64, four heads and no ffn, so only the mixer moves information
between tokens. Each mixer is trained twice: alone, and behind the short convolution of
`conv_attention` (SPEC M14), which combines each token with the two tokens before it. Mixers that
rotate queries and keys have rope, the others no position. AdamW, one learning rate for all, chosen
once; nothing else is tuned.

    python -m benchmarks recall              every mixer, hours
    python -m benchmarks recall gla kda      these, beside the rows of the results file
"""

from __future__ import annotations

import json
import math
import time
from collections import deque
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Int
from torch import Tensor

from benchmarks.parts import choices, composite, names, rotates, state_after
from chimera.config.compose import compose, plain
from chimera.config.settings import Model
from chimera.model.assemble import build_model
from chimera.model.language import LanguageModel

LENGTH, PAIRS, KEYS, VALUES = 64, 8, 16, 16
QUERIES = LENGTH - 2 * PAIRS
SHAPE = Model(
    dim=64, depth=2, heads=4, max_len=LENGTH, head_transform=False, tie_head=True, init_std=0.1
)
STEPS, BATCH, RATE, WARMUP, SEED = 4000, 16, 5e-3, 0.05, 0
#: Training ends early if the mean accuracy of the last OVER batches, all of them new, is ENOUGH.
ENOUGH, OVER = 0.999, 25
TESTS = 512
#: Results of earlier measurements.
FILE = Path(__file__).parent / "results" / "recall.json"
#: The mixer whose convolution the other mixers are put behind.
BEHIND = "conv_attention"


@dataclass(frozen=True)
class Trained:
    """Result of one mixer; `state` counts floating-point numbers per sequence, over all layers."""

    accuracy: float
    steps: int
    seconds: float
    state: int


def task(
    batch: int, generator: torch.Generator
) -> tuple[Int[Tensor, "b t"], Int[Tensor, "b queries"]]:
    """Draw sequences: token ids [b LENGTH], and the answers [b QUERIES] to the queries at the end.

    Ids of keys are below KEYS, ids of values from KEYS on.
    """
    keys = torch.rand(batch, KEYS, generator=generator).argsort(1)[:, :PAIRS]
    values = KEYS + torch.rand(batch, VALUES, generator=generator).argsort(1)[:, :PAIRS]
    queries = torch.randint(PAIRS, (batch, QUERIES), generator=generator)
    pairs = torch.stack([keys, values], -1).flatten(1)
    return torch.cat([pairs, keys.gather(1, queries)], 1), values.gather(1, queries)


def make(mixer: str, *, behind: bool = False) -> tuple[LanguageModel, str]:
    """Build the seeded model; return it and the name of its position.

    Args:
        mixer: name of the mixer.
        behind: put the mixer behind the convolution of `conv_attention`.
    """
    overrides = (BEHIND, f"mixer@mixer.inner={mixer}") if behind else (mixer, *_kinds(mixer))
    position = "rope" if rotates(SHAPE, choices(*overrides)) else "none"
    torch.manual_seed(SEED)
    factories = choices(*overrides, position=position)
    return build_model(SHAPE, factories, vocab_size=KEYS + VALUES, causal=True), position


def train(model: LanguageModel, steps: int = STEPS) -> list[float]:
    """Train for at most `steps` steps; return the loss of each step."""
    generator = torch.Generator().manual_seed(SEED + 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.95), fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: _rate(i, steps))
    recent: deque[float] = deque(maxlen=OVER)
    losses = []
    for _ in range(steps):
        ids, answers = task(BATCH, generator)
        prediction = model(ids, index=_queries(BATCH))
        loss = F.cross_entropy(prediction.logits[:, KEYS:], answers.flatten() - KEYS)
        optimizer.zero_grad()
        # The weight of auxiliary losses is that of the tasks in `conf/task`.
        (loss + 0.01 * sum(prediction.aux.values())).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        recent.append(_accuracy(prediction.logits, answers))
        if len(recent) == OVER and sum(recent) / OVER >= ENOUGH:
            break
    return losses


@torch.no_grad()
def evaluate(model: LanguageModel) -> float:
    """Share of right answers on TESTS sequences that training did not draw."""
    ids, answers = task(TESTS, torch.Generator().manual_seed(SEED + 2))
    return _accuracy(model.eval()(ids, index=_queries(TESTS)).logits, answers)


def state_size(model: LanguageModel) -> int:
    """Count of floating-point numbers in the decoding state after one sequence of LENGTH tokens."""
    ids = torch.zeros(1, LENGTH, dtype=torch.long)
    return sum(x.numel() for x in state_after(model, ids))


def run(mixer: str, *, behind: bool = False) -> tuple[Trained, str]:
    """Train and test one mixer; return the result and the name of its position."""
    start = time.perf_counter()
    model, position = make(mixer, behind=behind)
    steps = len(train(model))
    accuracy = evaluate(model)
    return Trained(accuracy, steps, time.perf_counter() - start, state_size(model)), position


def main(*chosen: str) -> dict[str, Any]:
    """Train mixers, print their rows, return them beside those of the results file.

    Args:
        chosen: mixers; none: all.
    """
    facts = {"rate": RATE, "steps": STEPS, "batch": BATCH, "queries": TESTS * QUERIES}
    kept = json.loads(FILE.read_text(encoding="utf-8")) if chosen else {"rows": {}}
    rows = {name: measure(name) for name in chosen or names()}
    return {**kept, **facts, "rows": {**kept["rows"], **rows}}


def measure(name: str) -> dict[str, Any]:
    """Row of one mixer: alone, and behind the convolution."""
    torch.set_num_threads(1)
    alone, position = run(name)
    row: dict[str, Any] = {"position": position, "alone": asdict(alone), "behind": None}
    # A pattern fixes its layers itself, and the convolution is not put behind itself.
    if not composite(name) and name != BEHIND:
        row["behind"] = asdict(run(name, behind=True)[0])
    print(name, row, flush=True)
    return row


def _kinds(mixer: str) -> tuple[str, ...]:
    """Override that gives the two layers of a pattern its first two kinds."""
    if not composite(mixer):
        return ()
    kinds = list(dict.fromkeys(plain(compose([f"mixer={mixer}"]))["mixer"]["cycle"]))
    return (f"mixer.cycle=[{','.join(kinds[:2])}]",)


def _rate(step: int, steps: int) -> float:
    """Factor of the learning rate: linear warm-up times a cosine to zero."""
    return min(1.0, (step + 1) / (WARMUP * steps)) * (1 + math.cos(math.pi * step / steps)) / 2


def _queries(batch: int) -> Int[Tensor, " n"]:
    return torch.arange(batch * LENGTH).view(batch, LENGTH)[:, 2 * PAIRS :].flatten()


def _accuracy(logits: Tensor, answers: Tensor) -> float:
    return float((logits[:, KEYS:].argmax(-1) + KEYS == answers.flatten()).float().mean())
