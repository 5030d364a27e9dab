"""Build a model from a configuration: instantiate choices, assemble, reject bad combinations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from hydra.utils import get_class, get_method, instantiate
from torch import nn
from torch.overrides import TorchFunctionMode

from chimera.config.groups import ZOO, groups, node
from chimera.config.hydra_calls import make
from chimera.config.settings import Model as ModelSettings
from chimera.config.start_model import causal_of
from chimera.contract import (
    CAUSAL,
    FFN,
    Hook,
    Mixer,
    MixerFactory,
    Norm,
    Parts,
    Position,
    Quantiser,
    Site,
)
from chimera.errors import UserError
from chimera.model import refusals
from chimera.model.init import initialise
from chimera.model.language import LanguageModel
from chimera.model.stack import directions, site_of, stack


def _unchanged(model: nn.Module) -> nn.Module:
    return model


@dataclass(frozen=True)
class Choices:
    """Factories of the chosen components, one per group, and their names."""

    mixer: MixerFactory
    norm: Callable[[int], Norm]
    quant: Quantiser
    ffn: Callable[[Site, Parts], FFN | None]
    position: Callable[[Site, int, int], Position]
    names: dict[str, str]
    adapter: Callable[[nn.Module], nn.Module] = _unchanged


def choose(cfg: dict[str, Any], *, adapter: bool = True) -> Choices:
    """Instantiate the factories of a checked configuration.

    Args:
        cfg: plain dictionary with a node per group, and `choices`, the names by group.
        adapter: False omits the adapter, as with adapter=none.

    Raises:
        UserError: a component refuses its hyperparameters.
    """
    chosen = [group for group in ZOO if adapter or group != "adapter"]
    factories = {group: make(_without_callbacks(cfg[group])) for group in chosen}
    return Choices(**factories, names={group: cfg["choices"][group] for group in chosen})


def build_model(
    settings: Any, choices: Choices, *, vocab_size: int, causal: bool | None, adapt: bool = True
) -> LanguageModel:
    """Build the model of the settings of `model=`, and apply the adapter.

    Args:
        settings: settings of `model=`; `builder` is the dotted path of the function that builds it.
        choices: choices of the other groups.
        vocab_size: entries of the vocabulary.
        causal: True for a decoder, False for an encoder; None lets the model decide.
        adapt: False omits the adapter, for callers that load weights or replace the head first.

    Raises:
        UserError: invalid combination of choices, or the model cannot be loaded.
    """
    build = get_method(settings.builder)
    model = build(settings, choices, vocab_size=vocab_size, causal=causal)
    return cast(LanguageModel, choices.adapter(model) if adapt else model)


def unadapted(config: dict[str, Any], choices: Choices, vocab_size: int) -> LanguageModel:
    """Build the model of a checked configuration, before its adapter is applied.

    Args:
        config: with the nodes `model` and `task`.
        choices: of the other groups.
        vocab_size: entries of the vocabulary.

    Raises:
        UserError: as of `build_model`.
    """
    settings = instantiate(config["model"], _convert_="all")
    causal = causal_of(config["task"])
    return build_model(settings, choices, vocab_size=vocab_size, causal=causal, adapt=False)


def from_parts(
    settings: ModelSettings, choices: Choices, *, vocab_size: int, causal: bool | None
) -> LanguageModel:
    """Assemble a Chimera model and initialise its weights; the `builder` of encoder_small.

    Args:
        settings, choices, vocab_size: see `build_model`.
        causal: see `build_model`; None counts as False.

    Raises:
        UserError: invalid combination of choices, or a component that rejects its site.
    """
    if settings.dim % settings.heads:
        wider = settings.dim + -settings.dim % settings.heads
        fewer = max(n for n in range(1, settings.heads) if settings.dim % n == 0)
        raise UserError(
            f"model.heads={settings.heads} does not divide model.dim={settings.dim}; write"
            f" model.dim={wider} or model.heads={fewer}"
        )
    site = site_of(settings, causal=bool(causal))
    try:
        model = _assemble(site, settings, choices, vocab_size)
    except UserError:
        raise
    except ValueError as error:  # a constructor rejects its site or hyperparameters
        raise UserError(str(error)) from error
    if not next(model.parameters()).is_meta:
        initialise(model, settings)
    return model


def check_model(
    settings: Any,
    choices: Choices,
    *,
    causal: bool | None,
    head: Callable[[Any], nn.Module] = lambda model: model,
) -> nn.Module:
    """Build the model on the meta device, without memory, so that constructors raise their errors.

    Args:
        settings, choices, causal: see `build_model`.
        head: function that replaces the head by that of the task.
    """
    try:
        with torch.device("meta"), unfilled():
            model = build_model(settings, choices, vocab_size=8, causal=causal, adapt=False)
            return choices.adapter(head(model))
    except RuntimeError as error:
        if "overflow" not in str(error):  # of a size of more bytes than there are addresses
            raise
        raise UserError(
            f"a matrix of this model has more bytes than any memory ({error}); lower model.dim or"
            " the width that a part sets"
        ) from error


class unfilled(TorchFunctionMode):  # noqa: N801 - a context, called like a function
    """Skip `normal_`: on the meta device it has no effect but imports the compiler (1.2 s)."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in (torch.Tensor.normal_, nn.init.normal_):
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


def _assemble(
    site: Site, settings: ModelSettings, choices: Choices, vocab_size: int
) -> LanguageModel:
    made = 0  # linear layers of the quantiser

    def linear(*args: Any, **kwargs: Any) -> nn.Module:
        nonlocal made
        made += 1
        return choices.quant.linear(*args, **kwargs)

    def quantised(site: Site, parts: Parts, build: Callable[[], Mixer]) -> Mixer:
        before = made
        mixer = build()
        if site.causal and "causal" not in mixer.directions:
            raise refusals.not_causal(choices.names, mixer, site.layer)
        if made == before and choices.quant.quantises:
            raise refusals.unquantised(choices.names, mixer, site.layer)
        return mixer

    def check(
        provides: frozenset[Hook], mixers: Sequence[Mixer], sites: Sequence[Site], parts: Parts
    ) -> None:
        _check_head(settings, choices)
        _check_position(choices, provides, mixers, sites, parts, qk_norm=settings.qk_norm)

    return stack(
        site, settings, choices, vocab_size=vocab_size, linear=linear, build=quantised, check=check
    )


def _check_head(settings: ModelSettings, choices: Choices) -> None:
    """Raise UserError if a quantised head is asked for, but the head is a table that is not."""
    quant = choices.quant
    if quant.quantise_head and settings.tie_head and not quant.quantise_embedding:
        raise UserError(
            "quant.head=true has no effect with model.tie_head=true, as the head is the embedding"
            " table; use quant.embedding=true or model.tie_head=false"
        )


def _check_position(
    choices: Choices,
    provides: frozenset[Hook],
    mixers: Sequence[Mixer],
    sites: Sequence[Site],
    parts: Parts,
    *,
    qk_norm: bool,
) -> None:
    """Raise UserError if a mixer does not support the hooks of the position.

    A recurrent mixer knows the order of its inputs. It needs no support if other layers support the
    position (TITAN has Mamba next to attention with HOPE).
    """
    supported = any(provides <= mixer.position_hooks for mixer in mixers)
    for site, mixer in zip(sites, mixers, strict=True):
        if provides <= mixer.position_hooks:
            continue
        if not (supported and directions(site, parts, choices.mixer) == CAUSAL):
            if qk_norm and "rotate" not in mixer.position_hooks:
                raise refusals.no_queries(choices.names, mixer, site.layer)
            raise _position_error(choices, provides, mixer, site.layer)


def _position_error(
    choices: Choices, provides: frozenset[Hook], mixer: Mixer, layer: int
) -> UserError:
    nouns = {
        "bias": "attention scores",
        "content": "attention scores of all tokens",
        "rotate": "queries and keys to rotate",
        "embed": "inputs",
    }
    missing = " and ".join(nouns[hook] for hook in sorted(provides - mixer.position_hooks))
    allowed = ", ".join(n for n in groups()["position"] if provides_of(n) <= mixer.position_hooks)
    where = refusals.where(choices.names, mixer, layer)
    position = choices.names["position"]
    return UserError(f"position={position} needs {missing}; mixer={where} has none; use {allowed}")


def provides_of(position: str) -> frozenset[Hook]:
    """Hooks of a choice of `position=`."""
    return cast(type[Position], get_class(node("position", position)["_target_"])).provides


def _without_callbacks(config: Any) -> Any:
    """Remove the keys `callbacks` from a component's configuration, at every depth."""
    if not isinstance(config, dict):
        return config
    return {k: _without_callbacks(v) for k, v in config.items() if k != "callbacks"}
