"""Time and cache of LiZAttention against the length of the text: the base model and four grafts.

A Llama of two layers of width 64 (two query heads of 32, one key-value head), random weights,
float32, one thread. Prefill is one pass over the text, the seconds of a token are the median of 16
more, the bytes are those of everything that the cache then holds. Seconds are of the processor, not
of the clock, so that other work on the machine counts little. × is the factor of the last doubling
of the length: 2 is linear, 4 quadratic, 1 constant.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from benchmarks.timing import show
from chimera import graft
from chimera.report.formatting import number

CONTEXTS = (1024, 2048, 4096, 8192, 16384, 32768)
TOKENS, WINDOW, VOCABULARY = 16, 256, 256
#: Options of `graft.liza` by name; None is the base model.
MODELS: dict[str, dict[str, Any] | None] = {
    "base": None,
    "alpha_0": {"mag_weight": 0.0},
    "alpha_half": {"mag_weight": 0.5},
    "alpha_1": {"mag_weight": 1.0},
    "max_cache": {"mag_weight": 0.5, "max_cache": WINDOW},
}


def main() -> dict[str, Any]:
    """Measure, print, return the results."""
    torch.set_num_threads(1)
    found: dict[str, dict[str, list[float]]] = {}
    for name, options in MODELS.items():
        rows = [measured(built(options), n) for n in CONTEXTS]
        found[name] = {key: [row[key] for row in rows] for key in rows[0]}
        show(dict(zip(map(str, CONTEXTS), rows, strict=True)), name)
    result = {"contexts": CONTEXTS, "window": WINDOW, "models": found}
    print(*page(result), sep="\n")
    return result


def page(result: dict[str, Any]) -> list[str]:
    """Lines of the table in docs/guide/tptt.md: some lengths, and × of the last doubling."""
    places = (0, len(result["contexts"]) // 2, len(result["contexts"]) - 1)
    shown = ", ".join(f"{result['contexts'][i] // 1024} k" for i in places)
    units = {"prefill_s": ("prefill, s", 1), "token_s": ("ms a token", 1e3)}
    units |= {"cache_bytes": ("cache, kB", 1e-3)}
    heads = [cell for name, _ in units.values() for cell in (f"{name}: {shown}", "×")]
    lines = [["model", *heads], ["---"] * (1 + len(heads))]
    for model, columns in result["models"].items():
        line = [model]
        for key, (_, factor) in units.items():
            line.append(", ".join(number(columns[key][i] * factor) for i in places))
            line.append(f"{columns[key][-1] / columns[key][-2]:.1f}")
        lines.append(line)
    return [f"| {' | '.join(cells)} |" for cells in lines]


def built(options: dict[str, Any] | None) -> nn.Module:
    """The base model, or a graft of it without LoRA."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
            num_attention_heads=2, num_key_value_heads=1,
            max_position_embeddings=2 * CONTEXTS[-1],
        )
    )  # fmt: skip
    return (model if options is None else graft.liza(model, lora=None, **options)).eval()


@torch.no_grad()
def measured(model: nn.Module, context: int) -> dict[str, float]:
    """Seconds of the prefill and of a token after it, bytes of the cache."""
    from transformers import DynamicCache

    ids = torch.randint(
        VOCABULARY, (1, context + TOKENS), generator=torch.Generator().manual_seed(0)
    )
    parts = [ids[:, :context], *ids[:, context:].split(1, 1)]
    rounds = []
    for _ in range(3 if context <= 8192 else 1):
        cache = DynamicCache()
        seconds = []
        for part in parts:
            start = time.process_time()
            model(part, past_key_values=cache, use_cache=True, logits_to_keep=1)
            seconds.append(time.process_time() - start)
        rounds.append((seconds[0], statistics.median(seconds[1:])))
    prefill, token = map(statistics.median, zip(*rounds, strict=True))
    return {"prefill_s": prefill, "token_s": token, "cache_bytes": held(cache.layers)}


def held(layers: Sequence[Any]) -> int:
    """Bytes of all tensors of the layers of a cache."""
    tensors = {id(x): x for layer in layers for x in tree_leaves(vars(layer))}
    return sum(x.nbytes for x in tensors.values() if isinstance(x, Tensor))
