"""Time a training step of our encoder against Hugging Face's `BertForMaskedLM` of the same shape.

Width 256, 6 layers, 8 heads, ff 1024, vocabulary 30522, batch 16 × 128, fp32, 2 threads, no
dropout, the same fused AdamW. `BertForMaskedLM` computes logits at all positions, our encoder only
at masked ones.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.timing import turns
from chimera.config.compose import compose, plain
from chimera.config.settings import Model
from chimera.model.assemble import build_model, choose

VOCAB, BATCH, LENGTH = 30522, 16, 128
#: Overrides of our encoders: with BERT's components and with those of the main job.
ENCODERS = {
    "chimera, BERT's parts": ["mixer=attention", "norm=layernorm", "quant=none", "ffn=mlp",
                              "position=learned", "mixer.bias=true", "ffn.bias=true"],
    "chimera, retnet": ["mixer=retnet", "norm=layernorm", "quant=none", "ffn=mlp"],
    "chimera, main job": ["mixer=retnet", "norm=qdyt", "quant=bitnet158"],
}  # fmt: skip


def main() -> dict[str, Any]:
    """Measure and print tokens/s, and the ratio to `BertForMaskedLM`."""
    torch.set_num_threads(2)
    torch.manual_seed(0)
    ids = torch.randint(VOCAB, (BATCH, LENGTH))
    index = torch.randperm(BATCH * LENGTH)[: round(0.15 * BATCH * LENGTH)].sort().values
    shape = Model(dim=256, depth=6, heads=8, max_len=LENGTH)
    rivals = {"BertForMaskedLM": _bert_step(ids, index)}
    counts: dict[str, int] = {}
    for name, overrides in ENCODERS.items():
        choices = choose(plain(compose(overrides)))
        model = build_model(shape, choices, vocab_size=VOCAB, causal=False)
        counts[name] = sum(p.numel() for p in model.parameters())
        rivals[name] = _step(model, ids, index)
    seconds = turns(rivals)
    bert = seconds["BertForMaskedLM"]
    rows = {
        name: {
            "tokens_per_second": BATCH * LENGTH / median,
            "times_theirs": bert / median,
            "parameters": counts.get(name),
        }
        for name, median in seconds.items()
    }
    for name, row in rows.items():
        print(f"{name:<24} {row['tokens_per_second']:8,.0f} tokens/s  {row['times_theirs']:.2f} ×")
    return {"rows": rows, "batch": BATCH, "length": LENGTH, "vocabulary": VOCAB}


def _step(model: torch.nn.Module, ids: torch.Tensor, index: torch.Tensor) -> Any:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    targets = ids.flatten()[index]

    def step() -> None:
        optimizer.zero_grad()
        out = model(ids, index=index)
        (F.cross_entropy(out.logits, targets) + sum(out.aux.values())).backward()
        optimizer.step()

    return step


def _bert_step(ids: torch.Tensor, index: torch.Tensor) -> Any:
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        vocab_size=VOCAB, hidden_size=256, num_hidden_layers=6, num_attention_heads=8,
        intermediate_size=1024, max_position_embeddings=LENGTH,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    model = BertForMaskedLM(config).train()
    print(f"BertForMaskedLM has {sum(p.numel() for p in model.parameters()):,} parameters")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    labels = torch.full_like(ids, -100)
    labels.view(-1)[index] = ids.flatten()[index]

    def step() -> None:
        optimizer.zero_grad()
        model(input_ids=ids, labels=labels).loss.backward()
        optimizer.step()

    return step
