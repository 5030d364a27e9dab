"""Small things that many tests need: a site, plain parts, contexts, gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from chimera.contract import Context, Parts, Site
from chimera.contract_tests.zoo import close as close
from chimera.contract_tests.zoo import ragged as ragged
from chimera.norm.standard import LayerNorm
from chimera.position.none import NoPosition
from chimera.quant.none import FullPrecision

M = TypeVar("M", bound=nn.Module)
#: The fixture `refused` of tests/conftest.py.
Refused = Callable[..., str]
#: Options of a Lightning trainer that only trains, on the CPU.
QUIET: dict[str, Any] = dict.fromkeys(
    ("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing"), False
) | {"accelerator": "cpu"}


def site(**change: Any) -> Site:
    """A small site: width 32, 4 heads, causal unless said otherwise."""
    return Site(**{"dim": 32, "heads": 4, "causal": True, "max_len": 64, **change})


def parts(**change: Any) -> Parts:
    """Full precision, LayerNorm, no positions."""
    plain: dict[str, Any] = {
        "linear": FullPrecision().linear,
        "norm": LayerNorm,
        "position": NoPosition,
    }
    return Parts(**{**plain, **change})


def ctx(mask: Tensor | None = None, *, tokens: int = 0, start: int = 0, loop: int = 0) -> Context:
    """Positions count real tokens only, as the backbone's do."""
    if mask is None:
        return Context(torch.arange(start, start + tokens)[None], None, loop)
    return Context(start + (mask.long().cumsum(1) - 1).clamp(min=0), mask, loop)


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def in_pieces(mixer: nn.Module, x: Tensor, widths: Iterable[int]) -> tuple[Tensor, list[Any]]:
    """The output of a text given piece by piece, up to its end, and the state after each."""
    state, outputs, states, start = mixer.init_state(len(x)), [], [], 0
    for width in widths:
        if n := min(width, x.shape[1] - start):
            out = mixer(x[:, start : start + n], ctx(tokens=n, start=start), state)
            state, start = out.state, start + n
            outputs.append(out.y)
            states.append(state)
    return torch.cat(outputs, 1), states


def continues(
    mixer: nn.Module,
    lengths: Sequence[int],
    new: int,
    *,
    left: bool,
    want: Callable[[Tensor], Tensor] | None = None,
    tol: float = 1e-9,
) -> Any:
    """Checks padded prompts that go on token by token against each text alone, and its beginnings.

    Args:
        mixer: in float64, 32 wide.
        lengths: of the prompts.
        new: tokens after them.
        left: the side that is padded.
        want: what a text alone is to give; None: the mixer in one pass.
        tol: as of `close`.

    Returns:
        The last state.
    """
    mask = ragged(lengths, left=left)
    x, more = (torch.randn(len(lengths), n, 32).double() for n in (mask.shape[1], new))
    out = mixer(x, ctx(mask), mixer.init_state(len(lengths)))
    assert out.y.isfinite().all()
    ys = [out.y]
    for i in range(new):
        out = mixer(more[:, i : i + 1], Context(mask.sum(1, keepdim=True) + i), out.state)
        ys.append(out.y)
    for row, length in enumerate(lengths):
        alone = torch.cat([x[row][mask[row]], more[row]])[None]
        got = torch.cat([ys[0][row][mask[row]], *(y[row] for y in ys[1:])])
        for n in range(length, length + new + 1):
            text = alone[:, :n]
            close(got[:n], (want(text) if want else mixer(text, ctx(tokens=n)).y)[0], tol)
    return out.state


def grads(loss: Tensor, of: nn.Module | Iterable[Tensor]) -> list[Tensor]:
    """Gradients of `loss`, zeros where nothing reaches."""
    over = list(of.parameters()) if isinstance(of, nn.Module) else list(of)
    got = torch.autograd.grad(loss, over, allow_unused=True, retain_graph=True)
    return [torch.zeros_like(p) if g is None else g for p, g in zip(over, got, strict=True)]


def double(build: Callable[[], M], seed: int = 0) -> M:
    """The module, seeded, in float64, evaluation mode."""
    torch.manual_seed(seed)
    return build().double().eval()


def uniform(x: Tensor, low: float, high: float) -> None:
    """Check that values are drawn from the uniform distribution on [low, high], up to its ends."""
    u = (x.detach().double() - low) / (high - low)
    near = math.log(1e9) / u.numel()  # no draw is this near to an end: (1 - near)^n < 1e-9
    assert 0 <= u.min() < near
    assert 1 - near < u.max() <= 1
    _follows(u)


def normal(x: Tensor, std: float) -> None:
    """Check that values are drawn from the normal distribution of mean 0 and this deviation."""
    _follows(torch.special.ndtr(x.detach().double() / std))


def _follows(quantiles: Tensor) -> None:
    """Check that quantiles are uniform on [0, 1].

    The bound on the distance of the empirical distribution is that of Dvoretzky, Kiefer, Wolfowitz
    and Massart, P(distance > e) <= 2 exp(-2 n e²), at 1e-9: correct draws pass with any seed.
    """
    u = quantiles.flatten().sort().values
    ranks = torch.arange(len(u) + 1, dtype=u.dtype) / len(u)
    distance = torch.maximum((ranks[1:] - u).max(), (u - ranks[:-1]).max())
    assert distance <= math.sqrt(math.log(2 / 1e-9) / (2 * len(u)))


class NoLayer(nn.Module):
    """Stands for a linear layer in a module that only has its other initial weights checked."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
