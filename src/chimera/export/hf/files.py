"""The files by which the transformers library loads an exported folder by itself."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from chimera.config.groups import ZOO
from chimera.data.tokenizer.base import Tokenizer
from chimera.export.hf import flat
from chimera.safe_io import read_json, write_json

FILE = "modeling_chimera"
HEADS = ("MaskedLM", "CausalLM", "SequenceClassification")
#: Code of a model that only this package can build.
SHIM = '''\
"""Loads through the package chimera, which has to be installed."""

from chimera.export.hf_model import ChimeraConfig, ChimeraModel

__all__ = ["ChimeraConfig", "ChimeraModel"]
'''


def write(
    folder: Path,
    about: dict[str, Any],
    shape: dict[str, Any],
    tokenizer: Tokenizer,
    *,
    causal: bool,
    opening: Sequence[int] | None = None,
) -> dict[str, Any]:
    """Write code that needs nothing of this package; returns keys of config.json.

    Args:
        folder: exists.
        about: other contents of config.json.
        shape: settings of `model=`, every one of them.
        tokenizer: of the model.
        causal: whether the model is a decoder.
        opening: ids before a decoder's text; none or None: its end.
    """
    config = about["chimera"]
    flat.write(folder, {group: config[group] for group in ZOO if group != "adapter"})
    heads = [_language(causal), "SequenceClassification"]
    keys = _keys("Chimera", heads, about, tokenizer, causal=causal) | {
        "shape": shape,
        "tie_word_embeddings": shape["tie_head"],
        "auxiliary": {k: v for k, v in (config["task"].get("weights") or {}).items() if v},
        "hidden_size": shape["dim"],
        "num_hidden_layers": shape["depth"] * shape["loops"],
        "num_attention_heads": shape["heads"],
        "max_position_embeddings": shape["max_len"],
    }
    if causal:
        end = tokenizer.special.sep
        generation = {
            "pad_token_id": keys["pad_token_id"],
            "bos_token_id": (*(opening or ()), end)[0],
            "eos_token_id": end,
        }
        write_json(folder / "generation_config.json", generation)
        keys |= generation
    return keys


def write_body(
    folder: Path, about: dict[str, Any], names: set[str], tokenizer: Tokenizer, *, causal: bool
) -> dict[str, Any]:
    """Write code for a body of transformers; returns keys of config.json.

    The code needs this package where transformers' classes have other tensors, as where
    LiZAttention is grafted in, and where a builder of a user makes the model.

    Args:
        folder: has `body/config.json`.
        about: other contents of config.json.
        names: of the model's tensors.
        tokenizer: of the model.
        causal: whether the model is a decoder.
    """
    import torch

    from chimera.export.hf import body
    from chimera.export.hf.configuration import ChimeraConfig

    head = "SequenceClassification" if about["outputs"] else _language(causal)
    settings = read_json(folder / "body" / "config.json")
    keys = _keys("ChimeraBody", [head], about, tokenizer, causal=causal) | {
        "body": settings,
        "tie_word_embeddings": bool(settings.get("tie_word_embeddings", True)),
    }
    for key in ("hidden_size", "num_hidden_layers", "num_attention_heads"):
        keys[key] = settings.get(key)
    if settings:
        with torch.device("meta"):
            model = getattr(body, f"ChimeraBodyFor{head}")(ChimeraConfig(**(about | keys)))
        if set(model.state_dict()) == names:
            flat.write(folder, {}, flat.BODY)
            return keys
    (folder / f"{FILE}.py").write_text(SHIM, encoding="utf-8")
    classes = {"AutoConfig": f"{FILE}.ChimeraConfig"}
    for name in ("AutoModel", *(f"AutoModelFor{head}" for head in HEADS)):
        classes[name] = f"{FILE}.ChimeraModel"
    return {"model_type": "chimera", "architectures": ["ChimeraModel"], "auto_map": classes}


def _language(causal: bool) -> str:
    return "CausalLM" if causal else "MaskedLM"


def _keys(
    kind: str, heads: Sequence[str], about: dict[str, Any], tokenizer: Tokenizer, *, causal: bool
) -> dict[str, Any]:
    """Keys of config.json of a folder whose classes are named `kind`, and `kind` with a head."""
    keys: dict[str, Any] = {
        "model_type": "chimera",
        "architectures": [f"{kind}For{heads[-1] if about['outputs'] else heads[0]}"],
        "auto_map": {
            "AutoConfig": "configuration_chimera.ChimeraConfig",
            "AutoModel": f"{FILE}.{kind}Model",
            **{f"AutoModelFor{head}": f"{FILE}.{kind}For{head}" for head in heads},
        },
        "is_decoder": causal,
        "dtype": "float32",
        "pad_token_id": tokenizer.special.pad,
    }
    if about["outputs"]:
        task = about["chimera"]["task"]
        keys["classifier"] = {key: task[key] for key in ("pool", "dropout", "hidden")}
    if about["outputs"] == 1:
        keys |= {"id2label": {"0": "score"}, "label2id": {"score": 0}, "problem_type": "regression"}
    return keys
