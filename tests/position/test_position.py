"""Positions by rotation (as `transformers` scales them, and HOPE), by embedding and by bias."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.models.llama.modeling_llama import LlamaConfig, LlamaRotaryEmbedding

from chimera.contract_tests import zoo
from chimera.errors import UserError
from chimera.mixer.attention import Attention
from chimera.position import fire
from chimera.position.alibi import Alibi
from chimera.position.by_layer import ByLayer
from chimera.position.cope import Cope
from chimera.position.fire import Fire
from chimera.position.hope import Hope
from chimera.position.learned import Learned
from chimera.position.none import NoPosition
from chimera.position.relative import Relative
from chimera.position.rope import Rotary
from chimera.position.sinusoidal import Sinusoidal
from tests.kit import close, continues, double, grads, normal, parts, site

LENGTH = 64


def build(width: int = 32, **options: Any) -> Rotary:
    return Rotary(site(max_len=LENGTH), 4, width, **options)


def theirs(tokens: int, width: int = 32, **parameters: Any) -> tuple[Tensor, Tensor]:
    """cos and sin of the first `tokens` positions: [t half]."""
    config = LlamaConfig(
        hidden_size=4 * width,
        num_attention_heads=4,
        max_position_embeddings=LENGTH,
        rope_parameters={"rope_theta": 500.0, **parameters},
    )
    cos, sin = LlamaRotaryEmbedding(config)(torch.empty(1), torch.arange(tokens)[None])
    return cos[0, :, : width // 2], sin[0, :, : width // 2]


def ours(tokens: int, width: int = 32, **options: Any) -> tuple[Tensor, Tensor]:
    """cos and sin as the rotation of unit pairs (1, 0)."""
    unit = torch.zeros(1, 4, tokens, width)
    unit[..., 0::2] = 1
    turned, _ = build(width, base=500.0, **options).rotate(unit, unit, torch.arange(tokens)[None])
    return turned[0, 0, :, 0::2], turned[0, 0, :, 1::2]


@pytest.mark.parametrize(("tokens", "width"), [(1, 8), (64, 64), (200, 32)])
@pytest.mark.parametrize(
    ("options", "parameters", "tol"),
    [
        ({}, {"rope_type": "default"}, 1e-5),
        ({"scaling": "linear"}, {"rope_type": "linear", "factor": 4.0}, 1e-5),
        # x**y by two orders of float32 operations
        ({"scaling": "dynamic_ntk"}, {"rope_type": "dynamic", "factor": 4.0}, 1e-4),
        *[
            ({"scaling": "yarn", "factor": factor}, {"rope_type": "yarn", "factor": factor}, 1e-5)
            for factor in (1.0, 16.0)
        ],
    ],
)
def test_is_that_of_transformers(
    tokens: int, width: int, options: dict[str, Any], parameters: dict[str, Any], tol: float
) -> None:
    if parameters["rope_type"] == "yarn":
        parameters = {**parameters, "original_max_position_embeddings": LENGTH}
    close(ours(tokens, width, **options), theirs(tokens, width, **parameters), tol)


@pytest.mark.parametrize(("tokens", "width"), [(1, 8), (64, 64), (200, 32)])
def test_ntk_is_dynamic_at_the_stretched_length(tokens: int, width: int) -> None:
    """transformers' rule with factor 1 at 4·L tokens stretches the base by 4."""
    whole = theirs(4 * LENGTH, width, rope_type="dynamic", factor=1.0)
    want = tuple(x[:tokens] for x in whole)
    close(ours(tokens, width, scaling="ntk", factor=4.0), want, 1e-4)


@pytest.mark.parametrize(
    ("fast", "slow", "length"), [(32.0, 1.0, 4096), (8.0, 2.0, 1000), (3.0, 3.0, 32)]
)
def test_yarn_ramp_lies_where_the_turns_are(fast: float, slow: float, length: int) -> None:
    both = {"beta_fast": fast, "beta_slow": slow}
    want = theirs(99, rope_type="yarn", factor=4.0, original_max_position_embeddings=length, **both)
    got = ours(99, scaling="yarn", original_len=length, **both)
    close(got, want, 1e-5)


def test_neighbours_in_the_batch_do_not_stretch_a_sequence() -> None:
    rope = build(scaling="dynamic_ntk")
    q = torch.randn(2, 4, 5, 32).double()
    pos = torch.stack([torch.arange(5), torch.arange(300, 305)])
    both, _ = rope.rotate(q, q, pos)
    for i in range(2):
        close(both[i : i + 1], rope.rotate(q[i : i + 1], q[i : i + 1], pos[i : i + 1])[0])


def test_turns_fewer_key_heads_alike() -> None:
    rope, pos = build(), torch.arange(5)[None]
    q, k = torch.randn(2, 4, 5, 32), torch.randn(2, 2, 5, 32)
    close(rope.rotate(q, k, pos)[1], rope.rotate(k, q, pos)[0])


@pytest.mark.parametrize("fraction", [0.25, 0.5])
def test_partial_rotation_leaves_the_other_channels(fraction: float) -> None:
    whole, part = Rotary(site(), 4, int(16 * fraction)), Rotary(site(), 4, 16, fraction=fraction)
    q, k = torch.randn(2, 2, 4, 9, 16).double()
    pos, width = torch.arange(9)[None], int(16 * fraction)
    for got, x, want in zip(
        part.rotate(q, k, pos),
        (q, k),
        whole.rotate(q[..., :width], k[..., :width], pos),
        strict=True,
    ):
        close(got[..., :width], want, 1e-12)
        assert got[..., width:].equal(x[..., width:])
    for bad in (0.05, 0.2):
        with pytest.raises(ValueError, match=f"position.fraction={bad} rotates"):
            Rotary(site(), 4, 16, fraction=bad)


def test_hope_is_the_rotation_projected_on_a_sphere() -> None:
    hope, pos = Hope(site(), 4, 8).double(), torch.arange(5)[None]
    with torch.no_grad():
        hope.log_radius.copy_(torch.tensor([0.0, 1.0, 2.0, -1.0]))
    q, k = torch.randn(2, 4, 5, 8).double(), torch.randn(2, 2, 5, 8).double()
    turned = Rotary(site(), 4, 8).rotate(q, k, pos)
    radius = torch.tensor([0.0, 1.0, 2.0, -1.0]).double().exp()[:, None, None]
    got = hope.rotate(q, k, pos)
    close(got[0], turned[0] / turned[0].norm(dim=-1, keepdim=True) * radius)
    close(got[1], turned[1] / turned[1].norm(dim=-1, keepdim=True) * 8**0.5)


def test_nothing_stays_nothing_on_a_sphere() -> None:
    zero = torch.zeros(1, 4, 2, 8)
    close(Hope(site(), 4, 8).rotate(zero, zero, torch.arange(2)[None]), (zero, zero))


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="needs an even head width"):
        build(7)
    with pytest.raises(ValueError, match="needs an even head width"):
        Hope(site(), 4, 7)
    with pytest.raises(ValueError, match="scaling=ntk"):
        build(2, scaling="ntk")


def cope_by_loops(q: Tensor, k: Tensor, e: Tensor, causal: bool) -> Tensor:
    """Equations 3 to 5 of 2405.18719, a score at a time; q, k [h t k]."""
    (h, t, width), longest = q.shape, len(e) - 1
    bias = torch.zeros(h, t, t, dtype=q.dtype)
    for head in range(h):
        for i in range(t):
            for j in range(i + 1 if causal else t):
                between = range(min(i, j), max(i, j) + 1)
                gates = [torch.sigmoid(q[head, i] @ k[head, n] / width**0.5) for n in between]
                p = torch.stack(gates).sum().clamp(max=longest)
                low = math.floor(p)
                z_low, z_high = q[head, i] @ e[low], q[head, i] @ e[min(low + 1, longest)]
                bias[head, i, j] = ((low + 1 - p) * z_low + (p - low) * z_high) / width**0.5
    return bias


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("longest", [3, 64])
def test_cope_is_its_equations(causal: bool, longest: int) -> None:
    position = Cope(site(causal=causal), 2, 8, longest=longest, init_std=1.0).double()
    q, k = torch.randn(2, 1, 2, 7, 8).double().requires_grad_().unbind(0)
    want = cope_by_loops(q[0], k[0], position.vectors, causal)
    got = position.content(q, k, None)[0]
    seen = torch.ones(7, 7).tril() if causal else torch.ones(7, 7)
    weight = torch.randn(2, 7, 7).double() * seen
    close(got * seen, want * seen, 1e-10)
    of = [position.vectors]
    close(grads((got * weight).sum(), of), grads((want * weight).sum(), of), 1e-10)


@pytest.mark.parametrize("left", [True, False])
def test_cope_counts_no_padding_and_decodes(left: bool) -> None:
    def build() -> Attention:
        position = lambda *of: Cope(*of, longest=4, init_std=1.0)  # noqa: E731
        return Attention(site(), parts(position=position), kv_heads=2)

    continues(double(build), [5, 9, 2], 3, left=left)


@pytest.mark.parametrize("causal", [True, False])
def test_fire_is_its_equation(causal: bool) -> None:
    """Equation 19 of 2310.04418, a distance at a time, below and above the threshold."""
    position = Fire(site(causal=causal), 3, 8, threshold=5.0).double()
    position.scale.data.fill_(0.25)  # exact in float32 too
    pos = torch.arange(12)[None]
    got = position.bias(pos, pos)
    c, first, second = 0.25, position.up, position.down
    psi = lambda x: math.log(c * x + 1)  # noqa: E731
    for i in range(12):
        for j in range(i + 1 if causal else 12):
            ratio = psi(abs(i - j)) / (psi(max(i, j, 5.0)) + 1e-6)
            hidden = (first.weight[:, 0] * ratio + first.bias).clamp(min=0)
            close(got[0, :, i, j], second.weight @ hidden + second.bias, 1e-10)
    assert Fire(site(), 3, 8).threshold == 512


def test_fire_in_blocks_of_queries_is_fire(monkeypatch: pytest.MonkeyPatch) -> None:
    position, pos = (
        Fire(site(), 3, 8).double(),
        torch.stack([torch.arange(12), torch.arange(3, 15)]),
    )
    found = []
    for pairs in (10**6, 50):  # rows of 12 keys for two texts: two at a time
        monkeypatch.setattr(fire, "PAIRS", pairs)
        bias = position.bias(pos, pos)
        found.append([bias, *grads(bias.sin().sum(), position)])
    close(found[1], found[0], 1e-12)


def by_layer(layer: int, **members: Any) -> ByLayer:
    members = members or {"rope": Rotary, "none": NoPosition}
    where = site(depth=8, layer=layer)
    return ByLayer(where, 4, 8, cycle=list(members), members=members)


def test_positions_by_layer() -> None:
    q = torch.randn(2, 4, 9, 8).double()
    pos = torch.arange(9)[None]
    for layer in range(4):
        position, rotates = by_layer(layer), layer % 2 == 0
        assert position.provides == {"rotate"}
        assert position.rotate(q, q, pos)[0].equal(q) != rotates
    assert by_layer(1, rope=Rotary, alibi=Alibi).bias(pos, pos) is not None
    assert by_layer(0, rope=Rotary, alibi=Alibi).provides == {"rotate", "bias"}
    with pytest.raises(ValueError, match=r"position\.cycle has learned, which adds"):
        by_layer(0, learned=Learned)


@pytest.mark.parametrize("position", ["rope_nope", "cope"])
def test_a_mixer_that_cannot_is_refused_in_one_line(position: str) -> None:
    with pytest.raises(UserError, match=f"position={position} needs .*mixer=mamba") as caught:
        zoo.build(zoo.TINY, {"mixer": "mamba", "position": position}, causal=True)
    assert "\n" not in str(caught.value)


def test_learned_adds_its_row() -> None:
    learned = Learned(site(max_len=8), 4, 8)
    x, pos = torch.randn(2, 3, 32), torch.tensor([[0, 1, 2], [5, 6, 7]])
    close(learned.embed(x, pos), x + learned.vectors[pos])
    close(learned.embed(x, pos[:1]), x + learned.vectors[:3])


def test_learned_says_where_its_table_ends() -> None:
    learned = Learned(site(max_len=8), 4, 8)
    assert learned.max_positions == 8
    line = learned.too_long(9)
    assert re.search(r"max_len=8 .* sequence has 9; .*sinusoidal, rope", line)
    assert "\n" not in line


def test_learned_has_a_shape_on_the_meta_device() -> None:
    with torch.device("meta"):
        learned = Learned(site(max_len=8), 4, 8)
        assert learned.embed(torch.empty(2, 8, 32), torch.arange(8)[None]).shape == (2, 8, 32)


def test_sinusoidal_is_the_papers_formula() -> None:
    x, pos = torch.zeros(1, 3, 32).double(), torch.tensor([[0, 7, 4000]])
    got = Sinusoidal(site(), 4, 8, scale=0.5).embed(x, pos)[0]
    for row, p in zip(got, (0, 7, 4000), strict=True):
        for i in range(16):
            angle = p / 10000 ** (2 * i / 32)
            assert math.isclose(row[2 * i], 0.5 * math.sin(angle), abs_tol=1e-9)
            assert math.isclose(row[2 * i + 1], 0.5 * math.cos(angle), abs_tol=1e-9)


def test_sinusoidal_keeps_the_dtype() -> None:
    x = torch.zeros(2, 3, 32, dtype=torch.bfloat16)
    assert Sinusoidal(site(), 4, 8).embed(x, torch.arange(3)[None]).dtype == torch.bfloat16


def test_sinusoidal_needs_an_even_width() -> None:
    with pytest.raises(ValueError, match="needs an even model width"):
        Sinusoidal(site(dim=33), 3, 11)


def test_learned_vectors_start_normal() -> None:
    normal(Learned(site(max_len=500), 4, 8).vectors, std=0.02)
    normal(Learned(site(max_len=500), 4, 8, init_std=0.3).vectors, std=0.3)


@pytest.mark.parametrize("heads", [1, 3, 8])
def test_alibi_is_a_slope_times_the_distance(heads: int) -> None:
    pos_q, pos_k = torch.tensor([[4], [9]]), torch.tensor([[0, 4, 6], [1, 9, 5]])
    bias = Alibi(site(), heads, 8).bias(pos_q, pos_k)
    assert bias.shape == (2, heads, 1, 3)
    for h in range(heads):
        slope = 2 ** (-8 * (h + 1) / heads)
        want = [[-4 * slope, 0, -2 * slope], [-8 * slope, 0, -4 * slope]]
        close(bias[:, h, 0], torch.tensor(want), 1e-6)


def test_relative_looks_up_the_clipped_distance() -> None:
    relative = Relative(site(), 4, 8, max_distance=3)
    assert relative.biases.shape == (7, 4)
    pos_q, pos_k = torch.tensor([[5]]), torch.tensor([[0, 2, 3, 5, 6, 8, 99]])
    apart = [3, 3, 2, 0, -1, -3, -3]
    want = torch.stack([relative.biases[3 + d] for d in apart], -1)
    close(relative.bias(pos_q, pos_k), want[None, :, None])


def test_relative_biases_start_normal() -> None:
    biases = Relative(site(), 16, 8, max_distance=500, init_std=0.3).biases
    assert biases.shape == (1001, 16)
    normal(biases, std=0.3)
