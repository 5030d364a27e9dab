"""The tokenizer's files as AutoTokenizer reads them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from chimera.data.tokenizer.base import Tokenizer
from chimera.data.tokenizer.fast import FastTokenizer
from chimera.data.tokenizer.sentence_piece import SentencePieceTokenizer
from chimera.export.hf import unigram


def write(
    tokenizer: Tokenizer,
    folder: Path,
    *,
    decodes: bool = False,
    of_body: bool = False,
    max_len: int,
) -> str | None:
    """Write `tokenizer.json` and `tokenizer_config.json`.

    Args:
        tokenizer: of the model.
        folder: exists.
        decodes: a text begins with the end of the document before it and has no end, as
            `generate.py` has it, and what is decoded may go on from another text; else special
            tokens are those of the tokenizer's template.
        of_body: the tokenizer came with the body, and keeps its template.
        max_len: tokens per sequence in training.

    Returns:
        Why there are no such files; None if they were written.
    """
    fast = _fast(tokenizer, continues=decodes)
    if isinstance(fast, str):
        return fast
    from tokenizers.processors import TemplateProcessing

    special = tokenizer.special
    template = tokenizer.template
    around = (*template.start, *template.middle, *template.end)
    names = {i: fast.id_to_token(i) for i in (*tokenizer.special_ids, *around)}
    start, middle, end = (
        [names[i] for i in part] for part in (template.start, template.middle, template.end)
    )
    if decodes and not of_body:
        start = [names[special.sep]]
        end = []
    fast.encode_special_tokens = False
    fast.post_processor = TemplateProcessing(
        single=[*start, "$A", *end],
        pair=[*start, "$A", *middle, "$B:1", *(f"{token}:1" for token in end)],
        special_tokens=[(token, i) for i, token in names.items()],
    )
    fast.save(str(folder / "tokenizer.json"))
    roles = {"pad": special.pad, "unk": special.unk, "cls": special.cls, "sep": special.sep}
    if decodes:
        roles |= {"bos": special.sep, "eos": special.sep}
    about: dict[str, Any] = {f"{role}_token": names[i] for role, i in roles.items()}
    if special.mask is not None:
        about["mask_token"] = names[special.mask]
    about |= {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_input_names": ["input_ids", "attention_mask"],
        "model_max_length": max_len,
        "padding_side": "left" if decodes else "right",
        "clean_up_tokenization_spaces": False,
    }
    text = json.dumps(about, indent=2) + "\n"
    (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")
    return None


def _fast(tokenizer: Tokenizer, *, continues: bool) -> Any:
    """The `tokenizers.Tokenizer` of a tokenizer, or why there is none."""
    if isinstance(tokenizer, FastTokenizer):
        from tokenizers import Tokenizer as Fast

        return Fast.from_str(tokenizer.fast.to_str())
    if isinstance(tokenizer, SentencePieceTokenizer):
        return unigram.fast(tokenizer, continues=continues) or unigram.REFUSED
    return f"{type(tokenizer).__name__} has no fast form"
