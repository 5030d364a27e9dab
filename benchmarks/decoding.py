"""Measure SAIDL's decoder (6 layers of width 256, 8 heads): decoding, caches, training speed.

1. Seconds per generated token after 256 … 8192 tokens of context, for every mixer. They are
   constant for mixers with a state of constant size.
2. Bytes of keys and values after n tokens against the formula of 2·n_kv·d_k·n floats per layer
   (SAIDL 2.5), and bytes of their buffers.
3. Tokens/s of training steps at 256 … 4096 tokens, batch 1 (SAIDL Table 16), as ratios to standard
   attention, beside the paper's. The paper's «standard» stores the matrix of scores, ours does not;
   «scores written down» stores it, and is measured where memory allows. The vocabulary has two
   entries, because a head of 50,257 entries costs more than all six layers. The table
   saidl/hardware measures whole models.
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
from chimera.task.cost import step_and_forward

DIM, DEPTH, HEADS = 256, 6, 8
CONTEXTS, LENGTHS = (256, 1024, 4096, 8192), (256, 1024, 4096)
TOKENS, ROUNDS, THREADS = 8, 5, 2
#: The paper's six variants, the banded window (the paper's masks the scores), attention-free ones.
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
    """Run the three measurements and print them; return the contents of the results file."""
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", THREADS)))
    torch.manual_seed(0)
    return {
        "per_token": per_token([name for name in names() if not composite(name)]),
        "cache": caches(),
        "training": training(),
    }


def decoder(mixer: str, *overrides: str, vocab_size: int, max_len: int) -> LanguageModel:
    """Build a decoder of SAIDL's shape with this mixer."""
    shape = Model(
        dim=DIM, depth=DEPTH, heads=HEADS, max_len=max_len, head_transform=False, init_std=0.02
    )
    factories = choices(mixer, *overrides, ffn="mlp")
    return build_model(shape, factories, vocab_size=vocab_size, causal=True)


@torch.no_grad()
def per_token(mixers: list[str], contexts: tuple[int, ...] = CONTEXTS) -> dict[str, Any]:
    """Measure median seconds per token at each context, and the ratio of the last to the first."""
    print("ms per generated token; last column: longest / shortest context")
    rows: dict[str, Any] = {}
    for name in mixers:
        model = decoder(name, vocab_size=64, max_len=2 * contexts[-1]).eval()
        decoders = {str(n): _continuation(model, n) for n in contexts}
        medians = turns(decoders, rounds=ROUNDS, warmup=1)
        seconds = {n: medians[str(n)] / TOKENS for n in contexts}
        ratio = seconds[contexts[-1]] / seconds[contexts[0]]
        rows[name] = {"seconds": seconds, "ratio": ratio}
        columns = "".join(f"{1e3 * s:9.2f}" for s in seconds.values())
        print(f"{name:<18}{columns}{ratio:9.2f} ×", flush=True)
    return rows


def _continuation(model: LanguageModel, context: int) -> Callable[[], None]:
    """A function that generates TOKENS more tokens at each call, first after `context` tokens."""
    token = torch.zeros(1, 1, dtype=torch.long)
    state = model(torch.randint(64, (1, context)), state=model.init_state(1), index=token[0]).state

    @torch.no_grad()
    def run() -> None:
        nonlocal state  # to continue one state a second time would copy it
        for _ in range(TOKENS):
            state = model(token, state=state).state

    return run


@torch.no_grad()
def caches(tokens: int = 1000) -> dict[str, Any]:
    """Measure bytes of keys and values, check them against the formula; measure their buffers."""
    print(f"\nbytes of keys and values after {tokens} tokens: formula, measured, of the buffers")
    rows = {}
    for name, kv_heads in (("attention", HEADS), ("gqa", HEADS // 4), ("mqa", 1)):
        model = decoder(name, vocab_size=64, max_len=tokens).eval()
        ids = torch.randint(64, (1, tokens))
        state = model(ids, state=model.init_state(1), index=torch.zeros(1, dtype=torch.long)).state
        assert state is not None
        layers = [c for c in state.slots if isinstance(c, KVCache)]
        row = {
            "formula": 2 * kv_heads * (DIM // HEADS) * tokens * DEPTH * 4,
            "measured": sum(c.k.nbytes + c.v.nbytes for c in layers),
            "buffers": sum(
                c.k.untyped_storage().nbytes() + c.v.untyped_storage().nbytes() for c in layers
            ),
        }
        assert row["measured"] == row["formula"]
        rows[name] = row
        print(f"{name:<12}" + "".join(f"{n:14,}" for n in row.values()))
    return rows


def training(lengths: tuple[int, ...] = LENGTHS, entries: int = 2) -> dict[str, Any]:
    """Measure tokens/s of training steps by variant and length.

    Args:
        lengths: numbers of tokens.
        entries: size of the vocabulary.
    """
    rows: dict[str, Any] = {}
    for length in lengths:
        steps = {}
        for name, (mixer, *overrides) in VARIANTS.items():
            model = decoder(mixer, *overrides, vocab_size=entries, max_len=length)
            steps[name], _ = step_and_forward(model, length, entries, 1 << 25)
        if _free_memory() > 8 * 4 * HEADS * DEPTH * length**2:
            steps[WRITTEN] = _with_stored_scores(steps["standard"])
        for name, seconds in turns(steps, rounds=3, warmup=1).items():
            rows.setdefault(name, {})[length] = length / seconds
    _show(rows, lengths)
    return rows


def _with_stored_scores(step: Callable[[], None]) -> Callable[[], None]:
    def run() -> None:
        with sdpa_kernel(SDPBackend.MATH):
            step()

    return run


def _free_memory() -> int:
    """Free memory of the machine in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")


def _show(rows: dict[str, dict[int, float]], lengths: tuple[int, ...]) -> None:
    last = lengths[-1]
    column = f"cost/tokens_per_second@{last}"
    paper = {p.row: p.value for p in load("saidl/hardware").published if p.column == column}
    print(f"\ntraining tokens/s at {', '.join(map(str, lengths))} tokens; ratios at {last} tokens:")
    print(f"× standard, × {WRITTEN}, × standard in the paper")
    for name, speeds in rows.items():
        columns = "".join(f"{speeds.get(n, float('nan')):11,.0f}" for n in lengths)
        ratios = [
            f"{speeds[last] / rows[other][last]:7.2f}" if last in rows.get(other, {}) else "      –"
            for other in ("standard", WRITTEN)
            if last in speeds
        ]
        published = f"{paper[name] / paper['standard']:7.1f}" if name in paper else ""
        print(f"{name:<22}{columns} {' '.join(ratios)} {published}", flush=True)
