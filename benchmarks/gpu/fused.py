"""Kernels and bytes of forward and backward after Inductor's fusion, without a GPU.

The task's outputs are compiled up to the scheduler, with its rules for Triton on an H100 and the
settings of `trainer.compile=auto`; no code is made and nothing is computed: each graph returns
tensors of the right shapes. Two depths are counted, one and two rounds of the layers' pattern, and
the other layers added as the difference: fusion stops at products, so equal blocks fuse alike. A
second pass through the same layers is counted likewise. Attention is one kernel, as on a GPU
(`attention`). Views, and the parts of a kernel's result, are none.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._dynamo.utils import counters, detect_fake_mode
from torch._functorch.aot_autograd import make_boxed_func
from torch._inductor import compile_fx, ir, scheduler
from torch._inductor import config as inductor
from torch._inductor.codegen.common import get_scheduling_for_device
from torch._inductor.debug import DebugContext
from torch._inductor.dependencies import MemoryDep, StarDep
from torch._inductor.graph import GraphLowering
from torch._inductor.lowering import fallback_handler, lowerings
from torch._inductor.runtime.hints import DeviceProperties
from torch._inductor.scheduler import (
    BaseSchedulerNode,
    ForeachKernelSchedulerNode,
    FusedMixOrderReductions,
    MixOrderReduction,
    NopKernelSchedulerNode,
    Scheduler,
)
from torch._inductor.utils import get_first_incompatible_cudagraph_node
from torch._inductor.virtualized import V
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.flop_counter import flop_registry, register_flop_formula

from benchmarks.gpu.rates import START, seconds
from benchmarks.gpu.steps import Preset
from chimera.callback.state import randomness
from chimera.config.compose import compose, plain
from chimera.model import graph_pass
from chimera.model.compiled import fusion
from chimera.ops import conv, recurrence, rotated, scan
from chimera.ops.flops import _OURS, _kind
from chimera.task.base import Task
from chimera.train.build import build_task

#: Operations for which CUDA starts several kernels.
SEVERAL = {"native_layer_norm_backward": 3, "_fused_rms_norm_backward": 3, "sort": 4,
           "embedding_dense_backward": 8}  # fmt: skip

#: Recurrences take factors in TF32, which has half the rate of half precision.
TF32 = {torch.ops.chimera.recurrence, torch.ops.chimera.recurrence_backward}
#: A rotation is no work of the model; as a product it takes its time.
ROTATIONS = {torch.ops.chimera.rotated_peaks, torch.ops.chimera.rotated_grid,
             torch.ops.chimera.half_product}  # fmt: skip


class Fused(NamedTuple):
    """Kernels, bytes, seconds of an H100, and breaks of the graph, of forward and backward.

    `barred` says what would keep Inductor from making CUDA graphs of them.
    """

    kernels: float
    bytes: float
    seconds: float
    breaks: int
    barred: list[str]


#: By which Inductor decides whether to split a reduction.
H100 = DeviceProperties("cuda", 0, 132, 90, 9, 65536, 2048, 1024, 32)
#: Reductions over more numbers, and results with more, are kernels of their own.
LONG, LARGE = 2048, 51_200_000


def fused(preset: Preset, half: dict[str, torch.dtype]) -> Fused:
    """Count a preset's forward and backward at full width, its depth extrapolated."""
    config = plain(compose(preset.words))
    rounds = 6 if "preset=titan_bert_ultra" in preset.words else 1
    depth, more = config["model"]["depth"] / rounds, config["model"]["loops"] - 1
    one, two = (_counted(preset, half, layers) for layers in (rounds, 2 * rounds))
    again = _counted(preset, half, rounds, loops=2) if more else one
    whole = [
        a + (depth - 1) * (b - a) + more * depth * (c - a)
        for a, b, c in zip(one[:3], two[:3], again[:3], strict=True)
    ]
    breaks, barred = max(two.breaks, again.breaks), sorted({*two.barred, *again.barred})
    return Fused(whole[0], whole[1], whole[2], breaks, barred)


def _counted(preset: Preset, half: dict[str, torch.dtype], depth: int, loops: int = 1) -> Fused:
    """Count a model of so many layers, and passes through them."""
    found: list[tuple[float, ...]] = []
    barred: list[str] = []

    def lowered(gm: torch.fx.GraphModule, inputs: Any, **how: Any) -> Any:
        found.append(_lower(gm, inputs, how, barred))
        return make_boxed_func(_hollow(gm))

    def backend(gm: torch.fx.GraphModule, inputs: Any) -> Any:
        return compile_fx.compile_fx(gm, inputs, inner_compile=lowered)

    torch._dynamo.reset()
    counters.clear()
    words = [*preset.words, f"model.depth={depth}", f"model.loops={loops}"]
    task: Any = build_task(plain(compose(words)), preset.vocabulary).train()
    with (
        inductor.patch({"cpu_backend": "triton", "fx_graph_cache": False, **fusion()}),
        rules_of_a_gpu(),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        task.outputs = torch.compile(task.outputs, backend=backend)
        batch = batch_of(task, preset)
        low = torch.autocast("cpu", half.get(preset.precision), enabled=preset.precision in half)
        with as_on_a_gpu():
            with low:
                loss = task.training_step(batch, 0)["loss"]
            loss.backward()
    kernels, moved, spent = (float(sum(column)) for column in zip(*found, strict=True))
    return Fused(kernels, moved, spent, sum(counters["graph_break"].values()), barred)


@contextmanager
def rules_of_a_gpu() -> Iterator[None]:
    """Inductor fuses, orders loops and splits reductions as on an H100."""

    def backend(given: Scheduler, device: torch.device) -> Any:
        V.graph.add_device_info(device)
        return get_scheduling_for_device(device.type)(given)  # type: ignore[misc]

    def no(*_: Any) -> bool:
        return False

    def yes(*_: Any) -> bool:
        return True

    with ExitStack() as stack:
        for owner, name, value in (
            (ForeachKernelSchedulerNode, "group_nodes_for_combo_kernels", independent),
            (ir, "is_cpu", no), (BaseSchedulerNode, "is_cpu", no), (ir, "is_gpu", yes),
            (BaseSchedulerNode, "is_gpu", yes), (scheduler, "is_gpu", yes),
            (scheduler, "_is_gpu_triton_backend", yes), (Scheduler, "create_backend", backend),
            (graph_pass, "DEVICES", ("cpu",)),
            (ir, "DeviceProperties", SimpleNamespace(create=lambda _: H100)),
        ):  # fmt: skip
            stack.enter_context(patch.object(owner, name, value))
        wide = torch.ops.aten.mm.dtype  # which Inductor lowers for devices that have it
        stack.enter_context(patch.dict(lowerings, {wide: fallback_handler(wide, False)}))
        yield


@contextmanager
def as_on_a_gpu() -> Iterator[None]:
    """Attention is one kernel, and our own kernels serve."""
    with ExitStack() as stack:
        stack.enter_context(patch.object(F, "scaled_dot_product_attention", attention))
        stack.enter_context(patch.object(scan, "WIDTH_CPU", scan.WIDTH_GPU))
        for module in (conv, recurrence, rotated, scan):
            stack.enter_context(patch.object(module, "sound", lambda *_: True))
        yield


def batch_of(task: Task, preset: Preset) -> dict[str, Any]:
    """A batch of the preset, with keys of dropout where a run makes them."""
    batch = task.training_batch(preset.batch, preset.length, torch.device("cpu"))
    return batch if randomness.drops(task) else batch | {"draws": None}


def _lower(
    gm: torch.fx.GraphModule, inputs: Any, how: dict[str, Any], barred: list[str]
) -> tuple[float, ...]:
    """Kernels, bytes and seconds of one graph, as Inductor would compile it.

    Args:
        gm, inputs, how: of `compile_fx_inner`.
        barred: gets what Inductor makes no CUDA graph of, beside devices.
    """
    mode: Any = detect_fake_mode(inputs)
    inference = bool(how.get("is_inference"))
    module = torch.fx.GraphModule(gm, copy.deepcopy(gm.graph))
    with V.set_fake_mode(mode):
        compile_fx.view_to_reshape(module)
        compile_fx.fake_tensor_prop(module, inputs)
        compile_fx.record_original_output_strides(module)
        compile_fx._recursive_post_grad_passes(module, is_inference=inference)
        graph = GraphLowering(
            module,
            example_inputs=inputs,
            shape_env=mode.shape_env,
            is_inference=inference,
            is_backward=bool(how.get("is_backward")),
        )
        with V.set_graph_handler(graph), V.set_debug_handler(DebugContext()):
            graph.run(*inputs)
            graph._update_scheduler()
            counted = [(kernels_of(node), node) for node in graph.scheduler.nodes]
            moved = [(k, moved_by(n), n.node) for k, n in counted if k]
    if unsafe := get_first_incompatible_cudagraph_node(gm):
        barred.append(str(unsafe.target))
    own = {*how.get("static_input_idxs", ())}  # weights and buffers
    barred += [f"writes input {place}" for place in graph.mutated_input_idxs if place not in own]
    spent = sum(k * START + seconds("H100", size, *product(made)) for k, size, made in moved)
    return sum(k for k, *_ in moved), sum(size for _, size, _ in moved), spent


def moved_by(node: BaseSchedulerNode) -> int:
    """Bytes that a node reads and writes; of a tensor of which it reads slices, those alone."""
    if isinstance(node, ForeachKernelSchedulerNode):  # each part reads its own
        return sum(map(moved_by, node.snodes))
    slices: dict[str, int] = {}
    for x in tree_leaves(getattr(node.node, "inputs", ())):
        if isinstance(x, ir.ReinterpretView):
            layout: Any = x.get_layout()
            own = [n for n, step in zip(layout.size, layout.stride, strict=True) if step]
            size = math.prod(own) * x.get_dtype().itemsize
            slices[x.get_name()] = slices.get(x.get_name(), 0) + size
    whole = {name: V.graph.get_buffer(name).get_layout().storage_size() for name in slices}
    sizes = {name: n * V.graph.get_dtype(name).itemsize for name, n in whole.items()}
    left_out = sum(max(0, sizes[name] - read) for name, read in slices.items())
    return int(sum(_touched(node).values()) - left_out)


def _touched(node: BaseSchedulerNode) -> dict[str, int]:
    """Bytes of each buffer that a node's loops reach; Inductor counts all of it for fused nodes."""
    found = node.get_read_write_buffer_accesses(include_reads=True, include_writes=True)
    reached: dict[str, float] = dict.fromkeys(found, 0)
    for dep in node.read_writes.reads_and_writes():
        if dep.name in found:
            size = math.inf
            if isinstance(dep, StarDep) and dep.mode == "atomic_add":
                size = float(2 * _added(node, dep) * V.graph.get_dtype(dep.name).itemsize)
            elif isinstance(dep, MemoryDep):  # an indirect index reaches one entry an iteration
                rounds = math.prod(dep.size) if dep.is_indirect() else dep.get_numel()
                size = float(rounds * V.graph.get_dtype(dep.name).itemsize)
            reached[dep.name] += size
    return {name: int(min(size, reached[name])) for name, size in found.items()}


def _added(node: BaseSchedulerNode, dep: StarDep) -> int:
    """Numbers that a node's loops add to a buffer."""
    groups: Any = [part.group[-1] for part in node.get_nodes() if dep in part.read_writes.reads]
    return int(max(map(math.prod, groups)))


def product(made: Any) -> tuple[float, torch.dtype]:
    """FLOPs and type of the matrix product that makes a buffer; 0 where none does."""
    origin = made.get_origin_node() if isinstance(made, ir.ExternKernel) else None
    packet = getattr(getattr(origin, "target", None), "overloadpacket", None)
    if origin is None or packet is None:
        return 0.0, torch.float32
    given = (origin.args, origin.kwargs)
    args, kwargs = tree_map_only(torch.fx.Node, lambda node: node.meta["val"], given)
    return products(packet, args, kwargs, origin.meta["val"])[1:]


def products(packet: Any, args: Any, kwargs: Any, out: Any) -> tuple[float, float, torch.dtype]:
    """FLOPs of an operation's products, as many as take its time, and the type of their factors."""
    first = next((x for x in tree_leaves((args, out)) if isinstance(x, Tensor)), torch.empty(0))
    if packet in ROTATIONS:
        parts = 3 if first.dtype == torch.float32 else 1
        return 0.0, 2.0 * first.numel() * args[1].shape[1] * parts, torch.bfloat16
    formula = _OURS.get(packet) or flop_registry.get(packet)
    if formula is None:
        return 0.0, 0.0, first.dtype
    work = formula(*args, **kwargs, **({} if packet in _OURS else {"out_val": out}))
    return (work, 2 * work, torch.bfloat16) if packet in TF32 else (work, work, first.dtype)


@register_flop_formula(torch.ops.chimera.recurrence, get_raw=True)
def recurrence_flops(
    q: Tensor, k: Tensor, v: Tensor, beta: Any, g: Tensor, skip: Any, rule: bool, *_: Any,
    **__: Any,
) -> int:  # fmt: skip
    """Products with queries, keys and the state, in chunks of c tokens; not the inverse."""
    c, k_dim, v_dim = g.shape[-1], q.shape[-1], v.shape[-1]
    per_token = c * (k_dim + v_dim) + 2 * k_dim * v_dim
    if rule:
        per_token += c * (k_dim + v_dim) + k_dim * v_dim
    return 2 * per_token * v.shape[:3].numel()


@register_flop_formula(torch.ops.chimera.recurrence_backward, get_raw=True)
def recurrence_backward_flops(do: Tensor, *args: Any, **_: Any) -> int:
    """Twice the forward pass; what is computed again is no work of the model."""
    q, k, v, beta, g, skip, _, rule = args
    return 2 * recurrence_flops(q, k, v, beta, g, skip, rule)


def independent(given: Scheduler) -> list[list[BaseSchedulerNode]]:
    """Nodes that may be one kernel; Inductor's function leaves out those of a CPU."""
    most = inductor.combo_kernel_max_num_nodes
    mixed = [node for node in given.nodes if isinstance(node, FusedMixOrderReductions)]
    made = {name for node in mixed for name in node.get_buffer_names()}
    levels = [
        [node for node in nodes if not made & node.used_buffer_names()]
        for nodes in given._topological_sort_nodes()
    ]
    return [nodes[i : i + most] for nodes in levels for i in range(0, len(nodes), most)]


def kernels_of(node: BaseSchedulerNode) -> int:
    """Kernels that a node of the scheduler starts on a GPU."""
    made = node.node
    if isinstance(node, NopKernelSchedulerNode) or isinstance(made, ir.MultiOutput):
        return 0
    if isinstance(node, FusedMixOrderReductions):  # and sums of its parts, unless nodes do them
        split = MixOrderReduction.is_split_reduction(node.node2)
        return 1 if split else 1 + sum(part.is_reduction() for part in node.node2.get_nodes())
    if isinstance(node, ForeachKernelSchedulerNode):
        return len({_apart(part) for part in node.snodes})
    operation = getattr(made, "op_overload", None)
    if not isinstance(operation, torch._ops.OpOverload):
        return 1
    if _kind(operation) == "view":
        return 0
    return kernels_in(operation._schema.name.removeprefix("aten::"))


def _apart(node: BaseSchedulerNode) -> object:
    """Of independent nodes, those with the same are one kernel (Inductor's rule, without tiles)."""
    sizes: Any = node.group[-1]
    size, reduced = sizes
    if node.is_reduction():
        return "long" if reduced > LONG else "short"
    return node.get_name() if size > LARGE else "pointwise"


def kernels_in(name: str) -> int:
    """Kernels that CUDA starts for an operation of torch that is not fused."""
    return SEVERAL.get(name, 3 if "attention_backward" in name else 1)


def attention(
    q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    """One fused kernel in the precision of autocast, as on a GPU."""
    dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else q.dtype
    repeats = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(repeats, 1) if repeats > 1 else x for x in (k, v))
    fused = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    parts = [x.to(dtype) for x in (q, k, v)]
    found: Tensor = fused(*parts, 0.0, is_causal, attn_mask=attn_mask, scale=scale)[0]
    return found


def _hollow(gm: torch.fx.GraphModule) -> Callable[..., Any]:
    """A function with the graph's outputs, whose numbers are whatever memory holds."""
    (outputs,) = next(n for n in gm.graph.nodes if n.op == "output").args

    def make(*_: Any) -> list[Any]:
        values = [getattr(node, "meta", {}).get("val") for node in outputs]
        return [
            torch.empty_strided(v.shape, v.stride(), dtype=v.dtype) if isinstance(v, Tensor) else v
            for v in values
        ]

    return make
