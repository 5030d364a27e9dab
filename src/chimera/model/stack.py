"""Put a language model together from factories of its components: mixers, norms, ffns, head.

Knows no configuration and no choice's name. `assemble` gives it the factories that a configuration
names, and rejects bad combinations; an exported folder gives it those of its own files.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

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
from chimera.model.backbone import Backbone, EmbeddingScale
from chimera.model.bidirectional import Bidirectional
from chimera.model.block import TWICE, Block, Placement
from chimera.model.head import Head
from chimera.model.language import LanguageModel
from chimera.model.qk_norm import QKNorm

if TYPE_CHECKING:  # an exported folder has no settings classes
    from chimera.config.settings import Model as Shape


class Factories(Protocol):
    """Factories of the chosen components."""

    @property
    def mixer(self) -> MixerFactory: ...
    @property
    def norm(self) -> Callable[[int], Norm]: ...
    @property
    def quant(self) -> Quantiser: ...
    @property
    def ffn(self) -> Callable[[Site, Parts], FFN | None]: ...
    @property
    def position(self) -> Callable[[Site, int, int], Position]: ...


#: Checks the mixers of all layers: (hooks of the position, mixers, their sites, factories).
Check = Callable[[frozenset[Hook], Sequence[Mixer], Sequence[Site], Parts], None]
#: Wraps the building of one layer's mixer.
Build = Callable[[Site, Parts, Callable[[], Mixer]], Mixer]


def _no_check(
    provides: frozenset[Hook], mixers: Sequence[Mixer], sites: Sequence[Site], parts: Parts
) -> None:
    """Accept all."""


def _built(site: Site, parts: Parts, build: Callable[[], Mixer]) -> Mixer:
    return build()


def site_of(shape: Shape, *, causal: bool) -> Site:
    """Site of the first layer."""
    return Site(
        dim=shape.dim,
        heads=shape.heads,
        depth=shape.depth,
        loops=shape.loops,
        causal=causal,
        max_len=shape.max_len,
        dropout=shape.dropout,
    )


def stack(
    site: Site,
    shape: Shape,
    factories: Factories,
    *,
    vocab_size: int,
    linear: Callable[..., Any] | None = None,
    build: Build = _built,
    check: Check = _no_check,
) -> LanguageModel:
    """Assemble a model; its weights are those of torch's and the components' constructors.

    Args:
        site: of the first layer.
        shape: settings of `model=`.
        factories: of the components.
        vocab_size: entries of the vocabulary.
        linear: factory of the linear layers in mixers and ffns; None for the quantiser's.
        build: called for the mixer of each layer with a function that builds it.
        check: called with all mixers before the other parts are built.

    Raises:
        ValueError: a component rejects its site.
    """
    provides = factories.position(site, site.heads, site.dim // site.heads).provides
    # A position with hook `embed` only is built once for the model; layers get the no-op class.
    in_layers: Callable[..., Position] = Position if provides <= {"embed"} else factories.position
    if shape.qk_norm:
        in_layers = partial(QKNorm, position=in_layers)
        provides = provides | QKNorm.provides
    placement = shape.norm_placement
    quant = factories.quant
    parts = Parts(linear or quant.linear, factories.norm, in_layers, quant.activation)
    sites = [replace(site, layer=layer) for layer in range(site.depth)]
    shared = shape.two_way == "shared"
    mixers = [
        build(each, parts, partial(build_mixer, each, parts, factories.mixer, shared=shared))
        for each in sites
    ]
    check(provides, mixers, sites, parts)
    blocks = [
        _block(of_layer, parts, factories, mixer, placement)
        for of_layer, mixer in zip(sites, mixers, strict=True)
    ]
    embedding = quant.embedding(vocab_size, site.dim)
    embeds = factories.position if "embed" in provides else Position
    norms_embeddings = placement == "peri" or shape.embedding_norm
    backbone = Backbone(
        embedding,
        _scale(shape),
        embeds(site, site.heads, site.dim // site.heads),
        blocks,
        factories.norm(site.dim),
        loops=site.loops,
        dropout=site.dropout,
        gradient_checkpointing=shape.gradient_checkpointing,
        embedding_norm=factories.norm(site.dim) if norms_embeddings else None,
    )
    table = embedding.table if shape.tie_head else None
    return LanguageModel(backbone, _head(site, shape, factories, vocab_size, table))


def _block(
    site: Site, parts: Parts, factories: Factories, mixer: Mixer, placement: Placement
) -> Block:
    ffn = factories.ffn(site, parts)
    count = (1 if ffn is None else 2) * (2 if placement in TWICE else 1)
    norms = [factories.norm(site.dim) for _ in range(count)]
    return Block(site, mixer, ffn, norms, placement)


def _head(
    site: Site,
    shape: Shape,
    factories: Factories,
    vocab_size: int,
    table: Callable[[], Tensor] | None,
) -> Head:
    return Head(
        site.dim,
        vocab_size,
        linear=factories.quant.linear,
        norm=factories.norm,
        table=table,
        transform=shape.head_transform,
        bias=shape.head_transform or not site.causal,  # as GPT-2, whose head is only the table
    )


def _scale(shape: Shape) -> EmbeddingScale | None:
    if shape.embedding_scale == "none":
        return None
    return EmbeddingScale(shape.dim**0.5, learned=shape.embedding_scale == "learned")


def build_mixer(site: Site, parts: Parts, factory: MixerFactory, *, shared: bool = False) -> Mixer:
    """Build the mixer of a layer; in encoders, wrap a causal-only mixer in `Bidirectional`."""
    if not site.causal and directions(site, parts, factory) == CAUSAL:
        return Bidirectional(site, parts, factory, shared=shared)
    return factory(site, parts)


def directions(site: Site, parts: Parts, factory: MixerFactory) -> frozenset[Direction]:
    """Directions of the mixer that a factory builds for this layer."""
    with torch.device("meta"):
        return factory(replace(site, causal=True), parts).directions
