"""Add LiZAttention to a pretrained Hugging Face model (SPEC A4, M12; TPTT 3.4, 4.1).

Every softmax attention of a Hugging Face causal model gets a linear branch that shares its q, k, v
and o (`adapter.graft.memory`). The base weights keep their values and names. `inner` selects the
trained parameters (in the paper LoRA with r 8, α 16, dropout 0.05 on the four projections). With
`train: projections`, the four projections are trained (the paper's «LoRA-»). The weight of the
memory's norm, one number per channel of a head, stays 1. A callback in the YAML schedules α.
`chimera.graft` adds LiZAttention to a loaded model without a run.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, cast

from torch import nn

from chimera.adapter.graft.attach import attach, sites
from chimera.contract import Fraction, PositiveInt
from chimera.errors import UserError
from chimera.ops.liza import Beta, Gate, GateInput, Nonlinearity, Trick

#: Targets of `inner` in the YAML: the projections by the names that Llama and its kind have.
LLAMA = ["*.q_proj", "*.k_proj", "*.v_proj", "*.o_proj"]


def liza(
    model: nn.Module,
    *,
    inner: Callable[[nn.Module], nn.Module],
    train: Literal["inner", "projections"] = "inner",
    order: PositiveInt = 2,
    trick: Trick = "derivative",
    gate: Gate = "k",
    gate_input: GateInput = "normalised",
    pool: PositiveInt | Literal["all"] = 3,
    beta: Beta | None = None,
    mag: Literal["additive", "cross_gate"] = "additive",
    mag_weight: Fraction = 0.5,
    mag_learn: Literal["head"] | None = None,
    nonlinearity: Nonlinearity = "none",
    chunk: PositiveInt = 64,
    max_cache: PositiveInt | None = None,
) -> nn.Module:
    """Add a linear memory to every attention of a Hugging Face causal model.

    Args:
        model: frozen and changed in place.
        inner: another adapter, which selects the trained parameters; `none` trains nothing. Its
            targets, unless others than `LLAMA` are given, are the projections that the model has.
        train: `projections` trains the base's q, k, v and o projections instead of `inner`.
        order: n_h, virtual tokens (delta-rule steps) per token.
        trick: operation that makes virtual tokens: differences in time, rotations, mean of both.
        gate: source of the step sizes β: keys, values, or their product.
        gate_input: keys and values of β as the memory gets them, `normalised` (the paper), or as
            they were `projected`, which spreads β.
        pool: number of tokens, this one the last, whose mean gives β (3 in the authors' package);
            `all` for the mean over all so far (eq. 5).
        beta: `scalar` for one β a head, as Table 1 says; None for one per channel.
        mag: combination of the branches (TPTT eq. 7, 8).
        mag_weight: initial α.
        mag_learn: `head` learns α of each head from there (eq. 7); None leaves it to a schedule.
        nonlinearity: function applied to the memory between chunks (eq. 24).
        chunk: tokens in such a chunk; no effect without nonlinearity.
        max_cache: tokens that the softmax branch attends to, this one the last; None for all.

    Raises:
        UserError: the model has no supported attention, or options contradict each other.
    """
    return attach(
        model,
        inner=partial(_inner, inner),
        train=train,
        max_cache=max_cache,
        mag=mag,
        mag_weight=mag_weight,
        mag_learn=mag_learn,
        order=order,
        trick=trick,
        gate=gate,
        gate_input=gate_input,
        pool=pool,
        beta=beta,
        nonlinearity=nonlinearity,
        chunk=chunk,
    )


def _inner(inner: Any, model: nn.Module) -> nn.Module:
    """Apply the inner adapter, to the projections of this model where the YAML names Llama's."""
    if getattr(inner, "keywords", {}).get("targets") == LLAMA:
        found = sites(model).items()
        inner = partial(inner, targets=[f"{at}.{name}" for at, one in found for name in one.names])
    try:
        return cast(nn.Module, inner(model))
    except UserError as error:  # its keys stand below `inner`
        raise UserError(str(error).replace("adapter.targets", "adapter.inner.targets")) from error
