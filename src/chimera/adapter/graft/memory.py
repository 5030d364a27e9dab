"""Linear memory that LiZAttention adds to a pretrained attention module (SPEC A4, M12).

    O = (1−α) O_base + α O_lin (+ (1−α) O_base ⊙ α O_lin)                       (TPTT eq. 7-8)

The base attention runs unchanged, with its weights, positions, masks and cache. Hooks read the
outputs q, k and v of its projections for the linear branch (before norms and rotation; clipped if
the model clips in place). A hook replaces the input O_base of the output projection by O; with
α = 0 the values are equal, bit for bit. Each call looks up projections by name, so that an adapter
may wrap them before or after the graft.

`generate` creates the key-value cache. Each layer of the cache also stores the state of the linear
branch (SPEC A4; TPTT 3.5.1), so that beam search, repetition and resets change both. The state has
constant size: a k × k matrix per head and the last few keys and values. With `max_cache`, the keys
and values of the layer have constant size too. The class of a cache layer is replaced by a subclass
of it, created at run time. The module imports and replaces nothing of transformers.

x [b t d]; q [b t h·k], k and v [b t g·k]; O [b t h·k].
"""

from __future__ import annotations

import inspect
from copy import copy
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, ClassVar, Literal

import torch
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor, nn

from chimera.contract import Context
from chimera.ops import local
from chimera.ops.attention import KVCache
from chimera.ops.liza import LEARN_RATE, Edge, LinearBranch, LinearState, mix

#: transformers' name of the attention of grafted layers, and queries in one of its blocks.
LOCAL = "chimera_local"
BLOCK = 128


@dataclass(frozen=True)
class Layout:
    """Projections of one attention module.

    Args:
        inputs: names of the projections for q, k, v, or of the fused one.
        out: name of the output projection.
        heads: query heads h.
        kv_heads: key-value heads g, a divisor of h.
        head_dim: width k of a head.
    """

    inputs: tuple[str, ...]
    out: str
    heads: int
    kv_heads: int
    head_dim: int

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all projections."""
        return (*self.inputs, self.out)

    def split(self, outputs: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """q [b t h·k], k and v [b t g·k] from the outputs of the input projections."""
        if len(outputs) == 1:
            g = self.kv_heads * self.head_dim
            q, k, v = outputs[0].split([self.heads * self.head_dim, g, g], dim=-1)
        else:
            q, k, v = outputs
        return q, k, v


class GraftedMemory(nn.Module):
    """Linear branch for one attention module, and the hooks that connect both.

    Args:
        layout: layout of the attention's projections.
        padding: padding mask, shared by all layers.
        max_cache: tokens that the softmax branch attends to, with the current token; None for all
            earlier tokens.
        causal: False adds a pass over the reversed sequence (without a cache).
        mag: combination of the branches.
        mag_weight: initial α.
        mag_learn: `head` learns α of each head from there.
        branch: options of `ops.liza.LinearBranch` except the head width.
    """

    component = "attention"
    undecayed = ("mag_shift",)
    rate_factors: ClassVar[dict[str, float]] = {"mag_shift": LEARN_RATE}

    def __init__(
        self,
        layout: Layout,
        padding: Padding,
        *,
        max_cache: int | None,
        causal: bool,
        mag: Literal["additive", "cross_gate"],
        mag_weight: float,
        mag_learn: Literal["head"] | None = None,
        **branch: Any,
    ) -> None:
        super().__init__()
        self.layout = layout
        self.padding = padding
        self.max_cache = max_cache
        self.causal = causal
        self.cross = mag == "cross_gate"
        self.options = dict(
            mag=mag, mag_weight=mag_weight, mag_learn=mag_learn, max_cache=max_cache, **branch
        )
        self.branch = LinearBranch(head_dim=layout.head_dim, **branch)
        self.config: Any = None  # of an attention whose function of attention may be ours
        self.linear: Any = nn.ModuleDict({"norm": nn.RMSNorm(layout.head_dim)})
        self.mag_weight: Tensor
        self.register_buffer("mag_weight", torch.tensor(float(mag_weight)))
        self.edge = Edge(self.mag_weight, float(mag_weight))
        shift = torch.zeros(layout.heads, 1) if mag_learn else None
        self.mag_shift = None if shift is None else nn.Parameter(shift)
        self.stats: dict[str, Tensor] = {}
        self._call: Call | None = None

    def set_mag_weight(self, weight: float) -> None:
        """Set α, from 0 (the base model's attention) to 1 (linear branch only)."""
        if not 0 <= weight <= 1:
            raise ValueError(f"mag_weight={weight} is not in [0, 1]")
        self.mag_weight.fill_(weight)

    def scalars(self) -> dict[str, Tensor]:
        """Mean and deviation of β in the last forward pass in training; empty before it."""
        return self.stats

    def attach(self, attention: nn.Module) -> None:
        """Add this module to the attention module and register the hooks."""
        attention.add_module("liza", self)
        config: Any = getattr(attention, "config", None)
        capped = getattr(config, "attn_logit_softcapping", None) or hasattr(attention, "sinks")
        if getattr(config, "_attn_implementation", None) and not capped and self.causal:
            self.config = copy(config)
            self.config._attn_implementation = LOCAL
        attention.register_forward_pre_hook(self.begin, with_kwargs=True)
        attention.register_forward_hook(self.end, always_call=True)

    def begin(
        self, attention: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Hook before the base attention: hook its projections, limit its mask to `max_cache`."""
        past = argument(attention, args, kwargs, "past_key_values", "past_key_value")
        index: Any = attention.layer_idx
        alone = None if self.training else self.edge.of(self.mag_weight)
        # At α = 1 nothing is read of the base attention: it keeps no keys.
        bound = 1 if alone == 1 and self.config is not None else self.max_cache
        layer = None if past is None else stateful_layer(past, index, bound, alone)
        self._call = call = Call(layer, alone, attention.__dict__.get("config"))
        for name in self.layout.inputs:
            projection = attention.get_submodule(name)
            call.hooks.append(projection.register_forward_hook(partial(call.keep, name)))
        out = attention.get_submodule(self.layout.out)
        call.hooks.append(out.register_forward_pre_hook(self.mix))
        if bound is not None and self.config is not None:
            attention.config = self.config
        elif bound is not None:
            x = argument(attention, args, kwargs, "hidden_states")
            mask = local_mask(x, layer, argument(attention, args, kwargs, "attention_mask"), bound)
            kwargs = {**kwargs, "attention_mask": mask}
        return args, kwargs

    def end(self, attention: nn.Module, args: tuple[Any, ...], out: Any) -> None:
        """Hook after the base attention, also after an error: remove the hooks of this call."""
        call = self._call
        self._call = None
        if call and self.config is not None:
            attention.config = call.config
        for hook in call.hooks if call else ():
            hook.remove()

    def local(self, q: Tensor, k: Tensor, v: Tensor, scaling: float | None, **said: Any) -> Tensor:
        """Attention [b t h k] of rotated queries over the last `max_cache` keys, by bands."""
        assert self._call is not None
        (b, h, t, width), s = q.shape, k.shape[2]
        if self._call.alone == 1:
            return q.new_zeros(b, t, h, v.shape[-1])
        reach = min(x for x in (self.max_cache, said.get("sliding_window")) if x)
        pos = torch.arange(s, device=q.device)[None]
        real = self.padding.last(s)
        keys = KVCache(k, v, pos, torch.ones_like(pos, dtype=torch.bool) if real is None else real)
        y = local.attend(
            q if scaling is None else q * (scaling * width**0.5),
            keys,
            pos[:, s - t :],
            block=min(BLOCK, reach),
            reach=reach - 1,
            causal=True,
            rule=lambda i, j: (j <= i) & (i - j < reach),
            bias=lambda i, j: None,
            dropout=said.get("dropout") or 0.0,
        )
        return y.transpose(1, 2)

    def mix(self, _: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Hook before the output projection: replace O_base by O."""
        call = self._call
        assert call is not None
        if call.alone == 0:
            return args
        base, *rest = args
        state = None if call.layer is None else call.layer.linear
        q, k, v = self.layout.split([call.outputs[name] for name in self.layout.inputs])
        if call.layer is not None and state is None:
            state = self.branch.init_state(len(k), self.layout.kv_heads, k)
        lin, state = self.read(q, k, v, state)
        if call.layer is not None:
            call.layer.linear = state
        if call.alone == 1:
            return (lin.view(base.shape), *rest)
        weight = self.mag_weight.to(base.dtype)
        heads = (*lin.shape[:2], -1, self.layout.head_dim)
        y = mix(base.view(heads), lin.view(heads), weight, self.mag_shift, cross=self.cross)
        return (y.view(base.shape), *rest)

    def read(
        self, q: Tensor, k: Tensor, v: Tensor, state: LinearState | None
    ) -> tuple[Float[Tensor, "b t d"], LinearState | None]:
        """Output of the linear branch, and its new state."""
        mask = self.padding.last(q.shape[1])
        tokens = local.Aligned.of(Context(torch.zeros(1, q.shape[1], device=q.device).long(), mask))
        split = "b t (h k) -> b h t k"
        q, k, v = (rearrange(tokens.take(x), split, k=self.layout.head_dim) for x in (q, k, v))
        weight = self.linear.norm.weight
        stats = self.stats if self.training else None
        y, state = self.branch(q, k, v, weight, tokens.mask, state, causal=self.causal, stats=stats)
        return tokens.restore(rearrange(y, "b h t k -> b t (h k)")), state


class StatefulLayer:
    """Mixin for classes of cache layers: operations on keys also change the linear state."""

    _layer_type = None  # otherwise transformers registers this class as its default layer
    is_croppable = False
    linear: LinearState | None = None
    alone: float | None = None

    def reorder_cache(self, beam_idx: Tensor) -> None:
        super().reorder_cache(beam_idx)  # type: ignore[misc]
        self._rows(lambda x: x.index_select(0, beam_idx.to(x.device)))

    def batch_repeat_interleave(self, repeats: int) -> None:
        super().batch_repeat_interleave(repeats)  # type: ignore[misc]
        self._rows(lambda x: x.repeat_interleave(repeats, 0))

    def batch_select_indices(self, indices: Tensor) -> None:
        super().batch_select_indices(indices)  # type: ignore[misc]
        self._rows(lambda x: x[indices])

    def reset(self) -> None:
        super().reset()  # type: ignore[misc]
        self.linear = None

    def crop(self, tokens_to_remove: int) -> None:
        """Reject cropping, because the memory cannot forget single tokens.

        Raises:
            ValueError: tokens_to_remove > 0, as in assisted generation.
        """
        if tokens_to_remove:
            raise ValueError("LiZAttention's memory cannot be cropped; generate without assistant")

    def _rows(self, change: Any) -> None:
        if self.linear is not None:
            self.linear = LinearState(*map(change, self.linear))


class BoundedLayer(StatefulLayer):
    """Mixin that also limits keys and values to the last `max_cache` − 1 tokens.

    transformers' sliding layer does not serve: with a window of one it keeps all tokens.
    """

    max_cache: int
    cumulative_length: int
    keys: Tensor
    values: Tensor
    is_initialized: bool

    def update(self, keys: Tensor, values: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(keys, values)  # type: ignore[attr-defined]
        self.cumulative_length += keys.shape[-2]
        if self.keys.numel():
            keys = torch.cat([self.keys, keys], -2)
            values = torch.cat([self.values, values], -2)
        start = max(0, keys.shape[-2] - self.max_cache + 1)
        # Copies, because views would keep the whole prompt in memory.
        self.keys = keys[..., start:, :].clone()
        self.values = values[..., start:, :].clone()
        return keys, values

    def get_seq_length(self) -> int:
        return self.cumulative_length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        kept = min(self.cumulative_length, self.max_cache - 1)
        return kept + query_length, self.cumulative_length - kept

    def get_max_length(self) -> int:
        return self.max_cache


def stateful_layer(
    past: Any, index: int, max_cache: int | None, alone: float | None = None
) -> StatefulLayer:
    """Layer `index` of a cache as `StatefulLayer`; the first call replaces the layer.

    Raises:
        ValueError: a cache of another α, which lacks keys or memory.
    """
    while len(past.layers) <= index:  # transformers creates layers on demand too
        past.layers.append(past.layer_class_to_replicate())
    layer = past.layers[index]
    if isinstance(layer, StatefulLayer):
        if layer.alone != alone:
            raise ValueError("this cache was begun with another α: give a new one")
        return layer
    base: Any = type(layer)
    layer_class = _subclass(base, bounded=max_cache is not None)
    replacement = layer_class.__new__(layer_class)
    replacement.__dict__.update(layer.__dict__)
    if max_cache is not None:
        replacement.max_cache = min(max_cache, getattr(layer, "sliding_window", max_cache))
        replacement.cumulative_length = layer.get_seq_length()
    replacement.alone = alone
    past.layers[index] = replacement
    return replacement


@cache
def _subclass(base: type, *, bounded: bool) -> Any:
    mixin = BoundedLayer if bounded else StatefulLayer
    return type(f"{mixin.__name__}{base.__name__}", (mixin, base), {"_layer_type": None})


class Padding:
    """Padding mask of the current call of the decoder, shared by its layers."""

    mask: Bool[Tensor, "b s"] | None = None

    def read_mask(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Store the padding mask; a forward pre-hook of the decoder.

        Raises:
            ValueError: `attention_mask` is not [batch, tokens], so that padding is unknown.
        """
        mask = argument(module, args, kwargs, "attention_mask")
        if mask is not None and (not torch.is_tensor(mask) or mask.ndim != 2):
            raise ValueError(
                "LiZAttention needs attention_mask as [batch, tokens] or none; static caches,"
                " which expand the mask, are not supported"
            )
        self.mask = None if mask is None or bool(mask.all()) else mask.bool()

    def last(self, tokens: int) -> Bool[Tensor, "b t"] | None:
        """Mask of the last `tokens` tokens, which are those of this call."""
        return None if self.mask is None else self.mask[:, -tokens:]


@dataclass
class Call:
    """Cache layer, hooks and projection outputs of one forward pass of the base attention."""

    layer: StatefulLayer | None
    alone: float | None  # α if it is 0 or 1, in evaluation
    config: Any  # of the attention
    hooks: list[Any] = field(default_factory=list)
    outputs: dict[str, Tensor] = field(default_factory=dict)

    def keep(self, name: str, _: nn.Module, args: Any, out: Tensor) -> None:
        """Store the output of a projection; a forward hook."""
        self.outputs[name] = out


def argument(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], *names: str) -> Any:
    """Argument of a call by one of its names, positional or by keyword; None if it is missing."""
    for name in names:
        if name in kwargs:
            return kwargs[name]
    positional = inspect.signature(module.forward).bind_partial(*args).arguments if args else {}
    return next((positional[name] for name in names if name in positional), None)


def local_mask(
    x: Float[Tensor, "b t d"], layer: Any, mask: Tensor | None, max_cache: int
) -> Tensor | None:
    """Limit the base's mask [b|1 1 t s], bool or added to scores, to the last `max_cache` keys."""
    tokens = x.shape[1]
    seen = 0 if layer is None else layer.get_seq_length()
    keys, start = (tokens, 0) if layer is None else layer.get_mask_sizes(tokens)
    if mask is None and keys <= max_cache and tokens == 1:
        return None
    distance = torch.arange(seen, seen + tokens, device=x.device)[:, None]
    distance = distance - torch.arange(start, start + keys, device=x.device)
    visible = ((distance >= 0) & (distance < max_cache))[None, None]
    if mask is None:
        mask = visible
    elif mask.dtype is torch.bool:
        mask = mask & visible
    else:
        mask = mask.masked_fill(~visible, torch.finfo(mask.dtype).min)
    return mask


def _attention(module: Any, q: Tensor, k: Tensor, v: Tensor, _: Any, **said: Any) -> Any:
    """`GraftedMemory.local`, as transformers calls functions of attention."""
    return module.liza.local(q, k, v, said.pop("scaling", None), **said), None


def register() -> None:
    """Let transformers know the function."""
    from transformers import AttentionInterface

    AttentionInterface.register(LOCAL, _attention)
