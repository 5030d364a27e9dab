"""Kernels, bytes, FLOPs and host reads of a training step, counted without a GPU, and its time.

The step is that of `benchmarks.gpu.steps` at full size (forward with hashed dropout, backward,
clipping, update), on fake tensors: nothing is computed. Every operation is a kernel or, where
torch's CUDA code starts several, a few; each reads its inputs and writes its outputs once.

    host  kernels · LAUNCH                                  one Python thread starts them all
    card  Σ max(bytes / bandwidth, FLOPs / rate) + START    of a kernel
    step  the larger of the two

LAUNCH, 25 µs, was fitted to bare steps on an H200 (docs/guide/gpu.md); rates are those of large
copies and products. `benchmarks.gpu.fused` counts what a compiler fuses, `benchmarks.gpu.loop` what
a run adds: waits of the host, its loader and callbacks, graphs that are compiled again.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from benchmarks.gpu.fused import attention, fused, kernels_in
from benchmarks.gpu.job import HALF
from benchmarks.gpu.loop import loop
from benchmarks.gpu.steps import MASKED, PRESETS, Preset
from chimera.callback.state import randomness
from chimera.config.compose import compose, plain
from chimera.ffn import moe
from chimera.model.assemble import unfilled
from chimera.ops import hadamard, scan
from chimera.ops.flops import _OURS, _kind
from chimera.optim.optimizer import build, groups
from chimera.train.build import build_task

FILE = Path(__file__).parent / "results" / "gpu_budget.json"
#: Seconds of the host for a kernel, and of the card to begin and end one.
LAUNCH, START = 25e-6, 1.5e-6
#: Bytes per second and FLOPs per second in half precision, as measured; of float32, float64 and
#: 8 bits, about what data sheets say.
CARDS = {"H100": (3.0e12, 798e12, 52e12, 50e12, 1000e12),
         "H200": (4.3e12, 790e12, 52e12, 50e12, 1000e12)}  # fmt: skip
#: Shares of them that a kernel of a step reaches.
COPY, PRODUCT = 0.85, 0.75
READS = ("_local_scalar_dense", "nonzero", "equal", "is_nonzero", "masked_select")
#: A kernel over many tensors takes so many chunks of so many numbers.
CHUNKS, CHUNK = 320, 65536
#: Operations that start no kernel, beside views.
NONE = {"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "lift_fresh",
        "_unsafe_view", "_reshape_alias", "is_same_size", "prim::device"}  # fmt: skip


class Budget(TorchDispatchMode):
    """Adds up what the operations under it cost; `seconds` of the card by its name."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels = self.reads = 0
        self.update_kernels = 0  # of clipping and the optimiser
        self.bytes = self.flops = 0.0
        self.seconds = dict.fromkeys(CARDS, 0.0)
        self.largest: dict[str, float] = defaultdict(float)  # on an H100

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func._schema.name.removeprefix("aten::")
        if name in READS:
            self.reads += 1
        elif _kind(func) != "view" and name not in NONE:
            self.add(func, name, args, kwargs or {}, out)
        return out

    def add(self, func: Any, name: str, args: Any, kwargs: Any, out: Any) -> None:
        """Count a kernel, or several."""
        given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        made = [x for x in tree_leaves(out) if isinstance(x, Tensor)]
        if not made and func._schema.is_mutable:  # of lists of tensors
            made = [x for x in tree_leaves(args[0]) if isinstance(x, Tensor)]
        if not given + made:
            return
        kernels = kernels_in(name)
        if name.startswith(("_foreach", "_fused_adam")):
            chunks = sum(-(-x.numel() // CHUNK) for x in args[0])
            kernels = max(1, math.ceil(chunks / CHUNKS)) + ("norm" in name)
        written = float(sum(map(held, made)))
        moved = written + sum(map(held, given))
        if name in ("fill_", "zero_"):
            moved = written
        elif name in ("copy_", "embedding", "index_select", "index", "gather"):
            moved = 2 * written
        if name.startswith("_fused_adam"):  # all four of a parameter, of which three are written
            moved = 7 * sum(map(held, args[0]))
        count = _OURS.get(func._overloadpacket) or flop_registry.get(func._overloadpacket)
        flops = 0.0
        if count is not None:
            known = func._overloadpacket in _OURS
            flops = count(*args, **kwargs, **({} if known else {"out_val": out}))
        self.kernels += kernels
        self.bytes += moved
        self.flops += flops
        dtype = (given or made)[0].dtype
        for card in CARDS:
            spent = kernels * START + seconds(card, moved, flops, dtype)
            self.seconds[card] += spent
            self.largest[name] += spent * (card == "H100")


def held(x: Tensor) -> int:
    """Bytes of a tensor that are its own: what `expand` repeats counts once."""
    own = [size for size, stride in zip(x.shape, x.stride(), strict=True) if stride]
    return math.prod(own) * x.element_size()


def seconds(card: str, moved: float, flops: float, dtype: torch.dtype) -> float:
    """The longer of moving the bytes and computing the products."""
    bandwidth, half, single, double, byte = CARDS[card]
    rate = PRODUCT * (half if dtype in HALF.values() else byte if dtype == torch.int8 else single)
    return max(moved / (COPY * bandwidth), flops / (double if dtype == torch.float64 else rate))


def dropout(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """torch's own: one kernel."""
    return torch.native_dropout(x, p, True)[0] if training and p else x


def budget(preset: Preset, *, hashed: bool = True) -> Budget:
    """Count the second step of a preset: the first one makes the optimiser's state.

    Args:
        preset: of the steps.
        hashed: dropout by counters, as in a run; False: torch's, as in a model that is called bare.
    """
    found = Budget()
    with torch.device("meta"), unfilled():
        task = build_task(plain(compose(preset.words)), preset.vocabulary)
    with ExitStack() as stack:
        for owner, name, value in (
            (F, "scaled_dot_product_attention", attention), (F, "dropout", dropout),
            (moe, "SEATED", ("cpu",)), (hadamard, "BY_PRODUCTS", ("cpu",)),
            (scan, "WIDTH_CPU", scan.WIDTH_GPU),
        ):  # fmt: skip
            stack.enter_context(patch.object(owner, name, value))
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        step = step_of(task, preset, hashed=hashed)
        step(Budget())
        found.reads = 0
        step(found)
    return found


def step_of(task: Any, preset: Preset, *, hashed: bool) -> Callable[[Budget], None]:
    """A training step of a task that was built on the meta device, on fake tensors of a CPU."""
    made: dict[int, tuple[Tensor, Tensor]] = {}  # the second keeps the number taken
    for module in task.modules():
        for place in (module._parameters, module._buffers, vars(module)):
            for name, x in list(place.items()):
                if isinstance(x, Tensor):
                    fake = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype)
                    if isinstance(x, nn.Parameter):
                        fake = nn.Parameter(fake, requires_grad=x.requires_grad)
                    place[name] = made.setdefault(id(x), (fake, x))[0]
    model, fused = task.model.train(), preset.precision != "fp16"
    optimizer, _ = build(task.optim, groups(model, task.optim), 1000, fused=fused)
    for group in optimizer.param_groups:
        group["foreach"] = not fused
    shape = preset.batch, preset.length
    ids = torch.zeros(shape, dtype=torch.long)
    masked = torch.zeros(round(MASKED * ids.numel()), dtype=torch.long)
    given = {"index": masked, "targets": masked}
    if "task=causal_lm" in preset.words:
        given = {"targets": ids.flatten()}
    drops = hashed and randomness.drops(model)  # without dropout a run makes no keys
    draws = torch.zeros(preset.batch, dtype=torch.long) if drops else None
    half = torch.autocast("cpu", HALF.get(preset.precision), enabled=preset.precision in HALF)

    def step(counted: Budget) -> None:
        with counted:
            optimizer.zero_grad(set_to_none=True)
            with half:
                out = model(ids, draws=draws, **given)
                loss = task.total_loss(out.loss, out.aux)
            loss.backward()
            before = counted.kernels
            nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
            reads = counted.reads
            optimizer.step()
            counted.update_kernels = counted.kernels - before
            counted.reads = reads  # it reads its numbers of steps, which are on the host

    return step


def row(preset: Preset, *, hashed: bool) -> dict[str, Any]:
    """What a preset's step costs, and the milliseconds that follow."""
    found = budget(preset, hashed=hashed)
    host = 1e3 * found.kernels * LAUNCH
    card = {card: 1e3 * spent for card, spent in found.seconds.items()}
    largest = sorted(found.largest.items(), key=lambda item: -item[1])[:6]
    return {
        "kernels": found.kernels, "update_kernels": found.update_kernels, "reads": found.reads,
        "gb": found.bytes / 1e9, "tflop": found.flops / 1e12, "host_ms": host, "card_ms": card,
        "step_ms": {name: max(host, ms) for name, ms in card.items()},
        "largest_ms": {key: 1e3 * spent for key, spent in largest},
    }  # fmt: skip


def main(*names: str) -> dict[str, Any]:
    """Count presets of the steps; of encoders, which have dropout, also with torch's.

    Args:
        names: of presets; none: all. Rows of others stay as they are in the results.
    """
    kept = json.loads(FILE.read_text(encoding="utf-8"))["rows"] if names else {}
    rows: dict[str, Any] = kept
    for name, preset in PRESETS.items():
        if not preset.words or (names and name not in names):
            continue
        rows[name] = row(preset, hashed=True)
        rows[name]["fused"] = fused(preset, HALF)._asdict()
        rows[name]["loop"] = loop(preset)
        print(name, rows[name], flush=True)
        if "preset" in "".join(preset.words):
            rows[f"{name}, torch's dropout"] = row(preset, hashed=False)
    return {"rows": rows, "launch_seconds": LAUNCH, "cards": CARDS}
