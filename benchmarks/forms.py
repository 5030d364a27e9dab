"""Measure of each mixer how far its forms are apart, and the bytes of its state against length.

One layer of `preset=profile` (width 64, two heads), causal, rotated where the mixer can, with
initial weights. `whole` is the pass over all tokens at once, which trains; it is compared with
decoding token by token from a state, and with the naive recurrence of the mixer's tests where these
have one as `build` and `by_token`. Errors are the largest difference over the largest output.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any

import torch
import yaml
from hydra.utils import get_object
from torch import Tensor

from benchmarks.parts import choices, composite, names, rotates
from chimera.config.settings import Model
from chimera.contract import Context
from chimera.model.assemble import build_model
from chimera.model.language import LanguageModel
from chimera.paths import CONF, ROOT

DIM, HEADS, VOCABULARY = 64, 2, 32
#: Tokens of the comparison of forms; more than a chunk and no multiple of one.
TOKENS = 130
#: Contexts at which the state is weighed.
CONTEXTS = (64, 256, 1024, 4096)


def main() -> dict[str, Any]:
    """Measure all mixers that are no pattern of others, print them, return the results."""
    rows = {}
    for name in names():
        if not composite(name):
            rows[name] = measured(name)
            print(name, rows[name], flush=True)
    return {"dim": DIM, "heads": HEADS, "tokens": TOKENS, "rows": rows}


def measured(name: str) -> dict[str, Any]:
    """Errors and bytes of one mixer."""
    found: dict[str, Any] = {"tests": tests_of(name)}
    for form, kind in (("fp64", torch.float64), ("fp32", torch.float32)):
        found[f"decoded_{form}"] = decoded(layer(name, kind), kind)
    if error := naive(name):
        found["naive_fp64"] = error
    model = layer(name, torch.float32)
    found["state_bytes"] = {t: state_bytes(model, t) for t in CONTEXTS}
    return found


def layer(name: str, kind: torch.dtype) -> LanguageModel:
    """A model of one layer with the mixer; the same weights each time."""
    torch.manual_seed(0)
    settings = Model(dim=DIM, depth=1, heads=HEADS, max_len=max(CONTEXTS))
    position = "rope" if rotates(settings, choices(name)) else "none"
    model = build_model(
        settings, choices(name, position=position), vocab_size=VOCABULARY, causal=True
    )
    return model.to(kind).eval()


@torch.no_grad()
def decoded(model: LanguageModel, kind: torch.dtype) -> float:
    """Error of decoding token by token against the whole pass."""
    ids = tokens(TOKENS)
    whole = model(ids).logits
    state, parts = model.init_state(1), []
    for at in range(TOKENS):
        out = model(ids[:, at : at + 1], state=state)
        state = out.state
        parts.append(out.logits)
    return error(torch.cat(parts, 1), whole)


def naive(name: str) -> float | None:
    """Error of the whole pass against the oracle of the mixer's tests; None where none is named."""
    file = tests_of(name)["file"]
    if not file:
        return None
    tests = importlib.import_module(file.removesuffix(".py").replace("/", "."))
    oracle: Callable[..., Tensor] | None = getattr(tests, "by_token", None)
    if oracle is None or len(inspect.signature(oracle).parameters) != 2:
        return None
    torch.manual_seed(0)
    mixer = tests.build()
    x = torch.randn(2, TOKENS, 32, dtype=torch.float64)
    positions = torch.arange(TOKENS).expand(2, TOKENS)
    want = oracle(mixer, x).detach()  # with gradients: a test-time learner's oracle takes its own
    with torch.no_grad():
        return error(mixer(x, Context(positions)).y, want)


def tests_of(name: str) -> dict[str, str]:
    """File of the mixer's own tests, and its first line, which names what it is held against."""
    node = yaml.safe_load((CONF / "mixer" / f"{name}.yaml").read_text(encoding="utf-8"))
    module = get_object(node["_target_"]).__module__.rpartition(".")[2]
    file = ROOT / "tests" / "mixer" / f"test_{module}.py"
    if not file.is_file():
        return {"file": "", "about": ""}
    about = file.read_text(encoding="utf-8").splitlines()[0].strip('"')
    return {"file": file.relative_to(ROOT).as_posix(), "about": about}


def error(got: Tensor, want: Tensor) -> float:
    """Largest difference as a share of the largest value."""
    return float((got - want).abs().max() / want.abs().max())


@torch.no_grad()
def state_bytes(model: LanguageModel, length: int) -> int:
    """Bytes of one layer's decoding state in fp32 after a text of this length."""
    state = model(tokens(length), state=model.init_state(1)).state
    assert state is not None
    return _bytes(state.slots)


def tokens(length: int) -> Tensor:
    """A text of one row [1 t]."""
    generator = torch.Generator().manual_seed(1)
    return torch.randint(VOCABULARY, (1, length), generator=generator)


def _bytes(state: Any) -> int:
    if isinstance(state, Tensor):
        return state.numel() * state.element_size() if state.is_floating_point() else 0
    return sum(_bytes(part) for part in state or ())
