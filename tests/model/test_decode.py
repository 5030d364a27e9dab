"""Decoding by a CUDA graph: one that writes in place gives the tokens and logits of plain passes.

No GPU is here: what a graph does is done by hand, from the same tensors into the same tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

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


def built(mixer: str, **more: Any) -> Any:
    torch.manual_seed(0)
    parts = [f"mixer={mixer}", "quant=bitnet158", "norm=rmsnorm", "ffn=mlp", "position=none"]
    sizes = {"dim": 16, "depth": 2, "heads": 2, "max_len": 64, "init_std": 0.5, **more}
    model = build_model(Model(**sizes), choose(plain(compose(parts))), vocab_size=50, causal=True)
    return model.eval()


class Recorded:
    """In place of `decode.recorded`: a graph's pass, from the tensors that it was recorded with."""

    count = 0

    def __call__(self, run: Callable[[], None]) -> Callable[[], None]:
        steps: Any = run.__self__  # type: ignore[attr-defined]
        held = [x.clone() for x in decode._tensors(steps.state)]
        run()  # a recording computes nothing: undone
        for x, before in zip(decode._tensors(steps.state), held, strict=True):
            x.copy_(before)
        logits = steps.logits
        self.count += 1

        def replay() -> None:
            run()
            logits.copy_(steps.logits)
            steps.logits = logits

        return replay


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
    try:
        model = built(mixer)
        tokens, logits = decoded(model)
        ended = decoded(model, int(tokens[3, 0]))[0]
    except UserError as error:  # it decodes nothing, or not in this shape
        pytest.skip(str(error))
    assert recorded.count == 0
    monkeypatch.setattr(decode, "DEVICES", ("cpu",))
    again, graphed = decoded(model)
    assert torch.equal(again, tokens)
    assert torch.equal(graphed, logits)
    if mixer in FAST:
        assert recorded.count == (mixer not in GROWING)
    assert torch.equal(decoded(model, int(tokens[3, 0]))[0], ended)


def test_a_part_that_cannot_be_recorded_goes_on_without(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(run: Callable[[], None]) -> Callable[[], None]:
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    model = built("retnet")
    want = decoded(model)
    monkeypatch.setattr(decode, "DEVICES", ("cpu",))
    monkeypatch.setattr(decode, "recorded", refuse)
    assert all(map(torch.equal, decoded(model), want))


def test_tables_that_could_be_too_short_are_checked_by_plain_passes(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decode, "DEVICES", ("cpu",))
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
