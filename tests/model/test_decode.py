"""Decoding by a CUDA graph: one that writes in place gives the tokens and logits of plain passes.

No GPU is here: what a graph does is done by hand, from the same tensors into the same tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from chimera.config.compose import compose, plain
from chimera.config.groups import groups
from chimera.config.settings import Model
from chimera.errors import UserError
from chimera.model import decode
from chimera.model.assemble import build_model, choose

PROMPTS = [[5, 6, 7, 8, 9], [5], [9, 8, 7]]
#: One of each kind of state; of the others, those that grow or are no graph's.
FAST = ["retnet", "gated_delta", "mamba", "rwkv7", "attention", "log_linear"]
GROWING = {"attention"}


def built(mixer: str, ffn: str = "mlp") -> Any:
    torch.manual_seed(0)
    quant = "none" if mixer == "slstm" else "bitnet158"  # it has no weight to quantise
    parts = [f"mixer={mixer}", f"quant={quant}", "norm=rmsnorm", f"ffn={ffn}", "position=none"]
    shape = Model(dim=16, depth=2, heads=2, max_len=64, init_std=0.5)
    model = build_model(shape, choose(plain(compose(parts))), vocab_size=50, causal=True)
    return model.eval()


class Tape(TorchDispatchMode):
    """What torch computes, to be computed again from the same tensors into the same tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, list[Tensor]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name
        if name in ("aten::_local_scalar_dense", "aten::nonzero", "aten::equal"):
            raise RuntimeError("a graph does not wait\nmore")
        out = func(*args, **(kwargs or {}))
        view = any(x.alias_info is not None and not x.alias_info.is_write
                   for x in func._schema.returns)  # fmt: skip
        if not view:
            made = [x for x in tree_leaves(out) if isinstance(x, Tensor)]
            self.calls.append((func, args, kwargs or {}, made))
        return out

    def replay(self) -> None:
        for func, args, kwargs, made in self.calls:
            again = [x for x in tree_leaves(func(*args, **kwargs)) if isinstance(x, Tensor)]
            for x, y in zip(made, again, strict=True):
                if x is not y:
                    x.copy_(y)


class Recorded:
    """In place of `decode.recorded`: Python runs once, while the tape runs."""

    count = 0

    def __call__(self, run: Callable[[], None], device: torch.device) -> Callable[[], None]:
        tape = Tape()
        with tape:
            run()
        self.count += 1
        return tape.replay


def decoded(model: Any, end_id: int | None = None) -> tuple[Tensor, Tensor]:
    seen: list[Tensor] = []

    def choose(logits: Tensor) -> Tensor:
        seen.append(logits.clone())
        return logits.argmax(-1)

    tokens = decode.decode(model, PROMPTS, choose, max_new=9, pad_id=0, end_id=end_id)
    return torch.stack(list(tokens)), torch.stack(seen)


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Recorded:
    made = Recorded()
    monkeypatch.setattr(decode, "recorded", made)
    return made


@pytest.mark.parametrize(
    "mixer",
    [name if name in FAST else pytest.param(name, marks=pytest.mark.slow)
     for name in groups()["mixer"]],
)  # fmt: skip
def test_a_graph_gives_the_tokens_and_logits_of_plain_passes(
    mixer: str, recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = built(mixer)
    tokens, logits = decoded(model)
    ended = decoded(model, int(tokens[3, 0]))[0]
    assert recorded.count == 0
    monkeypatch.setattr(decode, "WORTH", 2)
    monkeypatch.setattr(decode, "DEVICES", ("cpu",))
    again, graphed = decoded(model)
    assert torch.equal(again, tokens)
    assert torch.equal(graphed, logits)
    if mixer in FAST:
        assert recorded.count == (mixer not in GROWING)
    assert torch.equal(decoded(model, int(tokens[3, 0]))[0], ended)


def test_a_part_that_cannot_be_recorded_goes_on_without(monkeypatch: pytest.MonkeyPatch) -> None:
    """Experts read the sizes of their groups. A model that was refused is not tried again."""
    model = built("retnet", ffn="moe")
    want = decoded(model)
    asked: list[int] = []
    whole = Recorded()
    monkeypatch.setattr(decode, "DEVICES", ("cpu",))
    monkeypatch.setattr(decode, "WORTH", 2)
    monkeypatch.setattr(decode, "recorded", lambda *given: asked.append(1) or whole(*given))
    for _ in range(2):
        assert all(map(torch.equal, decoded(model), want))
    assert (len(asked), whole.count) == (1, 0)


def test_few_tokens_are_not_worth_a_graph(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decode, "DEVICES", ("cpu",))
    decoded(built("delta"))  # eight passes
    assert recorded.count == 0


def test_tables_that_could_be_too_short_are_checked_by_plain_passes(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decode, "DEVICES", ("cpu",))
    monkeypatch.setattr(decode, "WORTH", 2)
    model = built("retnet")
    monkeypatch.setattr(model.backbone, "_limited", [_Table(13)])
    decoded(model)  # prompts of 5 and 8 more tokens
    monkeypatch.setattr(model.backbone, "_limited", [_Table(12)])
    with pytest.raises(UserError, match="13 positions"):
        decoded(model)
    assert recorded.count == 1


class _Table:
    def __init__(self, length: int) -> None:
        self.max_positions = length

    def too_long(self, length: int) -> str:
        return f"{length} positions"
