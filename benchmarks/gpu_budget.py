"""Kernels, bytes, FLOPs and host reads of a training step, counted without a GPU, and its time.

The step is a run's at full size (the task's training step with hashed dropout, backward, numbers of
the record, clipping, update), on fake tensors: nothing is computed. Every operation is a kernel or,
where torch's CUDA code starts several, a few; each reads its inputs and writes its outputs once.

Its time is that of `benchmarks.gpu.rates`. `benchmarks.gpu.fused` counts what a compiler fuses,
`benchmarks.gpu.loop` what a run adds: waits of the host, its loader and callbacks, graphs that are
compiled again.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.utils import clip_grad
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks.gpu.fused import as_on_a_gpu, batch_of, fused, kernels_in, products
from benchmarks.gpu.job import HALF
from benchmarks.gpu.loop import loop
from benchmarks.gpu.rates import CARDS, LAUNCH, START, seconds
from benchmarks.gpu.steps import PRESETS, Preset
from chimera.config.compose import compose, plain
from chimera.errors import UserError
from chimera.model.assemble import unfilled
from chimera.ops import together
from chimera.ops.flops import _kind
from chimera.ops.step_numbers import HostCopy
from chimera.optim.optimizer import build, groups
from chimera.task import base
from chimera.task.base import Task
from chimera.task.cost import count
from chimera.train.build import build_task
from chimera.train.record import SHEET

FILE = Path(__file__).parent / "results" / "gpu_budget.json"
READS = ("_local_scalar_dense", "nonzero", "equal", "is_nonzero", "masked_select")
#: What the host starts for two CUDA graphs: both, copies of a batch into their memory, and one copy
#: of a step's numbers.
REPLAYS = 8
#: A kernel over many tensors takes so many chunks of so many numbers.
CHUNKS, CHUNK = 320, 65536
#: Operations that start no kernel, beside views.
NONE = {"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "lift_fresh",
        "_unsafe_view", "_reshape_alias", "is_same_size", "prim::device"}  # fmt: skip


class Budget(TorchDispatchMode):
    """Adds up what the operations under it cost; `seconds` of the card by its name."""

    rest: Budget | None = None  # of what a compiled step leaves outside its graph

    def __init__(self) -> None:
        super().__init__()
        self.kernels = self.reads = 0
        self.bytes = self.flops = 0.0
        self.seconds = dict.fromkeys(CARDS, 0.0)
        self.largest: dict[str, float] = defaultdict(float)  # on an H100

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func._schema.name.removeprefix("aten::")
        if name in READS:
            self.reads += 1
        elif _kind(func) != "view" and name not in NONE:
            for budget in filter(None, (self, self.rest)):
                budget.add(func, name, args, kwargs or {}, out)
        return out

    @contextmanager
    def in_graph(self) -> Iterator[None]:
        """While a compiled step is in its graph."""
        rest = self.rest
        self.rest = None
        yield
        self.rest = rest

    def add(self, func: Any, name: str, args: Any, kwargs: Any, out: Any) -> None:
        """Count a kernel, or several."""
        given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        made = [x for x in tree_leaves(out) if isinstance(x, Tensor)]
        if not made and func._schema.is_mutable:  # of lists of tensors
            made = [x for x in tree_leaves(args[0]) if isinstance(x, Tensor)]
        if not given + made:
            return
        kernels = kernels_in(name)
        if name.startswith(("_foreach", "_amp_foreach", "_fused_adam")):
            chunks = sum(-(-x.numel() // CHUNK) for x in args[0])
            kernels = max(1, math.ceil(chunks / CHUNKS)) + ("norm" in name)
        written = float(sum(map(held, made)))
        moved = written + sum(map(held, given))
        if name in ("fill_", "zero_"):
            moved = written
        elif name in ("copy_", "embedding", "index_select", "index", "gather"):
            moved = 2 * written
        if name.startswith("_fused_adam"):
            # It reads four numbers of a parameter and writes three, or all if it clips.
            moved = (7 if kwargs.get("grad_scale") is None else 8) * sum(map(held, args[0]))
        work, spent, dtype = products(func._overloadpacket, args, kwargs, out)
        self.kernels += kernels
        self.bytes += moved
        self.flops += work
        for card in CARDS:
            time = kernels * START + seconds(card, moved, spent, dtype)
            self.seconds[card] += time
            self.largest[name] += time * (card == "H100")


def held(x: Tensor) -> int:
    """Bytes of a tensor that are its own: what `expand` repeats counts once."""
    own = [size for size, stride in zip(x.shape, x.stride(), strict=True) if stride]
    return math.prod(own) * x.element_size()


def dropout(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """torch's own: one kernel."""
    return torch.native_dropout(x, p, True)[0] if training and p else x


def task_of(preset: Preset) -> Task:
    """At full size, on the meta device."""
    with torch.device("meta"), unfilled():
        return build_task(plain(compose(preset.words)), preset.vocabulary)


def budget(preset: Preset, *, hashed: bool = True) -> Budget:
    """Count the second step of a preset: the first one makes the optimiser's state.

    Args:
        preset: of the steps.
        hashed: dropout by counters, as in a run; False: torch's, as in a model that is called bare.
    """
    found, task = Budget(), task_of(preset)
    with ExitStack() as stack:
        for owner, name, value in (
            (F, "dropout", dropout), (together, "DEVICES", ("cpu",)), (base, "UNFUSED", ()),
            (clip_grad, "_has_foreach_support", lambda *_: True),
            (HostCopy, "tolist", lambda copy: [1.0] * len(copy._numbers)),
        ):  # fmt: skip
            stack.enter_context(patch.object(owner, name, value))
        stack.enter_context(as_on_a_gpu())
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
    optimizer, _ = build(task.optim, groups(task.train().model, task.optim), 1000, fused=True)
    for group in optimizer.param_groups:
        group["foreach"] = False
    batch = batch_of(task, preset) | ({} if hashed else {"draws": None})
    scaler = SimpleNamespace(scale=lambda loss: loss * torch.ones(()))
    plugin = SimpleNamespace(
        scaler=scaler if preset.precision == "fp16" else None, scales_until_update=True
    )
    task._trainer = SimpleNamespace(
        accumulate_grad_batches=1,
        precision_plugin=plugin,
        gradient_clip_algorithm=None,
        callbacks=[],
    )
    half = torch.autocast("cpu", HALF.get(preset.precision), enabled=preset.precision in HALF)

    original = task.outputs

    def step(counted: Budget) -> None:
        def outputs(batch: Any) -> Any:
            with counted.in_graph():
                return original(batch)

        task.outputs = outputs
        counted.rest = Budget()
        with counted:
            optimizer.zero_grad(set_to_none=True)
            with half:
                loss = task.training_step(batch, 0)["loss"]
            with counted.in_graph():
                loss.backward()
            task.configure_gradient_clipping(optimizer, 1.0)
            reads = counted.reads
            optimizer.step()
            counted.reads = reads  # it reads its numbers of steps, which are on the host

    return step


def row(found: Budget) -> dict[str, Any]:
    """What an eager step costs, and the milliseconds that follow."""
    host = 1e3 * found.kernels * LAUNCH
    card = {card: 1e3 * spent for card, spent in found.seconds.items()}
    largest = sorted(found.largest.items(), key=lambda item: -item[1])[:6]
    return {
        "kernels": found.kernels, "reads": found.reads,
        "gb": found.bytes / 1e9, "tflop": found.flops / 1e12, "host_ms": host, "card_ms": card,
        "step_ms": {name: max(host, ms) for name, ms in card.items()},
        "largest_ms": {key: 1e3 * spent for key, spent in largest},
    }  # fmt: skip


def compiled(preset: Preset, eager: Budget) -> dict[str, Any]:
    """What a step costs under `trainer.compile=auto`: its graph, and what is outside of it.

    `mfu_graphs` is that of `trainer.compile=graphs`, if nothing bars it. MFU is that of the model's
    products, as a run counts them, at the data sheet's rate.
    """
    counted = count(task_of(preset), preset.length)
    assert counted is not None
    work = counted.training * preset.length * preset.batch
    graph, rest = fused(preset, HALF), eager.rest
    assert rest is not None
    kernels = graph.kernels + rest.kernels
    card = graph.seconds + rest.seconds["H100"]
    step, sheet = max(kernels * LAUNCH, card), SHEET["H100"][0]
    replayed = max((rest.kernels + REPLAYS) * LAUNCH, card)
    return {
        "kernels": kernels, "kernels_outside": rest.kernels, "breaks": graph.breaks,
        "barred": graph.barred,
        "gb": (graph.bytes + rest.bytes) / 1e9, "gb_outside": rest.bytes / 1e9,
        "host_ms": 1e3 * kernels * LAUNCH, "card_ms": 1e3 * card, "step_ms": 1e3 * step,
        "mfu": work / (step * sheet), "mfu_graphs": work / (replayed * sheet),
    }  # fmt: skip


def main(*words: str) -> dict[str, Any]:
    """Count presets of the steps.

    Args:
        words: names of presets; none: all. `runs` also counts what a run adds and, of encoders, a
            step with torch's dropout; otherwise these stay as they are in the results.
    """
    rows: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))["rows"]
    runs = "runs" in words
    for name in [word for word in words if word != "runs"] or PRESETS:
        preset = PRESETS.get(name)
        if preset is None:
            raise UserError(f"{name} is no preset of {', '.join(PRESETS)}")
        if not preset.words:  # Hugging Face's
            continue
        found = budget(preset)
        known = {"loop": rows[name]["loop"]} if "loop" in rows.get(name, {}) else {}
        rows[name] = row(found) | {"compiled": compiled(preset, found)} | known
        if runs:
            rows[name]["loop"] = loop(preset)
        if runs and "preset" in "".join(preset.words):
            rows[f"{name}, torch's dropout"] = row(budget(preset, hashed=False))
        print(name, json.dumps(rows[name]), flush=True)
    return {"rows": rows, "launch_seconds": LAUNCH, "cards": CARDS}
