"""Find the attention modules of a Hugging Face model and the layout of their projections (SPEC A4).

Attention modules are recognised by their projections, not by their class: separate projections for
q, k, v and output (Llama, Mistral, Qwen, OLMo, OLMoE, Gemma), or one fused projection for q, k and
v and one for the output (OpenELM, with different heads per layer; Phi, GPT-2).
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from chimera.errors import UserError

SEPARATE = ("q_proj", "k_proj", "v_proj")
FUSED = ("qkv_proj", "c_attn")
OUT = ("o_proj", "out_proj", "c_proj")


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


def sites(model: nn.Module) -> dict[str, Layout]:
    """Layouts of all attention modules, by module name.

    Raises:
        UserError: the model has no attention module, or an unsupported layout.
    """
    layouts = {}
    for name, module in model.named_modules():
        children = dict(module.named_children())
        out = next((o for o in OUT if o in children), None)
        fused = next((f for f in FUSED if f in children), None)
        if out and (fused or set(SEPARATE) <= set(children)):
            layouts[name] = _layout(name, module, (fused,) if fused else SEPARATE, out)
    if not layouts:
        raise UserError(
            f"adapter=liza finds no attention in {type(model).__name__}: it looks for modules with"
            f" {', '.join(SEPARATE)} or {' or '.join(FUSED)}, and {' or '.join(OUT)}"
        )
    return layouts


def decoder(model: nn.Module, names: list[str]) -> nn.Module:
    """Innermost module that contains all named modules and has an argument `attention_mask`.

    Raises:
        UserError: no such module, because the model is not a Hugging Face model.
    """
    candidates = [
        module
        for name, module in model.named_modules()
        if all(n.startswith(f"{name}." if name else "") and n != name for n in names)
        and "attention_mask" in inspect.signature(module.forward).parameters
    ]
    if not candidates:
        raise UserError(
            "adapter=liza grafts onto Hugging Face causal models (model=hf), which take an"
            " attention_mask; for a Chimera model use mixer=liza"
        )
    return candidates[-1]


def _layout(name: str, module: nn.Module, inputs: tuple[str, ...], out: str) -> Layout:
    config = getattr(module, "config", None)
    if len(inputs) == 1:
        heads = _first(module, config, "num_q_heads", "num_heads", "num_attention_heads")
        kv_heads = _first(module, config, "num_k_heads", "num_key_value_heads") or heads
        head_dim = _first(module, config, "head_dim") or _width(module, inputs[0]) // max(
            1, heads + 2 * kv_heads
        )
    else:
        head_dim = _first(module, config, "head_dim")
        if not head_dim:
            heads = _first(module, config, "num_heads", "num_attention_heads")
            head_dim = _width(module, inputs[0]) // max(1, heads)
        heads = _width(module, inputs[0]) // max(1, head_dim)
        kv_heads = _width(module, inputs[1]) // max(1, head_dim)
    width = sum(_width(module, i) for i in inputs)
    if not kv_heads or heads % kv_heads or width != (heads + 2 * kv_heads) * head_dim:
        raise UserError(
            f"adapter=liza does not support {name}: {', '.join(inputs)} have {width} output"
            f" channels, not {heads} + 2·{kv_heads} heads of {head_dim}"
        )
    return Layout(inputs, out, heads, kv_heads, head_dim)


def _width(module: nn.Module, name: str) -> int:
    """Output channels of a projection; GPT-2's Conv1D calls them `nf`."""
    layer = module.get_submodule(name)
    width: Any = getattr(layer, "out_features", None) or getattr(layer, "nf", 0)
    return int(width)


def _first(module: nn.Module, config: object, *names: str) -> int:
    """First integer attribute among `names` of the module or its configuration; 0 if none."""
    for name in names:
        for holder in (module, config):
            value = getattr(holder, name, None)
            if isinstance(value, int):
                return value
    return 0
