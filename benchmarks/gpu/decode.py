"""Milliseconds of a token of decoders of 12 layers, 768 wide, in bf16: plain passes, a CUDA graph.

A row also says whether a graph was recorded, and whether both gave the same tokens.
"""

from __future__ import annotations

import time
from typing import Any
from unittest.mock import patch

import torch

from benchmarks.gpu.job import Setting
from benchmarks.parts import choices
from chimera.config.settings import Model
from chimera.model import decode
from chimera.model.assemble import build_model

NAMES = ("retnet", "gated_delta", "mamba2")
PROMPT, TOKENS, VOCABULARY = 128, 64, 32_000


@torch.no_grad()
def main(setting: Setting, label: str) -> dict[str, Any]:
    """Measure the decoder of one mixer."""
    dim, depth, heads = (64, 2, 2) if setting.tiny else (768, 12, 12)
    torch.manual_seed(0)
    shape = Model(dim=dim, depth=depth, heads=heads, max_len=1024, head_transform=False)
    parts = choices(label, ffn="swiglu")
    model = build_model(shape, parts, vocab_size=VOCABULARY, causal=True).eval()
    model = model.to(setting.device)
    prompt = torch.randint(0, VOCABULARY, (PROMPT,)).tolist()
    run(setting, model, prompt, ())
    setting.ready()
    plain, ms, _ = run(setting, model, prompt, ())
    graphed, graph_ms, recorded = run(setting, model, prompt, decode.DEVICES)
    return {"ms": ms, "graph_ms": graph_ms, "recorded": recorded, "same": plain == graphed}


def run(
    setting: Setting, model: Any, prompt: list[int], devices: tuple[str, ...]
) -> tuple[list[int], float, bool]:
    """Tokens, median milliseconds of one, and whether a graph was recorded."""
    made: list[int] = []
    seconds = []
    with (
        patch.object(decode, "DEVICES", devices),
        patch.object(decode, "recorded", wraps=decode.recorded) as recorded,
        setting.autocast("bf16"),
    ):
        tokens = decode.decode(
            model, [prompt], lambda logits: logits.argmax(-1), max_new=TOKENS, pad_id=0, end_id=None
        )
        began = time.perf_counter()
        for token in tokens:
            made.append(int(token))  # waits for the device
            seconds.append(time.perf_counter() - began)
            began = time.perf_counter()
    return made, 1e3 * sorted(seconds)[TOKENS // 2], recorded.called
