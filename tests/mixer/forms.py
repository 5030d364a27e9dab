"""What every mixer keeps in float64: its definition, pieces of a text, padding, half precision.

The contract tests hold all mixers to the same with the options of their YAML files, at 16 tokens.
The options here are such that a text has several chunks or windows. Below are the few operations
that many definitions need.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

import pytest
import torch
from einops import rearrange
from torch import Tensor, nn

from chimera.position.none import NoPosition
from tests.kit import close, continues, ctx, double, grads, in_pieces, parts, ragged, site

#: Largest difference of outputs, states and gradients, absolute and relative.
EXACT = 1e-10


class Pieces:
    """Tests of a mixer whose pass over a whole text is held against something else."""

    mixer: ClassVar[Any]  # its class
    where: ClassVar[dict[str, Any]] = {}  # what differs in its site
    given: ClassVar[dict[str, Any]] = {}  # options that hold unless a case has others
    options: ClassVar[list[Any]] = [{}]  # dictionaries, or parameters of pytest with one
    encoders: ClassVar[bool] = False  # whether it is built with causal=False, too
    tokens: ClassVar[tuple[int, ...]] = (65,)
    constant: ClassVar[bool] = True  # whether the state keeps its size
    wide: ClassVar[bool] = True  # whether it has matrices, which stay in float32
    size: ClassVar[float] = 30.0  # standard deviation of inputs in half precision
    tol: ClassVar[float] = EXACT
    #: Options and values of parameters with which the decay is the strongest.
    forgets: ClassVar[tuple[dict[str, Any], dict[str, float]] | None] = None

    @classmethod
    def build(cls, causal: bool = True, **options: Any) -> Any:
        """The mixer, 32 wide, in float64."""
        given = {**cls.given, **options}
        chosen = parts(position=given.pop("position", NoPosition))
        made = double(lambda: cls.mixer(site(causal=causal, **cls.where), chosen, **given))
        with torch.no_grad():
            cls.stir(made)
        return made

    @staticmethod
    def stir(mixer: Any) -> None:
        """Change parameters whose initial values, 0 or 1, would hide errors."""

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if "chosen" in metafunc.fixturenames:
            metafunc.parametrize("chosen", self.options, ids=str)
        if "count" in metafunc.fixturenames:
            metafunc.parametrize("count", self.tokens)
        if "causal" in metafunc.fixturenames:
            metafunc.parametrize("causal", [True, False] if self.encoders else [True])

    def test_pieces_are_the_whole(self, chosen: dict[str, Any]) -> None:
        """Also gradients through the state; one pass is held against the definition below."""
        mixer = self.build(**chosen)
        x = torch.randn(2, 80, 32, dtype=torch.float64)[:, : max(self.tokens)].requires_grad_()
        y, states = in_pieces(mixer, x, (1, 2, 1, 35, 1, 80))
        same(y, mixer(x, ctx(tokens=x.shape[1])).y, mixer, x, self.tol)
        sizes = {tuple(t.shape for t in tensors(state)) for state in states}
        assert (len(sizes) == 1) == self.constant

    @pytest.mark.sampled(1, each=("left",))
    @pytest.mark.parametrize("left", [True, False], ids=["left", "right"])
    def test_padded_prompts_go_on(self, chosen: dict[str, Any], left: bool) -> None:
        continues(self.build(**chosen), (9, max(self.tokens), 1), 2, left=left, tol=self.tol)

    @pytest.mark.sampled(1, each=("left",))
    @pytest.mark.parametrize("left", [True, False], ids=["left", "right"])
    def test_encoders_ignore_padding(self, chosen: dict[str, Any], left: bool) -> None:
        """A padded text has the outputs of the text alone; a row of padding alone is finite."""
        if not self.encoders:
            return
        mixer, mask = self.build(**chosen, causal=False), ragged((23, 9, 1, 5), left=left)
        mask[3] = False
        x = torch.randn(4, 23, 32, dtype=torch.float64)
        y = mixer(x, ctx(mask)).y
        assert y.isfinite().all()
        for row, got, real in zip(x[:3], y, mask, strict=False):
            close(got[real], mixer(row[real][None], ctx(tokens=int(real.sum()))).y[0], self.tol)

    def test_half_precision(self) -> None:
        """Finite outputs in the dtype of the weights, and matrices of the state in float32."""
        for dtype in (torch.bfloat16, torch.float16):
            mixer, x = self.build().to(dtype), self.size * torch.randn(1, 70, 32).to(dtype)
            out = mixer(x[:, :60], ctx(tokens=60), mixer.init_state(1))
            then = mixer(x[:, 60:61], ctx(tokens=1, start=60), out.state)
            assert out.y.dtype == then.y.dtype == dtype
            assert out.y.isfinite().all()
            assert then.y.isfinite().all()
            matrices = [t for t in tensors(then.state) if t.ndim >= 4]
            assert not self.wide or matrices
            assert not self.wide or all(t.dtype == torch.float32 for t in matrices)

    def test_the_strongest_decay(self) -> None:
        if self.forgets:
            options, values = self.forgets
            mixer = self.build(**options)
            for name, value in values.items():
                mixer.get_parameter(name).data.fill_(value)
            forgets_all(mixer)


class Forms(Pieces):
    """The same, and a definition: texts [b t d] without padding, token by token."""

    @staticmethod
    def oracle(mixer: Any, x: Tensor) -> Tensor:
        raise NotImplementedError

    def test_is_its_definition(self, chosen: dict[str, Any], causal: bool, count: int) -> None:
        mixer = self.build(**chosen, causal=causal)
        x = torch.randn(2, count, 32, dtype=torch.float64, requires_grad=True)
        same(mixer(x, ctx(tokens=count)).y, self.oracle(mixer, x), mixer, x, self.tol)


def same(got: Tensor, want: Tensor, mixer: nn.Module, x: Tensor, tol: float = EXACT) -> None:
    """Compare outputs, and gradients of inputs and parameters."""
    close(got, want, tol)
    weight = torch.randn_like(got) / got.numel() ** 0.5
    over = [x, *mixer.parameters()]
    close(grads((got * weight).sum(), over), grads((want * weight).sum(), over), tol)


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


def conv(x: Tensor, weight: Tensor | None, bias: Tensor | None = None) -> Tensor:
    """Causal depthwise convolution by torch, [b t d] to [b t d]; x itself without a weight."""
    if weight is None:
        return x
    taps = weight.shape[1]
    padded = nn.functional.pad(x.mT, (taps - 1, 0))
    return nn.functional.conv1d(padded, weight[:, None], bias, groups=len(weight)).mT


def split(x: Tensor, h: int) -> Tensor:
    """Heads [b h t k] of [b t (h k)]."""
    return rearrange(x, "b t (h k) -> b h t k", h=h)


def join(x: Tensor) -> Tensor:
    """The inverse of `split`."""
    return rearrange(x, "b h t k -> b t (h k)")


def unit(x: Tensor) -> Tensor:
    return x / x.norm(dim=-1, keepdim=True)


def rms(x: Tensor, eps: float = 1e-6) -> Tensor:
    """RMSNorm without a weight."""
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt()


def read(q: Tensor, k: Tensor, v: Tensor, bias: Any = 0.0, *, causal: bool = True) -> Tensor:
    """softmax(q kᵀ/√k + bias) v of heads; neighbouring query heads share a key head."""
    k, v = (y.repeat_interleave(q.shape[1] // y.shape[1], 1) for y in (k, v))
    scores = q @ k.mT / q.shape[-1] ** 0.5 + bias
    hidden = torch.ones(scores.shape[-2:]).triu(1).bool() & causal
    return scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v
