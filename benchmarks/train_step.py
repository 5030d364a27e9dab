"""Time a training step of our encoder against Hugging Face's `BertForMaskedLM` of the same shape.

Width 256, 6 layers, 8 heads, ff 1024, vocabulary 30522, batch 16 × 128, 2 threads, no dropout, the
same fused AdamW; in fp32, and under bf16 autocast where the CPU multiplies bf16. `BertForMaskedLM`
computes logits at all positions, our encoder only at masked ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.parts import update
from benchmarks.timing import has, multiplies_bf16, show, turns
from chimera.config.compose import compose, plain
from chimera.config.settings import Model
from chimera.model.assemble import build_model, choose

VOCAB, BATCH, LENGTH = 30522, 16, 128
MAIN = ["mixer=retnet", "norm=qdyt", "quant=bitnet158"]
#: Overrides of our encoders: with BERT's components and with those of the main job.
ENCODERS = {
    "chimera, BERT's parts": ["mixer=attention", "norm=layernorm", "quant=none", "ffn=mlp",
                              "position=learned", "mixer.bias=true", "ffn.bias=true"],
    "chimera, retnet": ["mixer=retnet", "norm=layernorm", "quant=none", "ffn=mlp"],
    "chimera, main job": MAIN,
    "chimera, main job, int8": [*MAIN, "quant.compute=int8"],
}  # fmt: skip
THEIRS = "BertForMaskedLM"
#: Instruction sets that decide the speed of bf16 and int8.
FEATURES = ("avx512_bf16", "amx_bf16", "avx512_vnni", "amx_int8")


def main() -> dict[str, Any]:
    """Measure and print tokens/s, and the ratios to `BertForMaskedLM`."""
    torch.set_num_threads(2)
    torch.manual_seed(0)
    ids = torch.randint(VOCAB, (BATCH, LENGTH))
    index = torch.randperm(BATCH * LENGTH)[: round(0.15 * BATCH * LENGTH)].sort().values
    features = [name for name in FEATURES if has(name)]
    shape = Model(dim=256, depth=6, heads=8, max_len=LENGTH)
    rivals: dict[str, Callable[[], None]] = {}
    counts: dict[str, int] = {}
    for precision in ("fp32", *["bf16"] * multiplies_bf16()):
        half = precision == "bf16"
        rivals[f"{THEIRS}, {precision}"] = _bert_step(ids, index, half=half)
        for name, overrides in ENCODERS.items():
            choices = choose(plain(compose(overrides)))
            model = build_model(shape, choices, vocab_size=VOCAB, causal=False)
            counts[f"{name}, {precision}"] = sum(p.numel() for p in model.parameters())
            rivals[f"{name}, {precision}"] = _step(model, ids, index, half=half)
    seconds = turns(rivals)
    rows = {
        name: {
            "tokens_per_second": BATCH * LENGTH / median,
            "times_theirs": seconds[f"{THEIRS}, {name.rpartition(', ')[2]}"] / median,
            "times_theirs_in_fp32": seconds[f"{THEIRS}, fp32"] / median,
            "parameters": counts.get(name),
        }
        for name, median in seconds.items()
    }
    show(rows, "a training step")
    return {
        "rows": rows, "batch": BATCH, "length": LENGTH, "vocabulary": VOCAB, "features": features,
    }  # fmt: skip


def _step(model: Any, ids: Tensor, index: Tensor, *, half: bool) -> Callable[[], None]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    targets = ids.flatten()[index]

    def loss() -> Tensor:
        out = model(ids, index=index, targets=targets)
        total: Tensor = out.loss + sum(out.aux.values())
        return total

    return update(optimizer, loss, half=half)


def _bert_step(ids: Tensor, index: Tensor, *, half: bool) -> Callable[[], None]:
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        vocab_size=VOCAB, hidden_size=256, num_hidden_layers=6, num_attention_heads=8,
        intermediate_size=1024, max_position_embeddings=LENGTH,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    model: nn.Module = BertForMaskedLM(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    labels = torch.full_like(ids, -100)
    labels.view(-1)[index] = ids.flatten()[index]

    def loss() -> Tensor:
        found: Tensor = model(input_ids=ids, labels=labels).loss
        return found

    return update(optimizer, loss, half=half)
