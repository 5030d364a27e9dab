"""Build a model from a configuration: instantiate the choices, assemble, refuse bad pairs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from hydra.utils import get_class, get_method, instantiate
from torch import nn
from torch.overrides import TorchFunctionMode

from chimera.config.groups import ZOO, groups, node
from chimera.config.settings import Model as ModelSettings
from chimera.contract import (
    CAUSAL,
    FFN,
    Direction,
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
from chimera.model.backbone import Backbone, Block, EmbeddingScale
from chimera.model.bidirectional import Bidirectional
from chimera.model.head import Head
from chimera.model.init import initialise
from chimera.model.language import LanguageModel


def _unchanged(model: nn.Module) -> nn.Module:
    return model


@dataclass(frozen=True)
class Choices:
    """One factory per group, as chosen on the command line."""

    mixer: MixerFactory
    norm: Callable[[int], Norm]
    quant: Quantiser
    ffn: Callable[[Site, Parts], FFN | None]
    position: Callable[[Site, int, int], Position]
    names: dict[str, str]
    adapter: Callable[[nn.Module], nn.Module] = _unchanged


def choose(cfg: dict[str, Any], *, adapter: bool = True) -> Choices:
    """Instantiate the factories of a plain, checked configuration.

    Args:
        cfg: has a node per group, and `choices` with its name.
        adapter: False leaves the adapter out: the model is built as if none were chosen.
    """
    chosen = [group for group in ZOO if adapter or group != "adapter"]
    made = {group: instantiate(_without_callbacks(cfg[group]), _convert_="all") for group in chosen}
    return Choices(**made, names={group: cfg["choices"][group] for group in chosen})


def build_model(
    settings: Any, choices: Choices, *, vocab_size: int, causal: bool | None, adapt: bool = True
) -> LanguageModel:
    """Build the model that the settings of `model=` describe, and apply the adapter.

    Args:
        settings: a choice of `model=`; its `builder` is the dotted path of what builds the model.
        choices: of the other groups.
        vocab_size: of the tokenizer.
        causal: True for a decoder, False for an encoder; None leaves it to the model.
        adapt: False where weights are loaded, or another head is put on, first.

    Raises:
        UserError: choices that cannot work together, or a model that cannot be had.
    """
    build = get_method(settings.builder)
    model = build(settings, choices, vocab_size=vocab_size, causal=causal)
    return cast(LanguageModel, choices.adapter(model) if adapt else model)


def from_parts(
    settings: ModelSettings, choices: Choices, *, vocab_size: int, causal: bool | None
) -> LanguageModel:
    """Put the chosen parts at their sites and initialise the weights.

    Args:
        settings, choices, vocab_size: as of `build_model`.
        causal: None counts as False.

    Raises:
        UserError: a pair of choices that cannot work together, or a part that does not fit.
    """
    if settings.dim % settings.heads:
        raise UserError(f"model.heads={settings.heads} does not divide model.dim={settings.dim}")
    site = Site(
        dim=settings.dim,
        heads=settings.heads,
        depth=settings.depth,
        loops=settings.loops,
        causal=bool(causal),
        max_len=settings.max_len,
        dropout=settings.dropout,
    )
    try:
        model = _assemble(site, settings, choices, vocab_size)
    except UserError:
        raise
    except ValueError as error:  # a constructor that says why its site does not suit it
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
) -> None:
    """Build the model on the meta device, without memory, so that every constructor can raise.

    Args:
        settings, choices, causal: as of `build_model`.
        head: puts the task's own head on.
    """
    with torch.device("meta"), _Unfilled():
        model = build_model(settings, choices, vocab_size=8, causal=causal, adapt=False)
        choices.adapter(head(model))


class _Unfilled(TorchFunctionMode):
    """Passes normal_ over: on the meta device it fills nothing and imports the compiler (1.2 s)."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in (torch.Tensor.normal_, nn.init.normal_):
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


def _assemble(
    site: Site, settings: ModelSettings, choices: Choices, vocab_size: int
) -> LanguageModel:
    provides = choices.position(site, site.heads, site.dim // site.heads).provides
    # A position that only embeds is built once for the model; layers get the no-op base class.
    in_layers = Position if provides <= {"embed"} else choices.position
    parts = Parts(choices.quant.linear, choices.norm, in_layers)
    blocks = []
    sites = [Site(**{**site.__dict__, "layer": layer}) for layer in range(site.depth)]
    shared = settings.two_way == "shared"
    mixers = [place_mixer(here, parts, choices.mixer, shared=shared) for here in sites]
    _gate(choices, provides, mixers, sites, parts)
    for here, mixer in zip(sites, mixers, strict=True):
        ffn = choices.ffn(here, parts)
        norms = [choices.norm(site.dim) for _ in range(1 if ffn is None else 2)]
        blocks.append(Block(here, mixer, ffn, norms))
    embedding = choices.quant.embedding(vocab_size, site.dim)
    backbone = Backbone(
        embedding,
        _scale(settings),
        choices.position(site, site.heads, site.dim // site.heads)
        if "embed" in provides
        else Position(site, site.heads, site.dim // site.heads),
        blocks,
        choices.norm(site.dim),
        loops=site.loops,
        dropout=site.dropout,
        gradient_checkpointing=settings.gradient_checkpointing,
    )
    head = Head(
        site.dim,
        vocab_size,
        linear=choices.quant.linear,
        norm=choices.norm,
        table=embedding.table if settings.tie_head else None,
        transform=settings.head_transform,
        bias=settings.head_transform or not site.causal,  # GPT-2's head is the table alone
    )
    return LanguageModel(backbone, head)


def _scale(settings: ModelSettings) -> EmbeddingScale | None:
    if settings.embedding_scale == "none":
        return None
    return EmbeddingScale(settings.dim**0.5, learned=settings.embedding_scale == "learned")


def place_mixer(site: Site, parts: Parts, factory: MixerFactory, *, shared: bool = False) -> Mixer:
    """Build the mixer of a site; in an encoder, a causal-only one inside `Bidirectional`."""
    if not site.causal and _directions(site, parts, factory) == CAUSAL:
        return Bidirectional(site, parts, factory, shared=shared)
    return factory(site, parts)


def _directions(site: Site, parts: Parts, factory: MixerFactory) -> frozenset[Direction]:
    with torch.device("meta"):
        return factory(Site(**{**site.__dict__, "causal": True}), parts).directions


def _gate(
    choices: Choices,
    provides: frozenset[Hook],
    mixers: Sequence[Mixer],
    sites: Sequence[Site],
    parts: Parts,
) -> None:
    """Refuse a position that a mixer cannot honour, naming those that it can.

    A recurrence knows the order of its inputs by itself: among layers that honour the position it
    may go without (TITAN has Mamba beside attention with HOPE).
    """
    among = any(provides <= mixer.honours for mixer in mixers)
    for site, mixer in zip(sites, mixers, strict=True):
        if provides <= mixer.honours:
            continue
        if not (among and _directions(site, parts, choices.mixer) == CAUSAL):
            raise _refused(choices, provides, mixer, site.layer)


def _refused(choices: Choices, provides: frozenset[Hook], mixer: Mixer, layer: int) -> UserError:
    need = {"bias": "attention scores", "rotate": "queries and keys to rotate", "embed": "inputs"}
    lacking = " and ".join(need[hook] for hook in sorted(provides - mixer.honours))
    fine = ", ".join(n for n in groups()["position"] if provides_of(n) <= mixer.honours)
    name = choices.names["mixer"]
    where = name if mixer.component == name else f"{name} (layer {layer}: {mixer.component})"
    return UserError(
        f"position={choices.names['position']} needs {lacking}; mixer={where} has none; use {fine}"
    )


def provides_of(position: str) -> frozenset[Hook]:
    """Hooks that a choice of `position=` fills in."""
    return cast(type[Position], get_class(node("position", position)["_target_"])).provides


def _without_callbacks(config: Any) -> Any:
    """A component's configuration without the callbacks that it brings, at every depth."""
    if not isinstance(config, dict):
        return config
    return {k: _without_callbacks(v) for k, v in config.items() if k != "callbacks"}
