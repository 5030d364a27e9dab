"""Settings of our parts for a checkpoint of transformers (`init_from=hf:<folder>`).

Each layer of the checkpoint is offered to the components of each group; one that knows it says with
which hyperparameters it computes it (`contract_hf`). This module names no component. Layers of
several kinds become a composite, whose YAML has a key `cycle`. A group that no component speaks for
is `none`. Imports the components' classes, and so torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from pkgutil import resolve_name
from typing import Annotated, Any, cast

from annotated_types import Gt, Lt
from omegaconf import OmegaConf

from chimera.config import choices
from chimera.config.groups import defaults, groups, node
from chimera.config.schema import check_node, check_value
from chimera.errors import UserError
from chimera.rundir.tensors import names, read_config

PREFIX = "hf:"
#: Groups that are asked; the quantiser is that of the command line.
ASKED = ("mixer", "norm", "ffn", "position")
#: Keys of config.json whose values are used, by type; no model has a larger number.
NUMBERS = """hidden_size num_hidden_layers num_attention_heads num_key_value_heads head_dim
    intermediate_size rms_norm_eps layer_norm_epsilon rope_theta partial_rotary_factor
    state_size expand conv_kernel n_groups num_heads chunk_size linear_num_value_heads
    linear_num_key_heads linear_key_head_dim linear_value_head_dim linear_conv_kernel_dim
    num_experts num_experts_per_tok moe_intermediate_size shared_expert_intermediate_size
    decoder_sparse_step"""
EXPECTED: dict[str, Any] = {
    **dict.fromkeys(NUMBERS.split(), Annotated[float, Gt(0), Lt(2**40)] | None),
    **dict.fromkeys(("tie_word_embeddings", "attention_bias", "norm_topk_prob"), bool | None),
    **dict.fromkeys(("model_type", "hidden_act"), str | None),
}


def checkpoint_config(folder: Path) -> dict[str, Any]:
    """Contents of config.json, with keys of the expected types.

    Raises:
        UserError: no configuration, or a value of another type.
    """
    config = read_config(folder)
    rope = config.get("rope_parameters")
    if isinstance(rope, dict):  # transformers 5 keeps them together
        config = {**rope, **config}
    for key, hint in EXPECTED.items():
        check_value(f"{folder}/config.json: {key}", config.get(key), hint)
    for key in ("model_type", "hidden_size", "num_hidden_layers"):
        if config.get(key) is None:
            raise UserError(f"{folder}/config.json has no {key}")
    return {key: value for key, value in config.items() if value is not None}


def configuration(folder: Path) -> dict[str, Any]:
    """Choices, nodes of their groups, and `task`, for a checkpoint.

    Raises:
        UserError: it is none, or has layers that no component computes.
    """
    config = checkpoint_config(folder)
    depth = int(config["num_hidden_layers"])
    known = names(folder)
    if depth > len(known):
        raise UserError(f"{folder}/config.json has {depth} layers for {len(known)} tensors")
    chosen: dict[str, tuple[str, dict[str, Any]]] = {}
    try:
        for group in ASKED:
            chosen[group] = _of_group(group, config, depth)
    except KeyError as error:
        raise UserError(f"{folder}/config.json has no {error.args[0]}") from error
    if chosen["mixer"][0] == "none":
        raise UserError(
            f"init_from={PREFIX}{folder}: no part here takes weights of model_type"
            f" {config['model_type']}; init_from={folder} wraps the model of transformers"
        )
    model = defaults()["model"]
    shape = {
        "dim": int(config["hidden_size"]),
        "depth": depth,
        "heads": _heads(config),
        "tie_head": bool(config.get("tie_word_embeddings", "lm_head.weight" not in known)),
        "head_transform": False,
        "embedding_scale": "none",
        "qk_norm": any(name.endswith(".q_norm.weight") for name in known),
    }
    chosen["model"] = model, composed("model", model, shape)
    chosen["quant"] = "none", composed("quant", "none")
    for group, (_, made) in chosen.items():
        check_node(group, made)
    return {
        "choices": {group: name for group, (name, _) in chosen.items()},
        "task": {"causal": True},
        **{group: made for group, (_, made) in chosen.items()},
    }


def _heads(config: Mapping[str, Any]) -> int:
    """Heads of the model; 1 where mixers have numbers of their own that do not divide the width."""
    heads = int(config.get("num_attention_heads", 1))
    return heads if config["hidden_size"] % heads == 0 else 1


def _of_group(group: str, config: Mapping[str, Any], depth: int) -> tuple[str, dict[str, Any]]:
    """The choice of a group and its node."""
    layers = [_of_layer(group, config, layer) for layer in range(depth)]
    kinds = dict(layers)
    if any(kinds[name] != made for name, made in layers):
        raise UserError(f"layers of this {group} differ in settings, which no part takes")
    if len(kinds) == 1:
        return layers[0]
    name = next(
        option
        for option in groups()[group]
        if "cycle" in (raw := node(group, option)) and raw["_target_"].endswith(f".{option}")
    )
    cycle = [each for each, _ in layers]
    period = next(n for n in range(1, depth + 1) if (cycle[:n] * depth)[:depth] == cycle)
    return name, composed(group, name) | {"cycle": cycle[:period], "members": kinds}


def _of_layer(group: str, config: Mapping[str, Any], layer: int) -> tuple[str, dict[str, Any]]:
    for name, target in _speakers(group):
        settings = target.hf_settings(config, layer)
        if settings is not None:
            return name, composed(group, name, settings)
    return "none", composed(group, "none") if "none" in groups()[group] else {}


@cache
def _speakers(group: str) -> list[tuple[str, Any]]:
    """Choices of a group whose class speaks for checkpoints, one for each class.

    Of several choices of a class it is the one that its module is named for.
    """
    found: dict[Any, str] = {}
    for name in groups()[group]:
        path = node(group, name)["_target_"]
        target = resolve_name(path)
        if hasattr(target, "hf_settings") and (target not in found or path.split(".")[-2] == name):
            found[target] = name
    return [(name, target) for target, name in found.items()]


def composed(group: str, name: str, own: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Node of an option with the nodes of its parts, and with other values of some settings."""
    node = choices.configuration((f"{group}={name}",))[group]
    return cast(dict[str, Any], OmegaConf.to_container(OmegaConf.merge(node, own or {})))
