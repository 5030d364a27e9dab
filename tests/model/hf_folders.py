"""Tiny Hugging Face folders with random weights and a tokenizer of the model type."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer as Fast
from tokenizers import models, normalizers, pre_tokenizers
from tokenizers.processors import TemplateProcessing

WORDS = ["the", "a", "cat", "dog", "sees", "likes", "big", "red", "one", "house", "tree", "and"]
WORDS += ["under", "runs", "sleeps"]
SHAPE: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 66,
}
#: Model type → names of classes in transformers, special tokens at start, middle, end of texts.
KINDS: dict[str, tuple[str, str, tuple[str, str, str]]] = {
    "bert": ("Bert", "MaskedLM", ("[CLS]", "[SEP]", "[SEP]")),
    "roberta": ("Roberta", "MaskedLM", ("<s>", "</s> </s>", "</s>")),
    "deberta": ("DebertaV2", "MaskedLM", ("[CLS]", "[SEP]", "[SEP]")),
    "llama": ("Llama", "CausalLM", ("<s>", "<s>", "")),
}
ENCODERS = ("bert", "roberta", "deberta")
MORE: dict[str, dict[str, Any]] = {
    "deberta": {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 8}
    | {"type_vocab_size": 0},
    "roberta": {"type_vocab_size": 1},
    "llama": {"num_key_value_heads": 1},
}


def folder(kind: str, to: Path) -> Path:
    """Save a model of this type with its tokenizer, as users have it on disk."""
    name, head, around = KINDS[kind]
    special = ["<pad>", "<unk>", *dict.fromkeys(" ".join(around).split())]
    special += [] if kind == "llama" else ["<mask>"]
    vocabulary = {word: i for i, word in enumerate([*special, *WORDS])}
    fast = Fast(models.WordLevel(vocabulary, unk_token="<unk>"))
    fast.normalizer = normalizers.Lowercase()
    fast.pre_tokenizer = pre_tokenizers.Whitespace()
    start, middle, end = around
    fast.post_processor = TemplateProcessing(
        single=f"{start} $A {end}".strip(),
        pair=f"{start} $A {middle} $B:1 {f'{end}:1' if end else ''}".strip(),
        special_tokens=[(token, vocabulary[token]) for token in special],
    )
    names: dict[str, str] = {"pad_token": "<pad>", "unk_token": "<unk>"}
    if kind == "llama":
        names |= {"bos_token": "<s>"}
    else:
        names |= {"cls_token": start, "sep_token": end, "mask_token": "<mask>"}
    transformers.PreTrainedTokenizerFast(tokenizer_object=fast, **names).save_pretrained(to)
    torch.manual_seed(0)
    shape = {**SHAPE, **MORE.get(kind, {}), "vocab_size": len(vocabulary), "pad_token_id": 0}
    config = getattr(transformers, f"{name}Config")(**shape)
    made = getattr(transformers, f"{name}For{head}")(config)
    for parameter in made.parameters():  # with small initial weights, errors would not show
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.2)
    made.save_pretrained(to)
    return to
