"""Add an adapter's updates to linear layers, freeze the model, select other trained parameters.

Globs select layers and modules: `*.q_proj` selects all layers with this name, `blocks.3.*` all
layers of a block. A glob without a match is an error that suggests the nearest name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase

from torch import nn

from chimera.adapter.shared.draws import connect
from chimera.adapter.shared.low_rank import Adapted, LowRank, adapted, substitute, widths
from chimera.contract import FFN, Mixer
from chimera.errors import UserError, nearest
from chimera.ops.four_bit import release

#: Globs for `targets: null`: the first tuple with a match in the model.
DEFAULT_TARGETS = (
    # Queries and values (SAIDL Table 7; arXiv 2106.09685), by their names in Chimera and elsewhere.
    ("*.q_proj", "*.v_proj", "*.query", "*.value", "*.query_proj", "*.value_proj", "*.q_lin",
     "*.v_lin", "*.q", "*.v", "*.qkv_proj", "*.query_key_value", "*.Wqkv", "*.c_attn"),
    ("*.in_proj", "*.out_proj"),  # Mamba's (SAIDL Table 7)
    ("*_proj",),
)  # fmt: skip
#: Globs for `train: null`: heads with random initial weights in fine-tuning.
HEADS = ("*.classifier", "*.score")


def inject(
    model: nn.Module,
    make: Callable[[nn.Module], LowRank],
    targets: list[str] | None,
    train: list[str] | None,
) -> nn.Module:
    """Freeze the model and add an update to each selected layer.

    Args:
        model: changed in place.
        make: function of a layer to its update.
        targets: globs of linear layers; None for `DEFAULT_TARGETS`.
        train: globs of modules and parameters that are trained too; None for a classifier's head.

    Raises:
        UserError: a glob matches nothing, or the model has an adapter already.
    """
    if adapted(model):
        raise UserError("adapter: this model has an adapter already; merge it first")
    layers = choose(model, targets)
    parameters = trainable(model, train)
    model.requires_grad_(False)
    release(parameters, "adapter.train")
    substitute(model, {layer: Adapted(layer, make(layer)) for layer in layers})
    connect(model)
    return model


def linears(model: nn.Module) -> dict[str, nn.Module]:
    """All linear layers that can be adapted, by their first name.

    In Chimera's mixers and ffns these are the layers with a role. Other layers, such as a router,
    may be used without a call of the layer. torch's MultiheadAttention is skipped for this reason.
    """
    names: dict[nn.Module, str] = {}

    def walk(module: nn.Module, prefix: str, in_component: bool) -> None:
        if isinstance(module, nn.MultiheadAttention):
            return
        in_component = in_component or isinstance(module, Mixer | FFN)
        for name, child in module.named_children():
            path = f"{prefix}{name}"
            if widths(child) and (hasattr(child, "role") or not in_component):
                names.setdefault(child, path)
            walk(child, f"{path}.", in_component)

    walk(model, "", False)
    return {name: layer for layer, name in names.items()}


def choose(model: nn.Module, targets: list[str] | None) -> list[nn.Module]:
    """Linear layers that match the globs `targets`."""
    layers = linears(model)
    if targets is None:
        body = {n: m for n, m in layers.items() if getattr(m, "role", "") != "head"}
        for globs in DEFAULT_TARGETS:
            matches = [m for n, m in body.items() if any(fits(n, g) for g in globs)]
            if matches:
                return matches
        if body:
            return list(body.values())
        raise UserError("adapter: this model has no linear layer to adapt; use adapter=none")
    for glob in targets:
        if not any(fits(name, glob) for name in layers):
            raise _unmatched("adapter.targets", "linear layer", glob, layers, model)
    return [m for n, m in layers.items() if any(fits(n, g) for g in targets)]


def trainable(model: nn.Module, train: list[str] | None) -> list[nn.Parameter]:
    """Parameters whose name, or the name of a module around them, matches one of the globs."""
    names = {name: _and_parents(name) for name, _ in model.named_parameters()}
    for glob in train or ():
        if not any(fits(part, glob) for parts in names.values() for part in parts):
            candidates = {part for parts in names.values() for part in parts}
            raise _unmatched("adapter.train", "module or parameter", glob, candidates, model)
    globs = HEADS if train is None else tuple(train)
    return [
        parameter
        for name, parameter in model.named_parameters()
        if any(fits(part, glob) for part in names[name] for glob in globs)
    ]


def fits(name: str, glob: str) -> bool:
    """True if the glob matches the name; `*.q_proj` also matches a top-level `q_proj`."""
    return fnmatchcase(name, glob) or fnmatchcase(f".{name}", glob)


def _and_parents(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:n]) for n in range(1, len(parts) + 1)]


def _unmatched(
    key: str, noun: str, glob: str, candidates: Iterable[str], model: nn.Module
) -> UserError:
    for name, module in model.named_modules():
        if name and fits(name, glob):
            module_class = type(module).__name__
            return UserError(f"{key}: '{glob}' matches {name}, a {module_class}, and no {noun}")
    leaves = sorted({f"*.{name.rpartition('.')[2]}" for name in candidates})
    near = nearest(glob, [*leaves, *candidates])
    return UserError(
        f"{key}: '{glob}' matches no {noun} of this model{near} (it has {', '.join(leaves)})"
    )
