"""Multi-query associative recall, every mixer: what it recalls beside what it keeps.

A sequence is 8 pairs of a key and a value, then 48 queries, each one of the keys: the model says
the value that goes with it (MQAR, Zoology, arXiv 2312.04927; here every later token is a query).
Keys of a sequence differ; pairing is drawn anew for each, so weights can hold no answer.

The model has two blocks of width 64, four heads, no ffn: all that moves between tokens is the
mixer's. Each is trained twice, alone and behind the short convolution of `conv_attention` (SPEC
M14), which hands it each token with the two before it. Whoever rotates gets rope, the others no
position. AdamW, one learning rate for all, chosen once; nothing else is tuned.
"""

from __future__ import annotations

import math
import time
from collections import deque
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Int
from torch import Tensor

from benchmarks.mqar_report import write
from benchmarks.parts import choices, composite, names, rotates
from chimera.config.settings import Model
from chimera.model.assemble import build_model
from chimera.model.language import LanguageModel

LENGTH, PAIRS, KEYS, VALUES = 64, 8, 16, 16
QUERIES = LENGTH - 2 * PAIRS
SHAPE = Model(
    dim=64, depth=2, heads=4, max_len=LENGTH, head_transform=False, tie_head=True, init_std=0.1
)
STEPS, BATCH, RATE, WARMUP, SEED = 4000, 16, 5e-3, 0.05, 0
#: Training ends early once this many batches, none of them seen before, are answered this well.
ENOUGH, OVER = 0.999, 25
TESTS = 512
BEHIND = "conv_attention"


@dataclass(frozen=True)
class Trained:
    """One mixer after training. `state`: floating-point numbers kept per sequence, all layers."""

    accuracy: float
    steps: int
    seconds: float
    state: int


def task(
    batch: int, generator: torch.Generator
) -> tuple[Int[Tensor, "b t"], Int[Tensor, "b queries"]]:
    """Token ids, keys below KEYS and values from there on, and the answers to the queries."""
    keys = torch.rand(batch, KEYS, generator=generator).argsort(1)[:, :PAIRS]
    values = KEYS + torch.rand(batch, VALUES, generator=generator).argsort(1)[:, :PAIRS]
    asked = torch.randint(PAIRS, (batch, QUERIES), generator=generator)
    pairs = torch.stack([keys, values], -1).flatten(1)
    return torch.cat([pairs, keys.gather(1, asked)], 1), values.gather(1, asked)


def make(mixer: str, *, behind: bool = False) -> tuple[LanguageModel, str]:
    """The model, seeded, and the position it has."""
    words = (BEHIND, f"mixer@mixer.inner={mixer}") if behind else (mixer,)
    position = "rope" if rotates(SHAPE, choices(*words)) else "none"
    torch.manual_seed(SEED)
    chosen = choices(*words, position=position)
    return build_model(SHAPE, chosen, vocab_size=KEYS + VALUES, causal=True), position


def train(model: LanguageModel, steps: int = STEPS) -> list[float]:
    """The loss of each step taken."""
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
        # Auxiliary losses weigh what the tasks of `conf/task` have them weigh.
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
    """Share of right answers on sequences that training did not draw."""
    ids, answers = task(TESTS, torch.Generator().manual_seed(SEED + 2))
    return _accuracy(model.eval()(ids, index=_queries(TESTS)).logits, answers)


@torch.no_grad()
def state_size(model: LanguageModel) -> int:
    """Floating-point numbers that one sequence of LENGTH tokens leaves behind to continue from."""
    ids = torch.zeros(1, LENGTH, dtype=torch.long)
    state = model.eval()(ids, state=model.init_state(1)).state
    assert state is not None
    return _count(state.slots)


def run(mixer: str, *, behind: bool = False) -> tuple[Trained, str]:
    """Train and test one mixer; the position it had."""
    start = time.perf_counter()
    model, position = make(mixer, behind=behind)
    steps = len(train(model))
    accuracy = evaluate(model)
    return Trained(accuracy, steps, time.perf_counter() - start, state_size(model)), position


def main() -> dict[str, Any]:
    """Train all, print the table, write `docs/mqar.md`."""
    torch.set_num_threads(1)
    rows: dict[str, dict[str, Any]] = {}
    for name in names():
        alone, position = run(name)
        rows[name] = {"position": position, "alone": asdict(alone), "behind": None}
        # A pattern already says what precedes what, and the convolution needs none before it.
        if not composite(name) and name != BEHIND:
            rows[name]["behind"] = asdict(run(name, behind=True)[0])
        print(name, rows[name], flush=True)
    return write(rows, rate=RATE, steps=STEPS, batch=BATCH, queries=TESTS * QUERIES)


def _rate(step: int, steps: int) -> float:
    """Linear warm-up on a cosine to zero."""
    return min(1.0, (step + 1) / (WARMUP * steps)) * (1 + math.cos(math.pi * step / steps)) / 2


def _queries(batch: int) -> Int[Tensor, " n"]:
    return torch.arange(batch * LENGTH).view(batch, LENGTH)[:, 2 * PAIRS :].flatten()


def _accuracy(logits: Tensor, answers: Tensor) -> float:
    return float((logits[:, KEYS:].argmax(-1) + KEYS == answers.flatten()).float().mean())


def _count(state: Any) -> int:
    if isinstance(state, Tensor):
        return state.numel() if state.is_floating_point() else 0
    return sum(_count(part) for part in state or ())
