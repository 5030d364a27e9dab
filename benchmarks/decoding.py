"""Seconds per generated token of every mixer after a short and a long context.

SAIDL's decoder (6 layers of width 256, 8 heads), 256 … 8192 tokens of context. The seconds are
constant for mixers with a state of constant size. The bytes of states are those of
`benchmarks.forms`; the table saidl/hardware has the speed of training.
"""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.parts import choices, composite, continuation, names
from benchmarks.timing import set_threads, turns
from chimera.config.settings import Model
from chimera.model.assemble import build_model

DIM, DEPTH, HEADS = 256, 6, 8
CONTEXTS = (256, 1024, 4096, 8192)
TOKENS, ROUNDS = 8, 5


def main() -> dict[str, Any]:
    """Measure all mixers that are no pattern of others, print them, return the results."""
    set_threads()
    torch.manual_seed(0)
    return {"per_token": per_token([name for name in names() if not composite(name)])}


@torch.no_grad()
def per_token(mixers: list[str], contexts: tuple[int, ...] = CONTEXTS) -> dict[str, Any]:
    """Measure median seconds per token at each context, and the ratio of the last to the first."""
    shape = Model(
        dim=DIM, depth=DEPTH, heads=HEADS, max_len=2 * contexts[-1], head_transform=False,
        init_std=0.02,
    )  # fmt: skip
    rows: dict[str, Any] = {}
    for name in mixers:
        model = build_model(shape, choices(name, ffn="mlp"), vocab_size=64, causal=True).eval()
        decoders = {str(n): continuation(model, TOKENS, n) for n in contexts}
        medians = turns(decoders, rounds=ROUNDS, warmup=1)
        seconds = {n: medians[str(n)] / TOKENS for n in contexts}
        ratio = seconds[contexts[-1]] / seconds[contexts[0]]
        rows[name] = {"seconds": seconds, "ratio": ratio}
        print(name, rows[name], flush=True)
    return rows
