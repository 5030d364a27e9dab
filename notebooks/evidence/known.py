"""Sizes of published models beside those of our models of the same shape (known.yaml)."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import torch
import yaml

from chimera.config.compose import compose, plain
from chimera.config.hydra_calls import make
from chimera.model.assemble import build_model, choose


def parameters(words: str, rows: int) -> int:
    """Parameters of the model that these words of a command choose, built without memory.

    Args:
        words: of `python train.py`.
        rows: of the embedding.
    """
    config = plain(compose(words.split()))
    causal = config["task"]["name"] != "mlm"
    with torch.device("meta"):
        model = build_model(make(config["model"]), choose(config), vocab_size=rows, causal=causal)
    return sum(parameter.numel() for parameter in model.parameters())


def sizes() -> pd.DataFrame:
    """known.yaml with `ours`, a model a row."""
    file = Path(__file__).with_name("known.yaml")
    found = pd.DataFrame(yaml.safe_load(file.read_text(encoding="utf-8")))
    ours = [parameters(one.words, one.rows) for one in found.itertuples()]
    return found.assign(ours=ours).fillna({"differs": ""})
