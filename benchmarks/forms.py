"""Measure of each mixer how far its forms are apart, and the bytes of its state against length.

One layer of `preset=profile` (width 64, two heads), causal, rotated where the mixer can, with
initial weights. The pass over all tokens at once, which trains, is compared with decoding token by
token from a state. Errors are the largest difference over the largest output.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from benchmarks.parts import choices, composite, names, rotates, state_after
from chimera.config.settings import Model
from chimera.model.assemble import build_model
from chimera.model.language import LanguageModel

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
    found: dict[str, Any] = {}
    for form, kind in (("fp64", torch.float64), ("fp32", torch.float32)):
        found[f"decoded_{form}"] = decoded(layer(name, kind), kind)
    model = layer(name, torch.float32)
    found["state_bytes"] = {
        t: sum(x.nbytes for x in state_after(model, tokens(t))) for t in CONTEXTS
    }
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


def error(got: Tensor, want: Tensor) -> float:
    """Largest difference as a share of the largest value."""
    return float((got - want).abs().max() / want.abs().max())


def tokens(length: int) -> Tensor:
    """A text of one row [1 t]."""
    generator = torch.Generator().manual_seed(1)
    return torch.randint(VOCABULARY, (1, length), generator=generator)
