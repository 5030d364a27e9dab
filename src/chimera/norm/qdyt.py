"""Quantisation-aware dynamic tanh (SPEC N3; QDYT 3.3).

    y = γ ⊙ tanh(α (x − μ)) + β
    training     μ = mean over the channels of the token, [b t 1]
    evaluation   μ = running mean, over (B, L), of that same quantity, a scalar (`running`);
                 with `running_from` in the last steps of training, too

The paper writes «update running_mean over (B,S)» and does not name the averaged quantity. This code
averages μ (`running`): training and evaluation then differ by each token's distance from the mean
μ, which is the paper's train/test mismatch. `token` has no mismatch. `channel` averages x per
channel, [d], as BatchNorm does; it evaluates another function than the trained one.

Statistics exclude padding, are of the batch of all processes, average over all calls of a norm in a
forward pass (loops), and leave out recomputations. `chimera.callback.part.qdyt`, a callback in this
norm's YAML, schedules α and the calibration of γ. [b t d] to [b t d].
"""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from chimera.contract import Fraction, Norm, PositiveFloat, ProperFraction
from chimera.errors import UserError
from chimera.ops import reduce
from chimera.ops.precision import token_sum, widen
from chimera.ops.shards import like
from chimera.ops.straight import recomputing

GAMMA = (0.1, 10.0)  # bounds of a calibrated γ, which is infinite for a channel of zeros
#: μ by the name of the rule, for runs that are validated by the rules that were not chosen too.
RULES: dict[str, Literal["running", "token", "channel"]] = {
    "running_mean": "running",
    "token_mean": "token",
    "channel_mean": "channel",
}


class QDyT(Norm):
    """Dynamic tanh of x minus a mean, for quantised models.

    Args:
        dim: d.
        alpha_per: `channel` for an α of each channel («learnable per-channel» in the paper's
            abstract may mean γ and β alone); None for one α.
        alpha: initial α; the schedule overrides it during warm-up.
        inference_mean: μ in evaluation: `running` (the paper), `channel` (another reading of the
            paper) or `token` (as in training).
        momentum: weight of a new batch in the running mean; the first batch has weight 1.
        running_from: share of the steps after which training has the μ of evaluation, still
            averaged, for the model to adapt to; None: never, as in the paper.

    Raises:
        UserError: `running_from` with `token`, which has no other μ.
    """

    undecayed = ("alpha",)
    running_mean: Tensor
    updates: Tensor
    warm: Tensor
    calibrated: Tensor
    moment: Tensor
    tokens: Tensor

    def __init__(
        self,
        dim: int,
        *,
        alpha: PositiveFloat = 0.5,
        inference_mean: Literal["running", "channel", "token"] = "running",
        momentum: Fraction = 0.1,
        running_from: ProperFraction | None = None,
        alpha_per: Literal["channel"] | None = None,
    ) -> None:
        super().__init__()
        if running_from is not None and inference_mean == "token":
            raise UserError("norm.running_from needs norm.inference_mean=running or channel")
        self.inference_mean = self._mean = inference_mean
        self.momentum = momentum
        self.running_from = running_from
        self.settled = False
        self.alpha = nn.Parameter(torch.full((dim if alpha_per else 1,), float(alpha)))
        self.weight = nn.Parameter(torch.ones(dim))
        self.bias = nn.Parameter(torch.zeros(dim))
        self.register_buffer("running_mean", torch.zeros(dim))
        self.register_buffer("updates", torch.tensor(0))
        # Saved: further training repeats neither warm-up nor calibration, a resumed run goes on.
        self.register_buffer("warm", torch.tensor(False))
        self.register_buffer("calibrated", torch.tensor(False))
        self.register_buffer("moment", torch.zeros(dim))  # Σ tanh² over tokens, and their number
        self.register_buffer("tokens", torch.tensor(0.0))
        self._calibrate_at: float | None = None

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        half = x.dtype
        x = widen(x)
        if self._mean == "token" or (self.training and not self.settled):
            mean = x.mean(-1, keepdim=True)
        else:
            mean = self.running_mean if self._mean == "channel" else self.running_mean.mean()
        z = x - mean
        if self.training and not recomputing():
            self._observe(x.detach(), z.detach(), mask)
        return torch.addcmul(self.bias, self.weight, torch.tanh(self.alpha * z)).to(half)

    @torch.no_grad()
    def _observe(
        self, x: Float[Tensor, "b t d"], z: Float[Tensor, "b t d"], mask: Bool[Tensor, "b t"] | None
    ) -> None:
        total, count = token_sum(x, mask)
        together = reduce.total(torch.cat([total, count[None]]))
        total = together[:-1]
        count = together[-1]
        first = (self.updates == 0).to(count.dtype)
        # A batch that overflowed is no statistic: its step will be left out, but not its means.
        known = (count > 0) & total.isfinite().all()
        share = (first + (1 - first) * self.momentum) * known
        mean = torch.where(known, total / count.clamp(min=1), 0).to(self.running_mean.dtype)
        self.running_mean.lerp_(mean, share.to(mean.dtype))
        self.updates += known
        if self._calibrate_at is not None:
            total, count = token_sum(torch.tanh(self._calibrate_at * z).square(), mask)
            self.moment += torch.where(known, total, 0)
            self.tokens += torch.where(known, count, 0)

    def other_rules(self) -> tuple[str, ...]:
        return tuple(rule for rule, mean in RULES.items() if mean != self.inference_mean)

    def evaluate_by(self, rule: str | None) -> None:
        self._mean = self.inference_mean if rule is None else RULES[rule]

    def set_alpha(self, value: float) -> None:
        """Set α; called during warm-up."""
        with torch.no_grad():
            self.alpha.fill_(value)

    def settle(self, done: float) -> None:
        """Take the μ of evaluation in training once this share of the steps is done."""
        self.settled = self.running_from is not None and done >= self.running_from

    def begin_calibration(self, alpha: float) -> None:
        """Collect Σ tanh² at this α, from the next forward pass in training on."""
        self._calibrate_at = alpha

    @torch.no_grad()
    def end_calibration(self) -> None:
        """Set γ, within GAMMA, so that the collected outputs have second moment 1 in each channel.

        The paper gives the time of the calibration but no target value. This code uses the second
        moment of a LayerNorm's outputs, at the α of the end of warm-up.
        """
        mean = self.moment / self.tokens.clamp(min=1)
        self.weight.copy_(like(mean.rsqrt().clamp(*GAMMA), self.weight))
        self.calibrated.fill_(True)
        self.moment.zero_()
        self.tokens.zero_()
        self._calibrate_at = None
