"""LiZAttention in a model that somebody else trained (SPEC A4, M12; TPTT 3.4, 4.1).

Every softmax attention of a Hugging Face causal model gets a linear branch that shares its q, k, v
and o (`adapter.graft.memory`); its own weights stay as they are and keep their names. What is
trained is up to `inner` (LoRA in the paper: r 8, α 16, dropout 0.05 on the four projections) or,
with `train: projections`, those projections themselves (the paper's «LoRA-»). The memory's own
gain, one number a channel of a head, stays 1: α is scheduled, not learned, by the callback that
comes with the YAML. `chimera.graft` does the same to a loaded model, without a run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from torch import nn

from chimera.adapter.graft.attach import attach
from chimera.contract import Fraction, PositiveInt
from chimera.ops.liza import Gate, Nonlinearity, Trick


def liza(
    model: nn.Module,
    *,
    inner: Callable[[nn.Module], nn.Module],
    train: Literal["inner", "projections"] = "inner",
    order: PositiveInt = 2,
    trick: Trick = "derivative",
    gate: Gate = "k",
    mag: Literal["additive", "cross_gate"] = "additive",
    mag_weight: Fraction = 0.5,
    nonlinearity: Nonlinearity = "none",
    chunk: PositiveInt = 64,
    max_cache: PositiveInt | None = None,
) -> nn.Module:
    """Graft a linear memory onto every attention of a Hugging Face causal model.

    Args:
        model: changed in place and frozen.
        inner: another adapter, which says what is trained; with adapter=none it is nothing.
        train: `projections` trains the base's own q, k, v and o in place of `inner`.
        order: virtual tokens per token, n_h: delta-rule steps.
        trick: what virtual tokens are made by: differences in time, rotations, the mean of both.
        gate: what the step sizes β come from: keys, values, or the product of both.
        mag: how the branches are combined (TPTT eq. 7, 8).
        mag_weight: α to begin with.
        nonlinearity: applied to the memory between chunks (eq. 24).
        chunk: tokens of such a chunk; without nonlinearity of no effect.
        max_cache: tokens, its own among them, that the softmax branch sees; None for all before.

    Raises:
        UserError: a model without attention that is understood, or options that do not go together.
    """
    return attach(
        model,
        inner=inner,
        train=train,
        max_cache=max_cache,
        mag=mag,
        mag_weight=mag_weight,
        branch={
            "order": order,
            "trick": trick,
            "gate": gate,
            "nonlinearity": nonlinearity,
            "chunk": chunk,
        },
    )
