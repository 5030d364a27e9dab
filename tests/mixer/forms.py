"""What every mixer keeps in float64: its definition, pieces of a text, padding, half precision.

The contract tests hold all mixers to the same with the options of their YAML files, at 16 tokens.
The options here are such that a text has several chunks or windows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from tests.kit import close, continues, ctx, grads, in_pieces, ragged

#: (mixer, x [b t d]) -> y [b t d] of texts without padding, token by token.
Oracle = Callable[[Any, Tensor], Tensor]
#: Largest difference of outputs, states and gradients, absolute and relative.
EXACT = 1e-10


class Pieces:
    """Tests of a mixer whose pass over a whole text is held against something else."""

    build: ClassVar[Callable[..., nn.Module]]  # (**options), 32 wide, in float64
    options: ClassVar[list[Any]] = [{}]  # dictionaries, or parameters of pytest with one
    encoders: ClassVar[bool] = False  # whether `build` takes causal=False
    tokens: ClassVar[tuple[int, ...]] = (65,)
    constant: ClassVar[bool] = True  # whether the state keeps its size
    wide: ClassVar[bool] = True  # whether it has matrices, which stay in float32
    size: ClassVar[float] = 30.0  # standard deviation of inputs in half precision
    tol: ClassVar[float] = EXACT
    #: Options and values of parameters with which the decay is the strongest.
    forgets: ClassVar[tuple[dict[str, Any], dict[str, float]] | None] = None

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if "chosen" in metafunc.fixturenames:
            metafunc.parametrize("chosen", self.options, ids=str)
        if "count" in metafunc.fixturenames:
            metafunc.parametrize("count", self.tokens)
        if "causal" in metafunc.fixturenames:
            metafunc.parametrize("causal", [True, False] if self.encoders else [True])

    def test_pieces_are_the_whole(self, chosen: dict[str, Any]) -> None:
        """Also gradients through the state; one pass is held against the definition above."""
        mixer = self.build(**chosen)
        x = torch.randn(2, 80, 32, dtype=torch.float64)[:, : max(self.tokens)].requires_grad_()
        y, states = in_pieces(mixer, x, (1, 2, 1, 35, 1, 80))
        want = mixer(x, ctx(tokens=x.shape[1])).y
        close(y, want, self.tol)
        sizes = {tuple(t.shape for t in tensors(state)) for state in states}
        assert (len(sizes) == 1) == self.constant
        weight = torch.randn_like(y) / y.numel() ** 0.5
        over = [x, *mixer.parameters()]
        close(grads((y * weight).sum(), over), grads((want * weight).sum(), over), self.tol)

    @pytest.mark.sampled(1, each=("left",))
    @pytest.mark.parametrize("left", [True, False], ids=["left", "right"])
    def test_padded_prompts_go_on(self, chosen: dict[str, Any], left: bool) -> None:
        continues(self.build(**chosen), (9, max(self.tokens), 1), 2, left=left, tol=self.tol)

    @pytest.mark.sampled(1, each=("left",))
    @pytest.mark.parametrize("left", [True, False], ids=["left", "right"])
    def test_encoders_ignore_padding(self, chosen: dict[str, Any], left: bool) -> None:
        if self.encoders:
            ignores_padding(self.build(**chosen, causal=False), left=left, tol=self.tol)

    def test_half_precision(self) -> None:
        for dtype in (torch.bfloat16, torch.float16):
            in_half_precision(self.build().to(dtype), dtype, size=self.size, wide=self.wide)

    def test_the_strongest_decay(self) -> None:
        if self.forgets:
            options, values = self.forgets
            mixer = self.build(**options)
            for name, value in values.items():
                mixer.get_parameter(name).data.fill_(value)
            forgets_all(mixer)


class Forms(Pieces):
    """The same, and a definition: `oracle`."""

    oracle: ClassVar[Oracle]

    def test_is_its_definition(self, chosen: dict[str, Any], causal: bool, count: int) -> None:
        more = {} if causal else {"causal": False}
        is_its_definition(self.build(**chosen, **more), self.oracle, count, self.tol)


def is_its_definition(mixer: nn.Module, oracle: Oracle, tokens: int, tol: float = EXACT) -> None:
    """Outputs and all gradients in one pass."""
    x = torch.randn(2, tokens, 32, dtype=torch.float64, requires_grad=True)
    got, want = mixer(x, ctx(tokens=tokens)).y, oracle(mixer, x)
    close(got, want, tol)
    weight = torch.randn_like(got) / got.numel() ** 0.5
    over = [x, *mixer.parameters()]
    close(grads((got * weight).sum(), over), grads((want * weight).sum(), over), tol)


def ignores_padding(mixer: nn.Module, *, left: bool, tol: float = EXACT) -> None:
    """A padded text has the outputs of the text alone; a row of padding alone is finite."""
    mask = ragged((23, 9, 1, 5), left=left)
    mask[3] = False
    x = torch.randn(4, 23, 32, dtype=torch.float64)
    y = mixer(x, ctx(mask)).y
    assert y.isfinite().all()
    for row, got, real in zip(x[:3], y, mask, strict=False):
        close(got[real], mixer(row[real][None], ctx(tokens=int(real.sum()))).y[0], tol)


def in_half_precision(mixer: nn.Module, dtype: torch.dtype, *, size: float, wide: bool) -> None:
    """Finite outputs in the dtype of the weights, and matrices of the state in float32."""
    x = size * torch.randn(1, 70, 32).to(dtype)
    out = mixer(x[:, :60], ctx(tokens=60), mixer.init_state(1))
    then = mixer(x[:, 60:61], ctx(tokens=1, start=60), out.state)
    assert out.y.dtype == then.y.dtype == dtype
    assert out.y.isfinite().all()
    assert then.y.isfinite().all()
    if wide:
        matrices = [t for t in tensors(then.state) if t.ndim >= 4]
        assert matrices
        assert all(t.dtype == torch.float32 for t in matrices)


def forgets_all(mixer: nn.Module) -> None:
    """With the strongest decay a token reads what it wrote itself, and nothing overflows."""
    x = torch.randn(1, 130, 32, dtype=torch.float64)
    y = mixer(x, ctx(tokens=130)).y
    alone = mixer(x[0, :, None], ctx(tokens=1)).y
    close(y[0], alone[:, 0])
    y.square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in mixer.parameters())


def tensors(state: Any) -> Iterable[Tensor]:
    """All tensors of a state."""
    if isinstance(state, Tensor):
        return [state]
    return [t for part in state or () for t in tensors(part)]


def conv(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Causal depthwise convolution by torch, [b t d] to [b t d]."""
    taps = weight.shape[1]
    padded = nn.functional.pad(x.mT, (taps - 1, 0))
    return nn.functional.conv1d(padded, weight[:, None], bias, groups=len(weight)).mT
