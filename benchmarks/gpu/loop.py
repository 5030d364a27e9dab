"""What `run()` adds to a step, on a CPU: waits, loader, callbacks, compiled graphs.

A preset trains a few steps with two narrow layers (TITAN: six), through one validation and the
switches of its schedules. The host waits where it reads a number of the device (`item`, `tolist`,
`bool`, an index by a mask …) or makes a tensor there of its own numbers. A wait is `early` if the
optimiser has not started its update: then the device has nothing to do while the host goes on. What
the loader and the optimiser read is on the host and does not count. Graphs are those that
torch.compile makes of blocks, or of the whole model under `auto`, by the phase in which it makes
them; `later` ones are compilations for nothing.
"""

from __future__ import annotations

import statistics
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from lightning.pytorch.trainer import call
from torch import Tensor
from torch._dynamo.utils import counters
from torch.overrides import TorchFunctionMode

from benchmarks.gpu.steps import Preset, write_text
from chimera.config.compose import compose, plain
from chimera.model.compiled import compile_as
from chimera.train.build import build_data
from chimera.train.run import run

STEPS, EVERY, VALIDATION = 12, 5, 6
#: Steps that are counted: neither the first nor a log step nor followed by a validation.
ORDINARY, LOGGED = (4, 8, 9), 10
NARROW = ["model.dim=64", "model.depth=2", "model.heads=4", "model.max_len=64",
          "data.batch_size=2"]  # fmt: skip
#: TITAN's layers are of six kinds.
SIX = ["model.depth=6", "model.loops=1", "mixer.members.retnet.heads=4"]
KINDS = ("early", "late")
READS = {"item", "tolist", "numpy", "__array__", "cpu", "__bool__", "__float__", "__int__",
         "__index__", "nonzero", "masked_select", "equal", "unique", "bincount",
         "is_nonzero"}  # fmt: skip
MAKES = {"tensor", "as_tensor", "new_tensor"}


class Watch(TorchFunctionMode):
    """Notes who waits, while `on`."""

    def __init__(self) -> None:
        super().__init__()
        self.on = self.updated = False
        self.host: set[int] = set()  # tensors that are on the host with a GPU, too
        self.seen: dict[str, Counter[str]] = {}
        self.start()

    def start(self) -> None:
        """Begin a step."""
        self.seen = {kind: Counter() for kind in KINDS}
        self.updated = False

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        if self.on and not (args and id(args[0]) in self.host):
            by_mask = name == "__getitem__" and _by_mask(args[1])
            if name in READS or by_mask or (name in MAKES and _made_there(name, args, kwargs)):
                self.note("late" if self.updated else "early")
        return func(*args, **(kwargs or {}))

    def note(self, kind: str) -> None:
        """Count under the innermost line of the package."""
        for frame in reversed(traceback.extract_stack()):
            if "/chimera/" in frame.filename:
                self.seen[kind][f"{frame.filename.partition('/chimera/')[2]}:{frame.name}"] += 1
                return
        self.seen[kind]["elsewhere"] += 1


def _by_mask(index: Any) -> bool:
    parts = index if isinstance(index, tuple) else (index,)
    return any(isinstance(part, Tensor) and part.dtype == torch.bool for part in parts)


def _made_there(name: str, args: Any, kwargs: Any) -> bool:
    """Whether numbers of the host become a tensor where another one is."""
    given = args[name == "new_tensor"]
    placed = name == "new_tensor" or (kwargs or {}).get("device") is not None
    return placed and not isinstance(given, Tensor)


class Reads(Watch):
    """What each step of a run reads; in place of Lightning's call of all callbacks."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[dict[str, Counter[str]]] = []

    def __call__(
        self, original: Callable[..., Any], trainer: Any, name: str, *args: Any, **how: Any
    ) -> None:
        if name == "on_train_batch_start":
            optimizer = trainer.optimizers[0]
            if not self.steps:
                optimizer.register_step_post_hook(self.stepped)
            self.start()
            state = optimizer.state.values()
            self.host = {id(x) for s in state for x in s.values() if isinstance(x, Tensor)}
            self.on = True
        original(trainer, name, *args, **how)
        if name == "on_train_batch_end":
            self.on = False
            self.steps.append(self.seen)

    def stepped(self, *_: Any) -> None:
        """The optimiser has started its update."""
        self.updated = True


class Phases:
    """Graphs compiled in each phase, and seconds of the callbacks of each step."""

    def __init__(self) -> None:
        self.graphs: dict[str, int] = {}
        self.seconds: list[float] = []
        self._spent = 0.0

    def __call__(
        self, original: Callable[..., Any], trainer: Any, name: str, *args: Any, **how: Any
    ) -> None:
        began = time.perf_counter()
        original(trainer, name, *args, **how)
        self._spent += time.perf_counter() - began
        if name == "on_train_batch_end":
            self.seconds.append(self._spent)
            self._spent = 0.0
        fitting = trainer.state.fn == "fit" and not trainer.sanity_checking
        if fitting and name in ("on_train_batch_end", "on_validation_batch_end"):
            kind = "training" if "train" in name else "validation"
            new = counters["stats"]["unique_graphs"] - sum(self.graphs.values())
            first = kind not in self.graphs
            phase = kind if first else f"{kind}, later"
            self.graphs[phase] = self.graphs.get(phase, 0) + new


def loop(preset: Preset) -> dict[str, Any]:
    """Waits of a preset's step, its graphs, milliseconds of callbacks and loader."""
    reads = Reads()
    with tempfile.TemporaryDirectory() as folder:
        write_text(Path(folder), 1000, 100_000)
        with reads:
            train(preset, Path(folder), reads)
        graphs = {kind: compiled(preset, Path(folder), kind) for kind in ("true", "auto")}
        ms = loader_ms(preset, Path(folder))
    waits = [{kind: sum(places[kind].values()) for kind in KINDS} for places in reads.steps]
    return {
        "waits": {kind: max(waits[n - 1][kind] for n in ORDINARY) for kind in KINDS},
        "waits_logged": waits[LOGGED - 1],
        "places": {kind: dict(reads.steps[ORDINARY[0] - 1][kind]) for kind in KINDS},
        "graphs": graphs["true"][0],
        "breaks": graphs["true"][1],
        "graphs_auto": graphs["auto"][0],
        "breaks_auto": graphs["auto"][1],
        "callbacks_ms": graphs["true"][2],
        "loader_ms": ms,
    }  # fmt: skip


def compiled(preset: Preset, folder: Path, kind: str) -> tuple[dict[str, int], int, float]:
    """Graphs by phase, breaks, and milliseconds of the callbacks, with `trainer.compile=<kind>`."""
    phases = Phases()
    torch._dynamo.reset()
    counters.clear()
    with (
        patch(
            "chimera.train.trainer.compile_as",
            partial(compile_as, backend="eager", options=None),
        ),
        patch("chimera.model.compiled.AUTOMATIC", ("cpu",)),
    ):
        train(preset, folder, phases, f"trainer.compile={kind}")
    ms = 1e3 * statistics.median(phases.seconds[n - 1] for n in ORDINARY)
    return phases.graphs, sum(counters["graph_break"].values()), ms


def line(preset: Preset, folder: Path) -> list[str]:
    """Command line of a short run of narrow layers."""
    return [
        *preset.words, *NARROW, "logger=none", "data=text", f"data.path={folder}/text.txt",
        f"data.cache_dir={folder}/cache", "tokenizer=bert", f"tokenizer.path={folder}/vocab.txt",
        f"precision={preset.precision}", "trainer.accelerator=cpu", "trainer.progress=none",
        f"trainer.max_steps={STEPS}", f"trainer.log_every_n_steps={EVERY}",
        f"trainer.val_check_interval={VALIDATION}", "trainer.accumulate_grad_batches=1",
        "trainer.limit_val_batches=1", "trainer.limit_test_batches=1",
        "model.gradient_checkpointing=false",
        *SIX * ("preset=titan_bert_ultra" in preset.words),
    ]  # fmt: skip


def train(preset: Preset, folder: Path, watch: Callable[..., None], *more: str) -> None:
    """Run, with `watch` in the place of Lightning's call of all callbacks."""
    hooks = partial(watch, call._call_callback_hooks)
    words = [*line(preset, folder), *more, f"run_dir={folder}/run{len(list(folder.glob('run*')))}"]
    on_gpu = patch("chimera.ops.together.DEVICES", ("cpu",))
    fused = patch("chimera.task.base.UNFUSED", ())
    with on_gpu, fused, patch.object(call, "_call_callback_hooks", hooks):
        run(plain(compose(words)), words)


def loader_ms(preset: Preset, folder: Path, batches: int = 20) -> float:
    """Milliseconds in which the loader makes a batch of the preset's shape, in the main thread."""
    size = [f"data.batch_size={preset.batch}", f"model.max_len={preset.length}"]
    config = plain(compose([*line(preset, folder), *size]))
    data = build_data(config["data"], config["tokenizer"], config["task"], 0)
    taken = []
    batches_of = iter(data.train_dataloader())
    for _ in range(batches):
        began = time.perf_counter()
        if next(batches_of, None) is None:
            break
        taken.append(time.perf_counter() - began)
    return 1e3 * statistics.median(taken[1:])
