"""Error of every component in half precision, against float32, with a derived bound.

    python -m tests.contract.precision                    every component, 128 and 2048 tokens
    python -m tests.contract.precision --only linear      some
    python -m tests.contract.precision --rows FILE        also append each row to FILE, as JSON
    python -m tests.contract.precision --table FILE       docs/dev/measured/half_precision.csv

The half-precision run is a tiny model under `torch.autocast("cpu", fp16 or bf16)`. It may round
what autocast rounds: inputs, weights and results of linear maps and of softmax attention, and what
is computed elementwise between them. All else (states, sums over tokens, norms, softmax statistics,
gates, routers) has to stay in float32.

Bound. One rounding changes a number by a share u = eps/2 (fp16 2⁻¹¹, bf16 2⁻⁸). From one linear map
to the next, half precision rounds up to C = 4 times: the result, an activation, a product or
convolution, the next input. To first order, the error of a result is therefore at most

    C · u · growth,      growth = ‖change of the result‖ / size of the changes, where rounded

with the growth (the condition) of the function, not of its code. It is estimated in float32:
`rounding.Roundings` changes all that may be rounded, forward and backward, by up to C·u at random,
and the bound is `SAFETY` times the largest change of the result in `DRAWS` such runs. `SAFETY`
covers the difference of a maximum over few draws from that over all. Code that sums in half
precision, or overflows, has more than C roundings on its way and leaves the bound. Components that
choose (quantisers, routers) are covered alike: where a change of size C·u reverses a choice, half
precision may reverse it.

Error of logits: the largest ‖got − want‖ of a real token, over the root mean square of ‖want‖. Of
a gradient: ‖got − want‖/‖want‖ of the parameter that is worst relative to its bound; parameters of
fewer than `FEW` numbers count together, because one number alone may be hit by chance. Gradients of
fp16 are scaled as by a GradScaler: by the largest power of two up to 2¹⁶ that leaves them finite.
"""

from __future__ import annotations

import argparse
import copy
import math
import sys
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pandas
import torch
from torch import Tensor

from chimera.contract_tests import zoo
from chimera.errors import UserError
from tests.contract.cases import DECODED, VOCAB, Case, cases
from tests.contract.rounding import Roundings

C, SAFETY, DRAWS, FEW = 4, 2, 6, 32
HALF = {"fp16": torch.float16, "bf16": torch.bfloat16}
Context = Callable[[], AbstractContextManager[Any]]
#: Tensors by name, for each pass: forward, backward, decode.
Passes = dict[str, dict[str, Tensor]]


@dataclass(frozen=True)
class Row:
    """Worst error of one pass, its bound, and the tensor that has it."""

    case: Case
    half: str
    what: str
    error: float
    bound: float
    where: str

    @property
    def share(self) -> float:
        """Error over bound; infinite if the error is not finite."""
        share = self.error / max(self.bound, 1e-30)
        return share if math.isfinite(share) else math.inf

    def __str__(self) -> str:
        kind = "decoder" if self.case.causal else "encoder"
        return (
            f"{self.case.group}={self.case.name} {kind}, {self.case.padding}, {self.case.length}"
            f" tokens, {self.half}, {self.what}: {self.error:.1e} of {self.bound:.1e}"
            + ("" if self.share <= 1 else f"  OUTSIDE at {self.where}")
        )


def measure(
    case: Case,
    halves: Iterable[str] = tuple(HALF),
    *,
    draws: int = DRAWS,
    device: str = "cpu",
    single: float | None = None,
) -> list[Row]:
    """Worst error and bound of each pass; fewer draws are faster and give a lower bound.

    Args:
        case: component and inputs.
        halves: fp16, bf16 or both.
        draws: number of random changes that the bound is the largest of.
        device: of the half-precision passes; float32 and the bounds are computed on the CPU.
        single: also compare float32 on that device, with this bound.

    Raises:
        UserError: the component is refused in this model.
    """
    torch.manual_seed(0)
    model = case.model()
    want = passes(model, case, nullcontext)
    rows = []
    if single is not None:
        got = passes(model, case, nullcontext, device=device)
        for what, tensors in want.items():
            errors = _distances(got[what], tensors)
            where = max(errors, key=lambda name: errors[name])
            rows.append(Row(case, "fp32", what, errors[where], single, where))
    for half in halves:
        dtype = HALF[half]
        context = partial(torch.autocast, device, dtype)
        got = passes(model, case, context, scaled=half == "fp16", device=device)
        changed = [partial(Roundings, dtype, times=C, seed=seed) for seed in range(draws)]
        drawn_passes = [passes(model, case, context) for context in changed]
        for what, tensors in want.items():
            errors = _distances(got[what], tensors)
            drawn = [_distances(draw[what], tensors) for draw in drawn_passes]
            bounds = {name: SAFETY * max(d[name] for d in drawn) for name in errors}
            by_name = (Row(case, half, what, errors[n], bounds[n], n) for n in errors)
            rows.append(max(by_name, key=lambda row: row.share))
    return rows


def passes(
    model: Any, case: Case, context: Context, *, scaled: bool = False, device: str = "cpu"
) -> Passes:
    """Logits, gradients and decoded logits of a copy of the model, each in this context."""
    model = copy.deepcopy(model).to(device)
    for power in range(16 if scaled else 0, -1, -1):
        logits, grads = _train(model, case, context, 2.0**power)
        if all(bool(g.isfinite().all()) for g in grads.values()):
            break
    found = {"forward": {"logits": logits}, "backward": grads}
    if case.causal:
        found["decode"] = {"logits": _decode(model, case, context)}
    return found


def _train(
    model: Any, case: Case, context: Context, scale: float
) -> tuple[Tensor, dict[str, Tensor]]:
    """Logits [n v] of real tokens, and gradients of a loss that is their product with constants."""
    model = copy.deepcopy(model).train()
    device, mask = next(model.parameters()).device, case.mask()
    generator = torch.Generator().manual_seed(2)
    target = torch.randn(*mask.shape, VOCAB, generator=generator)[mask].to(device)
    mask = mask.to(device)
    with context():
        out = model(case.ids().to(device), mask)
        logits = out.logits.float()[mask]
        loss = (logits * target).mean() + sum(v.float() for v in out.aux.values())
    (loss * scale).backward()
    named = [(n, p.grad / scale) for n, p in model.named_parameters() if p.grad is not None]
    return logits.detach().cpu(), {name: grad.cpu() for name, grad in named}


@torch.no_grad()
def _decode(model: Any, case: Case, context: Context) -> Tensor:
    """Logits [n v] of a padded prompt and of the tokens after it."""
    model = copy.deepcopy(model).eval()
    device = next(model.parameters()).device
    mask = case.mask().to(device)
    with context():
        out = model(case.ids().to(device), mask, state=model.init_state(len(mask)))
        steps = [out.logits.float()[mask]]
        for token in zoo.tokens(len(mask), DECODED, VOCAB).split(1, 1):
            out = model(token.to(device), state=out.state)
            steps.append(out.logits.float()[:, 0])
    return torch.cat(steps).cpu()


def _distances(got: dict[str, Tensor], want: dict[str, Tensor]) -> dict[str, float]:
    """Relative error of each tensor; small ones together, as their root mean square."""
    found, few = {}, []
    for name, reference in want.items():
        per_row = name == "logits"
        apart, size = (got[name].double() - reference.double()), reference.double()
        if per_row:
            scale = size.norm(dim=-1).square().mean().sqrt()
            error = apart.norm(dim=-1).max() / scale
        else:
            error = apart.norm() / size.norm().clamp(min=1e-30)
        if not per_row and size.numel() < FEW:
            few.append(error)
        else:
            found[name] = float(error)
    if few:
        found["small tensors"] = float(torch.stack(few).square().mean().sqrt())
    return found


def main() -> None:
    """Print every pass; `--rows FILE` has them as a table too."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--rows", type=Path)
    options = parser.parse_args()
    rows = []
    for length, padding in product((128, 2048), ("left", "right")):
        for case in cases(options.only, length=length, padding=padding):
            with suppress(UserError):  # refused in this model
                rows += measure(case)
                print(*rows[-4:], sep="\n", flush=True)
    if options.rows:
        pandas.DataFrame(asdict(row.case) | asdict(row) for row in rows).to_csv(options.rows)
    outside = sum(row.share > 1 for row in rows)
    print(f"{len(rows)} passes, {outside} outside their bound")
    sys.exit(outside > 0)


if __name__ == "__main__":
    main()
