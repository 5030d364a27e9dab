"""Newer mixers: new files, largest error to the oracle in each form, size of the decode state.

    python -m tests.mixer.errors            the table of docs/newer-mixers.md
    python -m tests.mixer.errors kda mla    some rows

A layer 32 wide in float64 reads 70 tokens (chunks have 64): in one pass, in pieces of 33, 4 and 33,
and token by token. A cell is the largest difference of outputs / of gradients of all parameters and
of the input, for a loss that weights outputs by normal numbers with a mean of squares of 1 / their
number. The oracle is the function of the mixer's test file that computes the paper's equations. The
difference to transformers is what the tests find, in the tests' order; there recurrences and norms
are in float32. New files are those that no older mixer uses, and no row above.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.parts import Alone, composite
from torch import Tensor

from chimera.contract import Ctx
from chimera.contract_tests.zoo import config, names
from tests.house.imports import arrows
from tests.kit import ctx, grads, in_pieces
from tests.mixer.recurrent import tensors

TOKENS, WIDTH = 70, 32
#: Function of `tests/mixer/test_<name>.py` that computes a layer by its equations, and what it is
#: given beside the mixer and x.
ORACLES: dict[str, tuple[str, tuple[float, ...]]] = {
    "gated_delta": ("by_token", ()),
    "mamba2": ("by_token", ()),
    "gla": ("by_token", ()),
    "hgrn2": ("by_token", (1 / 6,)),  # the lower bound of its layer
    "kda": ("by_token", ()),
    "rwkv7": ("by_token", ()),
    "differential": ("by_hand", ()),
    "forgetting": ("by_hand", ()),
    "mla": ("by_equations", ()),
    "gated_attention": ("by_equation", ()),
    "ttt_linear": ("by_token", ()),
    "log_linear": ("by_token", ()),
    "path": ("by_definition", ()),
    "mesa": ("by_token", ()),
    "hyena": ("by_sum", ()),
}
#: Lists of layers and of parallel members: they compute nothing of their own.
COMPOSED = ("qwen3_next", "kimi_linear", "mamba2_hybrid", "modernbert", "gemma3", "hymba")
#: Tests that compare with transformers, by the row that they are shown in.
SECOND = {
    **{name: f"test_{name}.py" for name in ("gated_delta", "mamba2", "kda", "differential", "mla")},
    "qwen3_next": "../model/test_from_hf.py::test_logits_are_those_of_transformers[qwen3_next]",
}
FORMS: dict[str, tuple[int, ...]] = {
    "one pass": (),
    "pieces": (33, 4, 33),
    "token by token": (1,) * TOKENS,
}
HEADS = ["mixer", "new beside its two files", *FORMS, "transformers", "bytes of state"]


def errors(name: str) -> dict[str, tuple[float, float]]:
    """Largest difference of outputs and of gradients, in each form."""
    module = importlib.import_module(f"tests.mixer.test_{name}")
    oracle, more = ORACLES[name]
    mixer = module.build()
    x = torch.randn(2, TOKENS, WIDTH, dtype=torch.float64, requires_grad=True)
    over = [x, *mixer.parameters()]
    want = getattr(module, oracle)(mixer, x, *more)
    weight = torch.randn_like(want) / want.numel() ** 0.5
    slopes = grads((want * weight).sum(), over)
    found = {}
    for form, widths in FORMS.items():
        y = in_pieces(mixer, x, widths)[0] if widths else mixer(x, ctx(tokens=TOKENS)).y
        pairs = zip(grads((y * weight).sum(), over), slopes, strict=True)
        apart = max(float((a - b).detach().abs().max()) for a, b in pairs)
        found[form] = float((y - want).detach().abs().max()), apart
    return found


@torch.no_grad()
def state(name: str) -> str:
    """Bytes of the decode state of a sequence and layer in float32: width 256, four heads."""
    longest = 4096
    mixer = Alone(name, 256, 4, longest).mixer.eval()
    sizes = []
    for n in (64, 128):
        x, at = torch.randn(1, n, 256), torch.arange(n)[None]
        kept = tensors(mixer(x, Ctx(at), mixer.init_state(1)).state)
        sizes.append(sum(t.nbytes for t in kept if t.is_floating_point()))
    per_token = (sizes[1] - sizes[0]) // 64
    start = sizes[0] - 64 * per_token
    parts = [f"{start:,}"] * bool(start) + [f"{per_token:,} per token"] * bool(per_token)
    return " + ".join(parts)


def new_files(name: str) -> list[str]:
    """Functions and shared code that it uses and no older mixer does."""
    known = _imports()

    def reached(start: str) -> set[str]:
        found, todo = set(), [start]
        while todo:
            here = todo.pop()
            steps = {m for m in known.get(here, ()) if m.startswith(("ops.", "mixer.shared."))}
            todo += steps - found
            found |= steps
        return found

    older = {one for one in names("mixer") if one not in ORACLES and one not in COMPOSED}
    used = set().union(*(reached(_module(one)) for one in older))
    return sorted(m.replace(".", "/") + ".py" for m in reached(_module(name)) - used)


@cache
def _imports() -> dict[str, set[str]]:
    return arrows()


def _module(name: str) -> str:
    """Module of a mixer below the package, by its YAML file."""
    target: str = config(mixer=name)["mixer"]["_target_"]
    return target.removeprefix("chimera.").rpartition(".")[0]


@dataclass
class Recorder:
    """A plugin of pytest: the largest difference that each line of the tests compares."""

    found: dict[str, dict[int, float]] = field(default_factory=lambda: defaultdict(dict))

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        for module in {item.module for item in items}:
            if hasattr(module, "close"):
                module.close = self.recording(Path(module.__file__).name, module.close)

    def recording(self, file: str, close: Callable[..., None]) -> Callable[..., None]:
        def compare(a: Any, b: Any, tol: float = 1e-9) -> None:
            frame = inspect.currentframe()
            line = frame.f_back.f_lineno if frame and frame.f_back else 0
            if isinstance(a, Tensor):
                seen = self.found[file]
                seen[line] = max(seen.get(line, 0.0), float((a - b).detach().abs().max()))
            close(a, b, tol)

        return compare


def second(chosen: Iterable[str]) -> dict[str, str]:
    """Largest differences to transformers, as the tests find them."""
    files = {name: SECOND[name] for name in chosen if name in SECOND}
    recorder, here = Recorder(), Path(__file__).parent
    words = [str((here / file.partition("::")[0]).resolve()) for file in files.values()]
    only = "test_is_the_layer_of or test_logits_are_those_of_transformers and qwen3_next"
    if files and pytest.main(["-q", "-p", "no:cacheprovider", "-k", only, *words], [recorder]):
        sys.exit("the tests against transformers fail")
    by_file = {Path(file.partition("::")[0]).name: name for name, file in files.items()}
    return {
        by_file[file]: ", ".join(f"{lines[line]:.0e}" for line in sorted(lines))
        for file, lines in recorder.found.items()
    }


def table(chosen: list[str]) -> str:
    """Markdown."""
    theirs, shown = second(chosen), set[str]()
    lines = [" | ".join(["", *HEADS, ""]).strip(), "|" + " --- |" * len(HEADS)]
    for name in chosen:
        measured = errors(name) if name in ORACLES else {}
        cells = [f"{a:.0e} / {b:.0e}" for a, b in measured.values()] or ["–"] * len(FORMS)
        size = "its members'" if composite(name) else state(name)
        files = ", ".join(f"`{f}`" for f in new_files(name) if f not in shown) or "–"
        shown.update(new_files(name))
        row = [f"`{name}`", files, *cells, theirs.get(name, "–"), size]
        lines.append(" | ".join(["", *row, ""]).strip())
    return "\n".join(lines)


if __name__ == "__main__":
    print(table(sys.argv[1:] or [*ORACLES, *COMPOSED]))
