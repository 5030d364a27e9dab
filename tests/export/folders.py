"""Exported folders of untrained models, for tests of what transformers makes of them."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn

from chimera.contract_tests import zoo
from chimera.data.tokenizer.base import Tokenizer
from chimera.data.tokenizer.sentence_piece import SentencePiece
from chimera.export.folder import distinct, without_adapters, write_parts
from chimera.export.hf import tokenizer
from chimera.quant.shared.packing import packed as pack_model

#: Words of a training run that prints nothing.
QUIET = ["logger=none", "trainer.progress=none", "trainer.accelerator=cpu", "data.batch_size=8"]
#: Words of a decoder that llama.cpp may know.
DECODER = ["task=causal_lm", "data=text", "norm=rmsnorm", "position=rope", "logger=none"]
DECODER += ["model.head_transform=false", "tokenizer.vocab_size=300", "trainer.progress=none"]
TEXT = "the cat sees a big red dog under one tree and it runs to my old house"


def sentences(count: int = 300) -> list[str]:
    """Lines of a few words each."""
    generator = torch.Generator().manual_seed(1)
    words = TEXT.split()
    rows = torch.randint(len(words), (count, 8), generator=generator).tolist()
    return [" ".join(words[i] for i in row) for row in rows]


@cache
def pieces() -> Tokenizer:
    """A small SentencePiece tokenizer, bytes for characters that it does not know."""
    return SentencePiece(vocab_size=330, num_threads=1).build(sentences())


def folder(
    to: Path,
    *,
    causal: bool = False,
    pack: bool = False,
    settings: dict[str, Any] | None = None,
    **choices: str,
) -> nn.Module:
    """Export an untrained language model of these choices; returns the model, in evaluation mode.

    Args:
        to: the folder, made.
        causal: a decoder.
        pack: store ternary weights in 1.6 bits.
        settings: changes of the shape.
        **choices: of components.
    """
    shape, own = replace(zoo.TINY, **(settings or {})), pieces()
    model: nn.Module = zoo.build(shape, choices, causal=causal, vocab_size=own.vocab_size).eval()
    if pack:
        model = pack_model(model)
    to.mkdir(parents=True, exist_ok=True)
    weights, tied = distinct(without_adapters(model))
    save_file(weights, to / "model.safetensors", {"format": "pt"})
    about = {
        "vocab_size": own.vocab_size,
        "outputs": 0,
        "chimera": zoo.config(**choices) | {"task": {"weights": {"balance": 0.01}}},
        "packed": pack,
        "adapter": "none",
        "tied": tied,
    }
    opening = own.opening(packed=True) if causal else None
    about |= write_parts(to, about, asdict(shape), own, causal=causal, opening=opening)
    assert tokenizer.write(own, to, opening=opening, max_len=shape.max_len) is None
    (to / "config.json").write_text(json.dumps(about))
    return model
