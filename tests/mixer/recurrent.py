"""What every recurrent mixer keeps: each form, padding and decoding equal an oracle, in float64."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.kit import close, continues, ctx, grads, in_pieces

#: (mixer, x [b t d]) -> y [b t d] of texts without padding, token by token.
Oracle = Callable[[Any, Tensor], Tensor]
#: Largest difference of outputs, states and gradients, absolute and relative.
EXACT = 1e-10


class Recurrence:
    """Tests of a mixer with a recurrence; a subclass sets the first two attributes."""

    build: ClassVar[Callable[..., nn.Module]]  # (**options), 32 wide, in float64
    oracle: ClassVar[Oracle]
    options: ClassVar[list[Any]] = [{}]  # dictionaries, or parameters of pytest with one
    size: ClassVar[float] = 30.0  # standard deviation of inputs in half precision

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if "chosen" in metafunc.fixturenames:
            metafunc.parametrize("chosen", self.options, ids=str)

    @pytest.mark.parametrize("tokens", [1, 2, 65])
    def test_is_the_recurrence(self, chosen: dict[str, Any], tokens: int) -> None:
        is_the_recurrence(self.build(**chosen), self.oracle, tokens)

    def test_decodes_with_a_constant_state(self, chosen: dict[str, Any]) -> None:
        decodes_with_a_constant_state(self.build(**chosen), self.oracle)

    def test_ignores_padding(self, chosen: dict[str, Any]) -> None:
        ignores_padding(self.build(**chosen), self.oracle)

    def test_keeps_wide_states_in_half_precision(self) -> None:
        keeps_wide_states_in_half_precision(self.build(), size=self.size)


def is_the_recurrence(mixer: nn.Module, oracle: Oracle, tokens: int) -> None:
    """Outputs and all gradients in one pass."""
    x = torch.randn(2, tokens, 32, dtype=torch.float64, requires_grad=True)
    got, want = mixer(x, ctx(tokens=tokens)).y, oracle(mixer, x)
    close(got, want, EXACT)
    weight = torch.randn_like(got) / got.numel() ** 0.5
    over = [x, *mixer.parameters()]
    close(grads((got * weight).sum(), over), grads((want * weight).sum(), over), EXACT)


def decodes_with_a_constant_state(mixer: nn.Module, oracle: Oracle) -> None:
    """Pieces of any width, with a state of one size, and gradients through it."""
    x = torch.randn(2, 140, 32, dtype=torch.float64)
    y, states = in_pieces(mixer, x, (1, 2, 1, 129, 1, 1, 5))
    want = oracle(mixer, x)
    close(y, want, EXACT)
    assert len({tuple(t.shape for t in tensors(state)) for state in states}) == 1
    weight = torch.randn_like(y) / y.numel() ** 0.5
    close(grads((y * weight).sum(), mixer), grads((want * weight).sum(), mixer), EXACT)


def ignores_padding(mixer: nn.Module, oracle: Oracle, examples: int = 10) -> None:
    """Padded prompts of any length that go on token by token equal each text alone."""
    lengths = st.lists(st.integers(1, 70), min_size=1, max_size=3)

    @settings(max_examples=examples)
    @given(lengths, st.integers(0, 2), st.booleans())
    def check(lengths: list[int], new: int, left: bool) -> None:
        continues(mixer, lengths, new, left=left, want=lambda x: oracle(mixer, x), tol=EXACT)

    check()


def keeps_wide_states_in_half_precision(mixer: nn.Module, size: float = 30) -> None:
    """bf16 and fp16 weights: finite outputs in their dtype, a matrix state in float32.

    Args:
        mixer: 32 wide.
        size: standard deviation of the inputs.
    """
    for dtype in (torch.bfloat16, torch.float16):
        mixer = mixer.to(dtype)
        x = size * torch.randn(1, 70, 32).to(dtype)
        out = mixer(x, ctx(tokens=70), mixer.init_state(1))
        then = mixer(x[:, :1], ctx(tokens=1, start=70), out.state)
        assert out.y.dtype == then.y.dtype == dtype
        assert out.y.isfinite().all()
        assert then.y.isfinite().all()
        matrices = [t for t in tensors(then.state) if t.ndim >= 4]
        assert matrices
        assert all(t.dtype == torch.float32 for t in matrices)


def tensors(state: Any) -> Iterable[Tensor]:
    """All tensors of a state."""
    if isinstance(state, Tensor):
        return [state]
    return [t for part in state for t in tensors(part)]


def conv(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Causal depthwise convolution by torch, [b t d] to [b t d]."""
    taps = weight.shape[1]
    padded = nn.functional.pad(x.mT, (taps - 1, 0))
    return nn.functional.conv1d(padded, weight[:, None], bias, groups=len(weight)).mT
