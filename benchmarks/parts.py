"""Build the mixers of `conf/mixer` with plain components around them, for the other benchmarks."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
import yaml
from hydra.utils import get_object
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from chimera.config.compose import compose, plain
from chimera.config.groups import groups
from chimera.config.settings import Model
from chimera.contract import Context, Mixer
from chimera.model.assemble import Choices, build_model, choose
from chimera.model.backbone import Block
from chimera.model.language import LanguageModel
from chimera.paths import CONF

#: Components around every mixer.
PLAIN = ["norm=layernorm", "quant=none", "adapter=none"]


def names() -> list[str]:
    """All choices of `mixer=`."""
    return groups()["mixer"]


def composite(name: str) -> bool:
    """Whether a choice is a pattern of other mixers over depth; its target is not a class."""
    node = yaml.safe_load((CONF / "mixer" / f"{name}.yaml").read_text(encoding="utf-8"))
    return not inspect.isclass(get_object(node["_target_"]))


def choices(mixer: str, *overrides: str, ffn: str = "none", position: str = "none") -> Choices:
    """Factories of this mixer and of plain components; `overrides` are added at the end."""
    chosen = [f"mixer={mixer}", *PLAIN, f"ffn={ffn}", f"position={position}"]
    return choose(plain(compose([*chosen, *overrides])))


def rotates(settings: Model, factories: Choices) -> bool:
    """Whether a position can rotate queries and keys in all layers."""
    with torch.device("meta"):
        model = build_model(settings, factories, vocab_size=2, causal=True)
    return all("rotate" in mixer.position_hooks for mixer in _mixers(model))


class Alone(nn.Module):
    """One causal mixer without positions, initialised as in a model. [b t d] to [b t d]."""

    def __init__(self, name: str, dim: int, heads: int, length: int) -> None:
        super().__init__()
        settings = Model(dim=dim, depth=1, heads=heads, max_len=length)
        model = build_model(settings, choices(name), vocab_size=2, causal=True)
        (self.mixer,) = _mixers(model)

    def forward(self, x: Tensor) -> Tensor:
        return self.mixer(x, Context(torch.arange(x.shape[1])[None])).y


def continuation(
    model: Any, tokens: int, context: int = 8, *, body: bool = False
) -> Callable[[], None]:
    """A function that decodes so many more tokens at each call, first after `context` tokens.

    Args:
        model: in evaluation mode.
        tokens: of a call.
        context: tokens before the first call.
        body: run the blocks alone, without the head.
    """
    token = torch.zeros(1, 1, dtype=torch.long)
    index = torch.zeros(0 if body else 1, dtype=torch.long)
    with torch.no_grad():
        state = model(token.expand(1, context), state=model.init_state(1), index=index).state

    @torch.no_grad()
    def run() -> None:
        nonlocal state  # to continue one state a second time would copy it
        for _ in range(tokens):
            state = model(token, state=state, index=index).state

    return run


def update(
    optimizer: torch.optim.Optimizer, loss: Callable[[], Tensor], *, half: bool
) -> Callable[[], None]:
    """A function that takes a training step, under autocast to bfloat16 if `half`."""

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            found = loss()
        found.backward()
        optimizer.step()

    return step


@torch.no_grad()
def state_after(model: LanguageModel, ids: Tensor) -> list[Tensor]:
    """The floating-point tensors of the decoding state after this text."""
    state = model.eval()(ids, state=model.init_state(1)).state
    assert state is not None
    found = tree_leaves(state.slots)
    return [x for x in found if isinstance(x, Tensor) and x.is_floating_point()]


def _mixers(model: LanguageModel) -> list[Mixer]:
    return [block.mixer for block in model.backbone.blocks if isinstance(block, Block)]
