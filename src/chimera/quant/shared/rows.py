"""Ternary linear layers with a scale per output row, measured or learned (SPEC Q4; QDYT 3.1-3.2).

    Ŵ_ij = s_i·clip(round(W_ij/s_i), −1, 1),   s_i = mean_j|W_ij| + ε

Gradient rules of the weight, with G = ∂L/∂Ŵ (SPEC E7):
    standard      ∂L/∂W = G
    lsq           ∂L/∂W_i = G_i / s_i, as in the paper. Unlike LSQ, this rule learns no step. It
                  multiplies the gradient of a row by 1/s_i, which changes slowly and is nearly
                  constant over AdamW's memory; AdamW divides a gradient by its own size, so the
                  factor cancels and training is that of `standard`, up to ε and clipping
    lsq_learned   LSQ (arXiv 1902.08153): s_i is a parameter, initially 2·mean_j|W_ij|, trained with
                  gradient scale 1/√d_in; ∂L/∂W = G inside the grid and 0 outside. The rule that
                  tests LSQ
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int8
from torch import Tensor, nn

from chimera.ops.grid import FLOOR
from chimera.ops.integer import Codes, Grid, integer_linear, prepared
from chimera.ops.numberless import numberless
from chimera.ops.precision import wide
from chimera.ops.straight import straight
from chimera.ops.ternary import LearnedStep, Measured, mean_size, round_codes, ternary
from chimera.quant.shared.layers import TernaryLinear


def absmean_eps(w: Tensor, rows: bool) -> Measured:
    """mean|W| + ε, as in the paper; BitNet uses max(mean|W|, ε)."""
    scale = mean_size(w, rows) + FLOOR
    return scale, scale


RULE = ternary(absmean_eps, rows=True)


class HBitLinear(TernaryLinear):
    """Ternary linear layer with gradient rule `standard` (divide=False) or `lsq` (divide=True)."""

    def __init__(self, d_in: int, d_out: int, *, divide: bool, **options: Any) -> None:
        super().__init__(d_in, d_out, bias=False, rule=RULE, **options)
        self.divide = divide

    def quantised(self) -> Float[Tensor, "o i"]:
        codes, scale = self.rule.codes(self.weight)
        values = codes.mul_(scale).to(self.weight.dtype)
        return straight(self.weight, values, scale if self.divide else None)

    def _product(self, x: Tensor, grid: Grid, codes: Codes, dtype: torch.dtype) -> Tensor:
        divisor = codes.scale if self.divide else None
        return integer_linear(x, self.weight, grid, codes, dtype=dtype, divisor=divisor)


class LSQLinear(TernaryLinear):
    """Ternary linear layer with learned scales (LSQ).

    The first forward pass initialises the scales of rows that are not all zero.
    """

    def __init__(self, d_in: int, d_out: int, **options: Any) -> None:
        super().__init__(d_in, d_out, bias=False, rule=RULE, **options)
        self.step = nn.Parameter(torch.zeros(d_out, 1))
        self._initialised = False  # avoids a test of the parameter, which synchronises with a GPU

    @torch.no_grad()
    def initialise(self) -> None:
        """Set the scales of rows that have none yet."""
        initial = 2 * mean_size(self.weight, rows=True).to(self.step.dtype)
        self.step.copy_(torch.where(self.step != 0, self.step, initial))
        # On the meta device there are shapes only: an estimate of a run asks for the layer's bytes.
        self._initialised = numberless(self.step) or bool((self.step != 0).all())

    def _step(self) -> Float[Tensor, "o 1"]:
        if not self._initialised:
            self.initialise()
        return self.step.to(wide(self.step)).clamp(min=FLOOR)

    def quantised(self) -> Float[Tensor, "o i"]:
        return LearnedStep.apply(self.weight, self._step())

    def rounded(self) -> Codes:
        """Codes of the weight, made once until the weight or the steps change."""
        self._step()
        return self.kept.get(
            self.weight, lambda: prepared(*self.ternary(), self.compute), self.step
        )

    def _product(self, x: Tensor, grid: Grid, codes: Codes, dtype: torch.dtype) -> Tensor:
        weight = LearnedStep.apply(self.weight, self._step())  # for its gradient
        return integer_linear(x, weight, grid, codes, dtype=dtype)

    def sharded(self) -> None:
        self.kept.follow(self.weight, self.step)

    def ternary(self) -> tuple[Int8[Tensor, "o i"], Tensor]:
        step = self._step().detach()
        return round_codes(self.weight.detach(), step, 1).to(torch.int8), step
