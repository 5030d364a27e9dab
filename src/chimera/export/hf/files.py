"""The files by which the transformers library loads an exported folder by itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from chimera.data.tokenizer.base import Tokenizer
from chimera.data.tokenizer.fast import FastTokenizer

#: Imported by the library with `trust_remote_code=True`; the model itself is this package's.
CODE = '''\
"""Loads through the package chimera, which has to be installed."""

from chimera.export.hf.model import ChimeraConfig, ChimeraModel

__all__ = ["ChimeraConfig", "ChimeraModel"]
'''
_MODEL = "modeling_chimera.ChimeraModel"
#: Keys of config.json.
CONFIG: dict[str, Any] = {
    "model_type": "chimera",
    "architectures": ["ChimeraModel"],
    "auto_map": {
        "AutoConfig": "modeling_chimera.ChimeraConfig",
        "AutoModel": _MODEL,
        "AutoModelForMaskedLM": _MODEL,
        "AutoModelForCausalLM": _MODEL,
        "AutoModelForSequenceClassification": _MODEL,
    },
}


def write(folder: Path, tokenizer: Tokenizer) -> None:
    """Write `modeling_chimera.py` and the tokenizer's files."""
    (folder / "modeling_chimera.py").write_text(CODE, encoding="utf-8")
    write_tokenizer(tokenizer, folder)


def write_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """`tokenizer.json` and what AutoTokenizer reads beside it, of a tokenizer that has such a form.

    SentencePiece's `.model` in `tokenizer/` is its own form; AutoTokenizer does not read that.
    """
    if not isinstance(tokenizer, FastTokenizer):
        return
    from tokenizers import Tokenizer as Fast
    from tokenizers.processors import TemplateProcessing

    fast = Fast.from_str(tokenizer.fast.to_str())
    special = tokenizer.special
    names = {i: fast.id_to_token(i) for i in (*tokenizer.special_ids, *_around(tokenizer))}
    start, middle, end = (
        [names[i] for i in part]
        for part in (tokenizer.template.start, tokenizer.template.middle, tokenizer.template.end)
    )
    fast.post_processor = TemplateProcessing(
        single=[*start, "$A", *end],
        pair=[*start, "$A", *middle, "$B:1", *(f"{token}:1" for token in end)],
        special_tokens=[(token, i) for i, token in names.items()],
    )
    fast.save(str(folder / "tokenizer.json"))
    roles = {"pad": special.pad, "unk": special.unk, "cls": special.cls, "sep": special.sep}
    about: dict[str, object] = {f"{role}_token": names[i] for role, i in roles.items()}
    if special.mask is not None:
        about["mask_token"] = names[special.mask]
    about["tokenizer_class"] = "PreTrainedTokenizerFast"
    (folder / "tokenizer_config.json").write_text(json.dumps(about, indent=2) + "\n")


def _around(tokenizer: Tokenizer) -> tuple[int, ...]:
    template = tokenizer.template
    return (*template.start, *template.middle, *template.end)
