"""Linear memory that LiZAttention adds to a pretrained attention module (SPEC A4, M12).

    O = (1−α) O_base + α O_lin (+ (1−α) O_base ⊙ α O_lin)                       (TPTT eq. 7-8)

The base attention runs unchanged, with its weights, positions, masks and cache. Hooks read the
outputs q, k and v of its projections for the linear branch (before norms and rotation; clipped if
the model clips in place). A hook replaces the input O_base of the output projection by O; with
α = 0 the values are equal, bit for bit. Each call looks up projections by name, so that an adapter
may wrap them before or after the graft.

x [b t d]; q [b t h·k], k and v [b t g·k]; O [b t h·k].
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from chimera.adapter.graft.cache import stateful_layer
from chimera.adapter.graft.calls import Call, OutputHook, Padding, argument, local_mask
from chimera.adapter.graft.sites import Layout
from chimera.contract import Context
from chimera.ops import local
from chimera.ops.liza import LinearBranch, LinearState


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
        branch: options of `ops.liza.LinearBranch` except the head width.
    """

    component = "attention"

    def __init__(
        self,
        layout: Layout,
        padding: Padding,
        *,
        max_cache: int | None,
        causal: bool,
        mag: Literal["additive", "cross_gate"],
        mag_weight: float,
        branch: dict[str, Any],
    ) -> None:
        super().__init__()
        self.layout = layout
        self.padding = padding
        self.max_cache = max_cache
        self.causal = causal
        self.cross = mag == "cross_gate"
        self.options = {"mag": mag, "mag_weight": mag_weight, "max_cache": max_cache, **branch}
        self.branch = LinearBranch(head_dim=layout.head_dim, **branch)
        self.linear: Any = nn.ModuleDict({"norm": nn.RMSNorm(layout.head_dim)})
        self.mag_weight: Tensor
        self.register_buffer("mag_weight", torch.tensor(float(mag_weight)))
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
        attention.register_forward_pre_hook(self.begin, with_kwargs=True)
        attention.register_forward_hook(self.end, always_call=True)

    def begin(
        self, attention: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Hook before the base attention: hook its projections, limit its mask to `max_cache`."""
        past = argument(attention, args, kwargs, "past_key_values", "past_key_value")
        index: Any = attention.layer_idx
        layer = None if past is None else stateful_layer(past, index, self.max_cache)
        self._call = call = Call(layer)
        for name in self.layout.inputs:
            hook = OutputHook(call.outputs, name)
            call.hooks.append(attention.get_submodule(name).register_forward_hook(hook))
        out = attention.get_submodule(self.layout.out)
        call.hooks.append(out.register_forward_pre_hook(self.mix))
        if self.max_cache is not None:
            x = argument(attention, args, kwargs, "hidden_states")
            mask = local_mask(
                x, layer, argument(attention, args, kwargs, "attention_mask"), self.max_cache
            )
            kwargs = {**kwargs, "attention_mask": mask}
        return args, kwargs

    def end(self, attention: nn.Module, args: tuple[Any, ...], out: Any) -> None:
        """Hook after the base attention, also after an error: remove the hooks of this call."""
        call = self._call
        self._call = None
        for hook in call.hooks if call else ():
            hook.remove()

    def mix(self, _: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Hook before the output projection: replace O_base by O."""
        call = self._call
        assert call is not None
        base, *rest = args
        state = None if call.layer is None else call.layer.linear
        q, k, v = self.layout.split([call.outputs[name] for name in self.layout.inputs])
        if call.layer is not None and state is None:
            state = self.branch.init_state(len(k), self.layout.kv_heads, k)
        lin, state = self.read(q, k, v, state)
        if call.layer is not None:
            call.layer.linear = state
        weight = self.mag_weight.to(base.dtype)
        base, lin = (1 - weight) * base, weight * lin.view(base.shape)
        return (base + lin + base * lin if self.cross else base + lin, *rest)

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
