"""The files by which the transformers library loads an exported folder by itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from chimera.config.groups import ZOO
from chimera.data.tokenizer.base import Tokenizer
from chimera.export.hf import flat
from chimera.rundir.safe_io import read_json

#: Code of a model whose body is another library's: the package has to be installed for it.
SHIM = '''\
"""Loads through the package chimera, which has to be installed."""

from chimera.export.hf.model import ChimeraConfig, ChimeraModel

__all__ = ["ChimeraConfig", "ChimeraModel"]
'''
_FILE = "modeling_chimera"
_SHIM = f"{_FILE}.ChimeraModel"


def shim(folder: Path) -> dict[str, Any]:
    """Write code that needs this package; returns keys of config.json."""
    (folder / f"{_FILE}.py").write_text(SHIM, encoding="utf-8")
    heads = ("MaskedLM", "CausalLM", "SequenceClassification")
    return {
        "model_type": "chimera",
        "architectures": ["ChimeraModel"],
        "auto_map": {
            "AutoConfig": f"{_FILE}.ChimeraConfig",
            "AutoModel": _SHIM,
            **{f"AutoModelFor{head}": _SHIM for head in heads},
        },
    }


def write_body(
    folder: Path, about: dict[str, Any], names: set[str], tokenizer: Tokenizer, *, causal: bool
) -> dict[str, Any] | None:
    """Write code for a body of transformers; returns keys of config.json.

    Args:
        folder: has `body/config.json`.
        about: other contents of config.json.
        names: of the model's tensors.
        tokenizer: of the model.
        causal: whether the model is a decoder.

    Returns:
        None if transformers' classes have other tensors, as where LiZAttention is grafted in.
    """
    import torch

    from chimera.export.hf import body
    from chimera.export.hf.configuration import ChimeraConfig

    head = "CausalLM" if causal else "MaskedLM"
    head = "SequenceClassification" if about["outputs"] else head
    settings = read_json(folder / "body" / "config.json")
    keys: dict[str, Any] = {
        "model_type": "chimera",
        "architectures": [f"ChimeraBodyFor{head}"],
        "auto_map": {
            "AutoConfig": "configuration_chimera.ChimeraConfig",
            "AutoModel": f"{_FILE}.ChimeraBodyModel",
            f"AutoModelFor{head}": f"{_FILE}.ChimeraBodyFor{head}",
        },
        "body": settings,
        "is_decoder": causal,
        "tie_word_embeddings": bool(settings.get("tie_word_embeddings", True)),
        "dtype": "float32",
        "pad_token_id": tokenizer.special.pad,
        **_head(about),
    }
    for key in ("hidden_size", "num_hidden_layers", "num_attention_heads"):
        keys[key] = settings.get(key)
    with torch.device("meta"):
        model = getattr(body, f"ChimeraBodyFor{head}")(ChimeraConfig(**(about | keys)))
    if set(model.state_dict()) != names:
        return None
    flat.write(folder, {}, flat.BODY)
    return keys


def _head(about: dict[str, Any]) -> dict[str, Any]:
    """Keys of a classifier's head."""
    keys: dict[str, Any] = {}
    if about["outputs"]:
        task = about["chimera"]["task"]
        keys["classifier"] = {key: task[key] for key in ("pool", "dropout", "hidden")}
    if about["outputs"] == 1:
        keys |= {"id2label": {"0": "score"}, "label2id": {"score": 0}, "problem_type": "regression"}
    return keys


def write(
    folder: Path,
    about: dict[str, Any],
    shape: dict[str, Any],
    tokenizer: Tokenizer,
    *,
    causal: bool,
) -> dict[str, Any]:
    """Write code that needs nothing of this package; returns keys of config.json.

    Args:
        folder: exists.
        about: other contents of config.json.
        shape: settings of `model=`, every one of them.
        tokenizer: of the model.
        causal: whether the model is a decoder.
    """
    config = about["chimera"]
    special = tokenizer.special
    flat.write(folder, {group: config[group] for group in ZOO if group != "adapter"})
    language = "ChimeraForCausalLM" if causal else "ChimeraForMaskedLM"
    classes = {
        "AutoConfig": "configuration_chimera.ChimeraConfig",
        "AutoModel": f"{_FILE}.ChimeraModel",
        language.replace("Chimera", "AutoModel"): f"{_FILE}.{language}",
        "AutoModelForSequenceClassification": f"{_FILE}.ChimeraForSequenceClassification",
    }
    generation = {"pad_token_id": special.pad}
    if causal:
        generation |= {"bos_token_id": special.sep, "eos_token_id": special.sep}
        text = json.dumps(generation, indent=2) + "\n"
        (folder / "generation_config.json").write_text(text, encoding="utf-8")
    keys: dict[str, Any] = {
        "model_type": "chimera",
        "architectures": ["ChimeraForSequenceClassification" if about["outputs"] else language],
        "auto_map": classes,
        "shape": shape,
        "auxiliary": {k: v for k, v in (config["task"].get("weights") or {}).items() if v},
        "hidden_size": shape["dim"],
        "num_hidden_layers": shape["depth"] * shape["loops"],
        "num_attention_heads": shape["heads"],
        "max_position_embeddings": shape["max_len"],
        "is_decoder": causal,
        "dtype": "float32",
        **generation,
    }
    return keys | _head(about)
