"""Softmax attention over all tokens, and its kinds, against their definitions (SPEC M1, M2).

`tests/model/test_from_hf.py` holds attention against Llama and Qwen, the gated one against
Qwen3-Next of `transformers`.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor
from transformers.models.deepseek_v3.configuration_deepseek_v3 import DeepseekV3Config
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Attention
from transformers.models.diffllama.configuration_diffllama import DiffLlamaConfig
from transformers.models.diffllama.modeling_diffllama import DiffLlamaAttention

from chimera.mixer.attention import Attention
from chimera.mixer.differential import Differential
from chimera.mixer.forgetting import Forgetting
from chimera.mixer.gated_attention import GatedAttention
from chimera.mixer.mla import LatentAttention
from chimera.mixer.path import Path
from chimera.ops.rotary import angles, frequencies
from chimera.position.alibi import Alibi
from chimera.position.relative import Relative
from chimera.position.rope import Rotary
from tests.kit import close, ctx, double, grads, parts, site
from tests.mixer import forms
from tests.mixer.forms import join, read, rms, split, unit
from tests.reference.attention import path


def projected(m: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values by head, rotated, and the bias of scores."""
    pos = torch.arange(x.shape[1])[None]
    h, g = m.heads.h, m.heads.g
    q, k, v = split(m.q_proj(x), h), split(m.k_proj(x), g), split(m.v_proj(x), g)
    bias = m.position.bias(pos, pos) if "bias" in m.position.provides else 0.0
    return *m.position.rotate(q, k, pos), v, bias


class TestAttention(forms.Forms):
    mixer = Attention
    options: ClassVar = [
        {},
        {"kv_heads": 2, "position": Rotary},
        {"kv_heads": 1, "position": Alibi},
        {"position": Relative},
    ]
    encoders, constant, wide, tokens = True, False, False, (17,)

    @staticmethod
    def oracle(m: Any, x: Tensor) -> Tensor:
        return m.o_proj(join(read(*projected(m, x), causal=m.causal)))


class TestGated(forms.Forms):
    mixer = GatedAttention
    options: ClassVar = [{}, {"kv_heads": 2, "head_dim": 16, "bias": True}]
    constant, wide, tokens = False, False, (9,)

    @staticmethod
    def oracle(m: Any, x: Tensor) -> Tensor:
        return m.o_proj(join(read(*projected(m, x))) * m.gate_proj(x).sigmoid())


class TestForgetting(forms.Forms):
    mixer = Forgetting
    options: ClassVar = [{}, {"kv_heads": 2}, {"position": Alibi}]
    constant, wide, tokens = False, False, (17,)

    @staticmethod
    def stir(m: Any) -> None:
        m.gate_bias.normal_()

    @staticmethod
    def oracle(m: Any, x: Tensor) -> Tensor:
        """The product of the gates between a key and a query weights exp of their score."""
        q, k, v, bias = projected(m, x)
        f = (m.gate_proj(x) + m.gate_bias).sigmoid().mT
        kept = torch.ones_like(q @ q.mT)
        for i in range(x.shape[1]):
            for j in range(i):
                kept[:, :, i, j] = f[:, :, j + 1 : i + 1].prod(-1)
        return m.o_proj(join(read(q, k, v, kept.log() + bias)))


def test_closed_gates_see_the_token_alone_and_their_sum_stays_wide() -> None:
    mixer, x = TestForgetting.build(), torch.randn(2, 9, 32, dtype=torch.float64)
    mixer.gate_bias.data.fill_(-1e4)
    y = mixer(x, ctx(tokens=9)).y
    close(y, mixer.o_proj(mixer.v_proj(x)))
    assert all(g.isfinite().all() for g in grads(y.sum(), mixer))
    half = TestForgetting.build().bfloat16()
    out = half(x.bfloat16(), ctx(tokens=9), half.init_state(2))
    assert out.state.total.dtype == torch.float32


class TestDifferential(forms.Forms):
    mixer, where = Differential, {"depth": 4, "layer": 2}
    options: ClassVar = [{}, {"heads": 1}]
    encoders, constant, wide, tokens = True, False, False, (17,)

    @staticmethod
    def stir(m: Any) -> None:
        m.norm.normal_()

    @staticmethod
    def oracle(m: Any, x: Tensor, layer: int = 2) -> Tensor:
        """Eq. 1 to 3: a head has two maps, over the same values."""
        start = 0.8 - 0.6 * math.exp(-0.3 * layer)
        lq1, lk1, lq2, lk2 = m.lambdas
        scale = torch.exp(lq1 @ lk1) - torch.exp(lq2 @ lk2) + start
        q, k = split(m.q_proj(x), m.heads.h), split(m.k_proj(x), m.heads.h)
        v = split(m.v_proj(x), m.heads.h // 2)
        first, second = (read(q[:, n::2], k[:, n::2], v, causal=m.causal) for n in (0, 1))
        return m.o_proj(join((1 - start) * rms(first - scale * second, 1e-5) * m.norm))


def test_the_first_share_of_the_second_map_grows_with_the_logical_layer() -> None:
    mixer = double(lambda: Differential(site(depth=4, layer=1, loops=2), parts()))
    x = torch.randn(1, 5, 32, dtype=torch.float64)
    close(mixer(x, ctx(tokens=5, loop=1)).y, TestDifferential.oracle(mixer, x, layer=5), 1e-10)


@pytest.mark.parametrize("tokens", [1, 12])
def test_differential_is_the_layer_of_transformers(tokens: int) -> None:
    """Copied weights, without positions: rotation by 0. Theirs has all first maps, then second."""
    ours = TestDifferential.build(heads=2).float()
    config = DiffLlamaConfig(
        hidden_size=32, num_attention_heads=4, num_key_value_heads=4, rms_norm_eps=1e-5,
        num_hidden_layers=4, attention_bias=False,
    )  # fmt: skip
    config._attn_implementation = "sdpa"
    theirs = DiffLlamaAttention(config, 2).eval()
    with torch.no_grad():
        ours.norm.fill_(1.0)
        for name in ("q_proj", "k_proj", "v_proj"):
            rows = rearrange(getattr(ours, name).weight, "(h n k) d -> (n h k) d", h=2, n=2)
            getattr(theirs, name).weight.copy_(rows)
        theirs.o_proj.weight.copy_(ours.o_proj.weight)
        names = ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2")
        for name, values in zip(names, ours.lambdas, strict=True):
            getattr(theirs, name).copy_(values)
        x = torch.randn(2, tokens, 32)
        still = torch.ones(2, tokens, 8), torch.zeros(2, tokens, 8)
        close(ours(x, ctx(tokens=tokens)).y, theirs(x, still, None)[0], 1e-5)


def turn(x: Tensor) -> Tensor:
    """RoPE of [… t r]: neighbouring channels are a complex number."""
    t, pairs = x.shape[-2], x.shape[-1] // 2
    rates = 10000.0 ** (-torch.arange(pairs, dtype=torch.float64) / pairs)
    angle = torch.arange(t, dtype=torch.float64)[:, None] * rates
    z = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(z * torch.polar(torch.ones_like(angle), angle)).flatten(-2)


class TestLatent(forms.Forms):
    mixer, given = LatentAttention, {"position": Rotary}
    options: ClassVar = [{}, {"rank": 6, "rotated": 2, "query_rank": 10}]
    encoders, constant, wide, tokens = True, False, False, (9,)

    @staticmethod
    def stir(m: Any) -> None:
        m.kv_norm.normal_()
        if m.q_norm is not None:
            m.q_norm.normal_()

    @staticmethod
    def oracle(m: Any, x: Tensor) -> Tensor:
        """Equations of the module's docstring."""
        k, r = m.head_dim, m.rotated
        c, shared = m.kv_down(x).split((m.rank, r), -1)
        keys, values = split(m.kv_proj(rms(c) * m.kv_norm), m.heads).split(k, -1)
        c_q = x if m.q_down is None else rms(m.q_down(x)) * m.q_norm
        q_n, q_r = split(m.q_proj(c_q), m.heads).split((k, r), -1)
        turned = turn(shared)[:, None].expand(-1, m.heads, -1, -1)
        q, keys = torch.cat([q_n, turn(q_r)], -1), torch.cat([keys, turned], -1)
        return m.o_proj(join(read(q, keys, values, causal=m.causal)))


def public(ours: Any) -> DeepseekV3Attention:
    """DeepSeek-V3's layer with our weights, in float64."""
    config = DeepseekV3Config(
        hidden_size=32, num_attention_heads=4, num_key_value_heads=4, num_hidden_layers=1,
        q_lora_rank=None if ours.q_down is None else ours.q_down.weight.shape[0],
        kv_lora_rank=ours.rank, qk_rope_head_dim=ours.rotated, qk_nope_head_dim=8, v_head_dim=8,
        attention_bias=False, rope_interleave=True,
    )  # fmt: skip
    config._attn_implementation = "sdpa"
    theirs = DeepseekV3Attention(config, 0).double().eval()
    # A head's rows of W_ukv are its k_n and v in both.
    pairs = [(theirs.kv_a_proj_with_mqa, ours.kv_down), (theirs.kv_b_proj, ours.kv_proj)]
    pairs += [(theirs.o_proj, ours.o_proj)]
    pairs += [(theirs.q_proj if ours.q_down is None else theirs.q_b_proj, ours.q_proj)]
    with torch.no_grad():
        for their, own in pairs:
            their.weight.copy_(own.weight)
        theirs.kv_a_layernorm.weight.copy_(ours.kv_norm)
        if ours.q_down is not None:
            theirs.q_a_proj.weight.copy_(ours.q_down.weight)
            theirs.q_a_layernorm.weight.copy_(ours.q_norm)
    return theirs


@pytest.mark.parametrize("options", TestLatent.options, ids=str)
@pytest.mark.parametrize("tokens", [1, 12])
def test_latent_is_the_layer_of_deepseek(tokens: int, options: dict[str, Any]) -> None:
    """Their norm and their rotation are in float32, which sets the tolerance."""
    ours, x = TestLatent.build(**options), torch.randn(2, tokens, 32, dtype=torch.float64)
    cos, sin = angles(torch.arange(tokens)[None], frequencies(ours.rotated // 2, 10000.0, like=x))
    cos, sin = (torch.cat([y, y], -1).reshape(1, tokens, -1) for y in (cos, sin))
    want, _ = public(ours)(x, (cos, sin), None)
    close(ours(x, ctx(tokens=tokens)).y, want, 1e-6)


def test_the_cache_of_latent_attention_is_small() -> None:
    mixer = TestLatent.build(**TestLatent.options[1])
    state = mixer(torch.randn(3, 5, 32).double(), ctx(tokens=5), mixer.init_state(3)).state
    assert (state.k.shape, state.v.shape) == ((3, 1, 5, 6), (3, 1, 5, 2))


class TestPath(forms.Forms):
    mixer = Path
    options: ClassVar = [
        {"kv_heads": 2, "rank": 5, "conv": 0, "chunk": 8},
        pytest.param({}, marks=pytest.mark.slow),
    ]
    constant, wide, tokens = False, False, (17,)

    @staticmethod
    def stir(m: Any) -> None:
        m.beta_bias.normal_()

    @staticmethod
    def oracle(m: Any, x: Tensor) -> Tensor:
        """Equations of the module's docstring."""
        q, k, v, _ = projected(m, x)
        w = forms.conv(m.w_proj.down(x) @ m.w_proj.up.T, m.conv.weight)
        w = unit(split(F.silu(w), m.heads.g))
        beta = 2 * (m.beta_proj(x) + m.beta_bias).sigmoid().mT
        k, v, w, beta = (y.repeat_interleave(m.heads.h // m.heads.g, 1) for y in (k, v, w, beta))
        return m.o_proj(join(path(q / m.head_dim**0.5, k, v, w, beta)[0]))


def test_path_keeps_keys_wide_in_half_precision() -> None:
    mixer = TestPath.build().bfloat16()
    out = mixer(torch.randn(1, 9, 32).bfloat16(), ctx(tokens=9), mixer.init_state(1))
    assert (out.state.cache.k.dtype, out.state.cache.v.dtype) == (torch.float32, torch.bfloat16)


def test_path_without_maps_is_attention() -> None:
    """With β = 0, also the bias of positions and dropout's place are those of attention."""
    mixer, plain = TestPath.build(position=Alibi), TestAttention.build(position=Alibi)
    mixer.beta_bias.data.fill_(-1e3)
    for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
        setattr(plain, name, getattr(mixer, name))
    x = torch.randn(2, 9, 32, dtype=torch.float64)
    close(mixer(x, ctx(tokens=9)).y, plain(x, ctx(tokens=9)).y, 1e-12)


def test_only_the_convolution_of_path_reads_other_documents() -> None:
    assert not TestPath.build().documents
    mixer, x = TestPath.build(conv=0), torch.randn(1, 9, 32, dtype=torch.float64)
    assert mixer.documents
    packed = replace(ctx(tokens=9), documents=torch.tensor([[0] * 4 + [1] * 5]))
    close(mixer(x, packed).y[:, 4:], mixer(x[:, 4:], ctx(tokens=5)).y)
