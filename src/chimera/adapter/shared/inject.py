"""Put an adapter's updates beside chosen layers, and choose what stays trainable.

Layers and modules are chosen by glob: `*.q_proj` is every layer of that name, `blocks.3.*` all of a
block. A glob that matches nothing is an error that names the nearest spelling.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase

from torch import nn

from chimera.adapter.shared.low_rank import Adapted, LowRank, adapted, substitute, widths
from chimera.contract import FFN, Mixer
from chimera.errors import UserError, nearest

#: The globs of `targets: null`: the first of these families that matches any layer of the model.
USUAL = (
    # Queries and values (SAIDL Table 7; arXiv 2106.09685), as our own and other models name them.
    ("*.q_proj", "*.v_proj", "*.query", "*.value", "*.query_proj", "*.value_proj", "*.q_lin",
     "*.v_lin", "*.q", "*.v", "*.qkv_proj", "*.query_key_value", "*.Wqkv", "*.c_attn"),
    ("*.in_proj", "*.out_proj"),  # Mamba's (SAIDL Table 7)
    ("*_proj",),
)  # fmt: skip
#: The globs of `train: null`: heads that fine-tuning trains from random weights.
HEADS = ("*.classifier", "*.score")


def inject(
    model: nn.Module,
    make: Callable[[nn.Module], LowRank],
    targets: list[str] | None,
    train: list[str] | None,
) -> nn.Module:
    """Freeze the model and put an update beside each chosen layer.

    Args:
        model: changed in place.
        make: makes the update of a layer.
        targets: globs of linear layers; None for the usual ones.
        train: globs of modules and parameters that are trained as well; None for a classifier's.

    Raises:
        UserError: a glob matches nothing, or there is an adapter already.
    """
    if adapted(model):
        raise UserError("adapter: this model has one already; merge it first")
    chosen = choose(model, targets)
    kept = trainable(model, train)
    model.requires_grad_(False)
    for parameter in kept:
        parameter.requires_grad_(True)
    substitute(model, {layer: Adapted(layer, make(layer)) for layer in chosen})
    return model


def linears(model: nn.Module) -> dict[str, nn.Module]:
    """Every layer that can be adapted, by its first name.

    Inside a mixer or ffn of ours these are the layers with a role: a layer that the part makes
    itself, such as a router, may be used in other ways than by calling it. MultiheadAttention uses
    its own in such ways.
    """
    names: dict[nn.Module, str] = {}

    def walk(module: nn.Module, path: str, own: bool) -> None:
        if isinstance(module, nn.MultiheadAttention):
            return
        own = own or isinstance(module, Mixer | FFN)
        for name, child in module.named_children():
            here = f"{path}{name}"
            if widths(child) and (hasattr(child, "role") or not own):
                names.setdefault(child, here)
            walk(child, f"{here}.", own)

    walk(model, "", False)
    return {name: layer for layer, name in names.items()}


def choose(model: nn.Module, targets: list[str] | None) -> list[nn.Module]:
    """The layers that the globs name."""
    known = linears(model)
    if targets is None:
        body = {n: m for n, m in known.items() if getattr(m, "role", "") != "head"}
        for family in USUAL:
            usual = [m for n, m in body.items() if any(fits(n, g) for g in family)]
            if usual:
                return usual
        if body:
            return list(body.values())
        raise UserError("adapter: this model has no linear layer that could be adapted")
    for glob in targets:
        if not any(fits(name, glob) for name in known):
            raise _unmatched("adapter.targets", "linear layer", glob, known, model)
    return [m for n, m in known.items() if any(fits(n, g) for g in targets)]


def trainable(model: nn.Module, train: list[str] | None) -> list[nn.Parameter]:
    """The parameters that the globs name, by their own name or by that of a module they are in."""
    names = {name: _and_parents(name) for name, _ in model.named_parameters()}
    for glob in train or ():
        if not any(fits(part, glob) for parts in names.values() for part in parts):
            every = {part for parts in names.values() for part in parts}
            raise _unmatched("adapter.train", "module or parameter", glob, every, model)
    globs = HEADS if train is None else tuple(train)
    return [
        parameter
        for name, parameter in model.named_parameters()
        if any(fits(part, glob) for part in names[name] for glob in globs)
    ]


def fits(name: str, glob: str) -> bool:
    """Whether a glob matches; `*.q_proj` matches a `q_proj` at the very top, too."""
    return fnmatchcase(name, glob) or fnmatchcase(f".{name}", glob)


def _and_parents(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:n]) for n in range(1, len(parts) + 1)]


def _unmatched(key: str, what: str, glob: str, known: Iterable[str], model: nn.Module) -> UserError:
    for name, module in model.named_modules():
        if name and fits(name, glob):
            kind = type(module).__name__
            return UserError(f"{key}: '{glob}' matches {name}, a {kind}, and no {what}")
    leaves = sorted({f"*.{name.rpartition('.')[2]}" for name in known})
    near = nearest(glob, [*leaves, *known])
    return UserError(
        f"{key}: '{glob}' matches no {what} of this model{near} (it has {', '.join(leaves)})"
    )
