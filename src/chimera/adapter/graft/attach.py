"""Add the linear memory of LiZAttention to every attention of a model (SPEC A4; TPTT 3.4).

Attention modules are recognised by their projections, not by their class: separate projections for
q, k, v and output (Llama, Mistral, Qwen, OLMo, OLMoE, Gemma), or one fused projection for q, k and
v and one for the output (OpenELM, with different heads per layer; Phi, GPT-2).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Literal

from torch import nn

from chimera.adapter.graft.memory import GraftedMemory, Layout, Padding, register
from chimera.errors import UserError
from chimera.ops.four_bit import release
from chimera.ops.precision import wide

SEPARATE = ("q_proj", "k_proj", "v_proj")
FUSED = ("qkv_proj", "c_attn")
OUT = ("o_proj", "out_proj", "c_proj")


def attach(
    model: nn.Module,
    *,
    inner: Callable[[nn.Module], nn.Module],
    train: Literal["inner", "projections"],
    **options: Any,
) -> nn.Module:
    """Add a memory to every attention of a Hugging Face causal model.

    Args:
        model: frozen and changed in place.
        inner: adapter that selects the trained parameters, with train=inner.
        train: `projections` trains the base's q, k, v and o projections instead of `inner`.
        options: max_cache, mag, mag_weight, mag_learn and those of the branch; see `GraftedMemory`.

    Raises:
        UserError: the model has no supported attention or has a memory already, or options
            contradict each other.
    """
    layouts = sites(model)
    if any(hasattr(model.get_submodule(name), "liza") for name in layouts):
        raise UserError("adapter=liza: the model has LiZAttention already")
    top = decoder(model, list(layouts))
    register()
    padding = Padding()
    projections = []
    for name, layout in layouts.items():
        attention = model.get_submodule(name)
        if not isinstance(getattr(attention, "layer_idx", None), int):
            raise UserError(
                f"adapter=liza does not support {type(attention).__name__} of {name}: it has no"
                " layer number (layer_idx), by which a cache holds its memory"
            )
        causal = bool(getattr(attention, "is_causal", True))  # the model is, as a whole
        try:
            memory = GraftedMemory(layout, padding, causal=causal, **options)
        except ValueError as error:
            raise UserError(f"adapter=liza on {name}: {error}") from error
        layers = [attention.get_submodule(part) for part in layout.names]
        projections += [p for layer in layers for p in layer.parameters()]
        like = projections[-1]
        memory.to(like.device, wide(like))
        memory.attach(attention)
    top.register_forward_pre_hook(padding.read_mask, with_kwargs=True)
    model.requires_grad_(False)
    if train == "inner":
        model = inner(model)
    shifts = [p for name, p in model.named_parameters() if name.endswith(".mag_shift")]
    release(shifts if train == "inner" else [*shifts, *projections], f"adapter.train={train}")
    return model


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
