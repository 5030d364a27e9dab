"""Count floating-point operations: those of matrix products, as model FLOPs utilisation takes them.

    product [m k] × [k n]: 2·m·k·n        scaled dot products of t queries and s keys: 4·t·s·k
    backward of a product: twice its forward pass              (arXiv 2204.02311, appendix B)

Products are counted where they happen, in recurrences too. What recomputation repeats in the
backward pass is left out: it is no work of the model. All other operations (norms, activations,
quantisers, elementwise recurrences as those of Mamba and sLSTM) count apart, one for each number
that they write.

Run the model on the meta device: shapes alone are computed there, and `Count` keeps the shapes of
each operation, so that a loop over tokens costs microseconds a turn. A kernel of another library
is no operation of torch; on the meta device no such kernel is chosen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

aten = torch.ops.aten


def _product(a: tuple[int, ...], b: tuple[int, ...], *_: Any, **__: Any) -> int:
    return 2 * a[0] * a[1] * b[1]


def _attention(q: tuple[int, ...], k: tuple[int, ...], v: tuple[int, ...]) -> int:
    b, h, t, width = q
    return 2 * b * h * t * k[-2] * (width + v[-1])


def _fused(q: Tensor, k: Tensor, v: Tensor, *_: Any, **__: Any) -> int:
    return _attention(q.shape, k.shape, v.shape)


def _fused_backward(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, *_: Any, **__: Any) -> int:
    return 2 * _attention(q.shape, k.shape, v.shape)


def _int_mm(a: Tensor, b: Tensor, *_: Any, **__: Any) -> int:
    return _product(tuple(a.shape), tuple(b.shape))


#: torch's fused attention on the CPU, and its three kinds on a GPU.
_FUSED = ("flash_attention_for_cpu", "flash_attention", "efficient_attention", "cudnn_attention")
#: Operations that torch's own table lacks, or counts otherwise: it takes what the backward pass of
#: attention computes again for work, and torch 2.11 refuses key heads that several queries share.
_OURS: Mapping[Any, Callable[..., int]] = {
    **{getattr(aten, f"_scaled_dot_product_{name}"): _fused for name in _FUSED},
    **{getattr(aten, f"_scaled_dot_product_{name}_backward"): _fused_backward for name in _FUSED},
    aten._int_mm: _int_mm,
}


class Count(TorchDispatchMode):
    """Counts while it is entered.

    Attributes:
        products: FLOPs of matrix products.
        elementwise: numbers written by all other operations.
        by_label: FLOPs of products by `label` at their time.
        label: of what is counted next.
    """

    def __init__(self) -> None:
        super().__init__()
        self.products = self.elementwise = 0
        self.by_label: Counter[str] = Counter()
        self.label = ""
        self._shapes: dict[Any, Any] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        kind, key, out = _kind(func), None, None
        if kind == "new":
            key = _key(func, args, kwargs)
            out = None if key is None else self._made(key)
        elif kind == "written" and _all_meta(args, kwargs):
            out = kwargs.get("out", args[0] if args else None)  # its numbers matter to nobody
        if out is None:
            out = func(*args, **kwargs)
            if key is not None:
                self._shapes[key] = _spec(out)
        if kind != "view" and not _recomputing():
            self._add(func, args, kwargs, out)
        return out

    def _add(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        packet = func._overloadpacket
        if packet in _OURS:
            flops = _OURS[packet](*args, **kwargs)
        elif packet in flop_registry:
            flops = flop_registry[packet](*args, **kwargs, out_val=out)
        else:
            outputs = out if isinstance(out, (tuple, list)) else (out,)
            self.elementwise += sum(x.numel() for x in outputs if isinstance(x, Tensor))
            return
        self.products += flops
        self.by_label[self.label] += flops

    def _made(self, key: Any) -> Any:
        """New meta tensors as the operation gave them before; None if it was not seen."""
        spec = self._shapes.get(key)
        if spec is None:
            return None
        one, shapes = spec
        made = [torch.empty_strided(*at, dtype=dtype, device="meta") for *at, dtype in shapes]
        return made[0] if one else tuple(made)


class _Kinds(dict[Any, str]):
    """`view`: an alias or another shape; `written`: numbers into an argument; `new`; `other`."""

    def __missing__(self, func: Any) -> str:
        schema = func._schema
        aliases = [r.alias_info for r in schema.returns]
        if torch.Tag.inplace_view in func.tags:
            kind = "view"
        elif schema.is_mutable:
            written = [a for a in aliases if a is not None and a.is_write]
            kind = "written" if len(aliases) == len(written) == 1 else "other"
        elif any(a is not None for a in aliases):
            kind = "view"
        elif aliases and all(str(r.type) == "Tensor" for r in schema.returns):
            kind = "new"
        else:
            kind = "other"
        self[func] = kind
        return kind


_KINDS = _Kinds()


def _kind(func: Any) -> str:
    return _KINDS[func]


def _recomputing() -> bool:
    """Whether an operation of the forward pass is repeated inside the backward pass."""
    return torch._C._current_graph_task_id() != -1 and torch.is_grad_enabled()


def _all_meta(args: Any, kwargs: Any) -> bool:
    given = (*args, *kwargs.values())
    return all(x.is_meta for x in given if isinstance(x, Tensor)) and not any(
        isinstance(x, (list, tuple)) and any(isinstance(y, Tensor) for y in x) for x in given
    )


def _key(func: Any, args: Any, kwargs: Any) -> Any:
    """Hashable description of a call on meta tensors; None if there is none."""
    try:
        key = (
            func,
            tuple(map(_described, args)),
            tuple((k, _described(v)) for k, v in kwargs.items()),
        )
        hash(key)
    except (TypeError, _NotMeta):
        return None
    return key


class _NotMeta(Exception):  # noqa: N818 - ends a description
    pass


def _described(x: Any) -> Any:
    if isinstance(x, Tensor):
        if not x.is_meta:
            raise _NotMeta
        return x.shape, x.stride(), x.dtype
    if isinstance(x, (list, tuple)):
        return tuple(map(_described, x))
    return type(x), x


def _spec(out: Any) -> Any:
    """Whether it is one tensor; shapes, strides and types. None if a result is not meta."""
    outputs = out if isinstance(out, tuple) else (out,)
    if not all(isinstance(x, Tensor) and x.is_meta for x in outputs):
        return None
    return not isinstance(out, tuple), [(x.shape, x.stride(), x.dtype) for x in outputs]
