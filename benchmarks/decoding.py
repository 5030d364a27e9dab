"""SAIDL's decoder, 6 × 256 in 8 heads: what a token costs, what a cache holds, Table 16's speeds.

1. Seconds per generated token after 256 … 8192 tokens of context, every mixer: flat where a state
   of constant size is carried.
2. Bytes of keys and values after n tokens against 2·n_kv·d_k·n floats a layer (SAIDL 2.5), and what
   the buffers they lie in add.
3. Tokens/s of training steps at 256 … 4096 tokens, batch 1 (Table 16), as ratios to standard
   attention, beside the paper's. Its «standard» writes the scores down, ours does not; so does
   «scores written down», which is measured where memory allows. Of the body: the head has two
   entries, as one of 50,257 costs more than all six layers; whole models are what the table
   saidl/hardware measures.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.parts import choices, composite, names
from benchmarks.timing import turns
from chimera.config.settings import Model
from chimera.config.tables import load
from chimera.model.assemble import build_model
from chimera.model.language import LanguageModel
from chimera.ops.attention import KVCache
from chimera.task.cost import work

DIM, DEPTH, HEADS = 256, 6, 8
CONTEXTS, LENGTHS = (256, 1024, 4096, 8192), (256, 1024, 4096)
TOKENS, ROUNDS, THREADS = 8, 5, 2
#: Beside the six of the paper: our banded window (theirs masks) and attention-free transformers.
VARIANTS = {
    "standard": ["attention"],
    "sliding_window": ["sliding_window", "mixer.form=dense"],
    "linear": ["linear"],
    "sparse_block": ["sparse_block"],
    "gqa": ["gqa"],
    "mqa": ["mqa"],
    "sliding_window_banded": ["sliding_window"],
    "aft_local": ["aft_local"],
    "aft_simple": ["aft_simple"],
}
WRITTEN = "scores written down"


def main() -> dict[str, Any]:
    """Measure and print all three."""
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", THREADS)))
    torch.manual_seed(0)
    return {
        "per_token": per_token([name for name in names() if not composite(name)]),
        "cache": caches(),
        "training": training(),
    }


def decoder(mixer: str, *more: str, vocab_size: int, max_len: int) -> LanguageModel:
    """SAIDL's shape around this mixer."""
    shape = Model(
        dim=DIM, depth=DEPTH, heads=HEADS, max_len=max_len, head_transform=False, init_std=0.02
    )
    chosen = choices(mixer, *more, ffn="mlp")
    return build_model(shape, chosen, vocab_size=vocab_size, causal=True)


@torch.no_grad()
def per_token(mixers: list[str], contexts: tuple[int, ...] = CONTEXTS) -> dict[str, Any]:
    """Median seconds of a token at each context, and the ratio of the last to the first."""
    print("ms per generated token; last column: longest / shortest context")
    rows: dict[str, Any] = {}
    for name in mixers:
        model = decoder(name, vocab_size=64, max_len=2 * contexts[-1]).eval()
        rivals = {str(n): _continuation(model, n) for n in contexts}
        taken = turns(rivals, rounds=ROUNDS, warmup=1)
        seconds = {n: taken[str(n)] / TOKENS for n in contexts}
        ratio = seconds[contexts[-1]] / seconds[contexts[0]]
        rows[name] = {"seconds": seconds, "ratio": ratio}
        shown = "".join(f"{1e3 * s:9.2f}" for s in seconds.values())
        print(f"{name:<18}{shown}{ratio:9.2f} ×", flush=True)
    return rows


def _continuation(model: LanguageModel, context: int) -> Callable[[], None]:
    """Generates a few tokens more at each call, the first one after `context` tokens."""
    token = torch.zeros(1, 1, dtype=torch.long)
    state = model(torch.randint(64, (1, context)), state=model.init_state(1), index=token[0]).state

    @torch.no_grad()
    def run() -> None:
        nonlocal state  # one that is continued a second time would be copied
        for _ in range(TOKENS):
            state = model(token, state=state).state

    return run


@torch.no_grad()
def caches(tokens: int = 1000) -> dict[str, Any]:
    """Measured bytes of keys and values against the formula, and those of their buffers."""
    print(f"\nkeys and values after {tokens} tokens, bytes: formula, measured, with room to grow")
    rows = {}
    for name, kv_heads in (("attention", HEADS), ("gqa", HEADS // 4), ("mqa", 1)):
        model = decoder(name, vocab_size=64, max_len=tokens).eval()
        ids = torch.randint(64, (1, tokens))
        state = model(ids, state=model.init_state(1), index=torch.zeros(1, dtype=torch.long)).state
        assert state is not None
        kept = [c for c in state.slots if isinstance(c, KVCache)]
        row = {
            "formula": 2 * kv_heads * (DIM // HEADS) * tokens * DEPTH * 4,
            "measured": sum(c.k.nbytes + c.v.nbytes for c in kept),
            "buffers": sum(
                c.k.untyped_storage().nbytes() + c.v.untyped_storage().nbytes() for c in kept
            ),
        }
        assert row["measured"] == row["formula"]
        rows[name] = row
        print(f"{name:<12}" + "".join(f"{n:14,}" for n in row.values()))
    return rows


def training(lengths: tuple[int, ...] = LENGTHS, entries: int = 2) -> dict[str, Any]:
    """Tokens/s of training steps by variant and length."""
    rows: dict[str, Any] = {}
    for length in lengths:
        rivals = {}
        for name, (mixer, *more) in VARIANTS.items():
            model = decoder(mixer, *more, vocab_size=entries, max_len=length)
            rivals[name], _ = work(model, length, entries, 1 << 25)
        if _memory() > 8 * 4 * HEADS * DEPTH * length**2:
            rivals[WRITTEN] = _written(rivals["standard"])
        for name, seconds in turns(rivals, rounds=3, warmup=1).items():
            rows.setdefault(name, {})[length] = length / seconds
    _show(rows, lengths)
    return rows


def _written(step: Callable[[], None]) -> Callable[[], None]:
    def run() -> None:
        with sdpa_kernel(SDPBackend.MATH):
            step()

    return run


def _memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")


def _show(rows: dict[str, dict[int, float]], lengths: tuple[int, ...]) -> None:
    last = lengths[-1]
    column = f"cost/tokens_per_second@{last}"
    paper = {p.row: p.value for p in load("saidl/hardware").published if p.column == column}
    print(f"\ntraining tokens/s at {', '.join(map(str, lengths))} tokens; at {last} × standard,")
    print(f"× {WRITTEN}, and × standard in the paper")
    for name, speeds in rows.items():
        shown = "".join(f"{speeds.get(n, float('nan')):11,.0f}" for n in lengths)
        ratios = [
            f"{speeds[last] / rows[other][last]:7.2f}" if last in rows.get(other, {}) else "      –"
            for other in ("standard", WRITTEN)
            if last in speeds
        ]
        theirs = f"{paper[name] / paper['standard']:7.1f}" if name in paper else ""
        print(f"{name:<22}{shown} {' '.join(ratios)} {theirs}", flush=True)
