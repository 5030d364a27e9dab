"""Kimi Delta Attention against its equations and against transformers' layer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor
from transformers.models.kimi_linear import modeling_kimi_linear as public
from transformers.models.kimi_linear.configuration_kimi_linear import KimiLinearConfig

from chimera.mixer.kda import KimiDelta
from tests.kit import close, ctx, double, parts, site
from tests.mixer import forms
from tests.reference.channels import low_rank

OPTIONS: list[dict[str, Any]] = [
    {},
    {"heads": 2, "head_dim": 5, "negative_eigenvalues": True, "conv": 0, "chunk": 16},
]


def build(**options: Any) -> KimiDelta:
    return double(lambda: KimiDelta(site(), parts(), **options))


def by_token(mixer: KimiDelta, x: Tensor) -> Tensor:
    """Equations of the module's docstring: (I − β k kᵀ) diag(α) = diag(α) − β k (k ⊙ α)ᵀ."""
    h, k_dim = mixer.heads, mixer.head_dim
    mixed = torch.cat([mixer.q_proj(x), mixer.k_proj(x), mixer.v_proj(x)], -1)
    if mixer.conv.weight is not None:
        mixed = forms.conv(mixed, mixer.conv.weight)
    q, k, v = (rearrange(y, "b t (h k) -> b h t k", h=h) for y in F.silu(mixed).chunk(3, -1))
    q, k = (y / y.norm(dim=-1, keepdim=True) for y in (q, k))
    logits = mixer.decay_proj.down(x) @ mixer.decay_proj.up.T + mixer.decay.dt_bias
    step = rearrange(torch.log1p(logits.exp()), "b t (h k) -> b h t k", h=h)
    g = -mixer.decay.A_log.exp()[:, None, None] * step
    beta = mixer.max_beta * mixer.beta_proj(x).sigmoid().mT[..., None]
    state = x.new_zeros(len(x), h, k_dim, k_dim)
    y, _ = low_rank(q / k_dim**0.5, beta * k, v, k * g.exp(), -beta * k, g, state)
    y = rearrange(y, "b h t k -> b t h k")
    y = y / (y.square().mean(-1, keepdim=True) + 1e-6).sqrt() * mixer.norm.weight
    gate = mixer.gate_proj.down(x) @ mixer.gate_proj.up.T
    return mixer.o_proj(y.flatten(2) * gate.sigmoid())


class TestForms(forms.Forms):
    build, oracle = staticmethod(build), staticmethod(by_token)
    options = OPTIONS
    forgets = ({"conv": 0}, {"decay.A_log": 10.0, "decay.dt_bias": 2.0})


@pytest.mark.parametrize("tokens", [1, 5, 70])
def test_is_the_layer_of_transformers(tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outputs with copied weights; theirs computes the recurrence in float32.

    Theirs adds 1e-6 to the square of a key's length. Without that, only rounding is left.
    """
    ours = build().float()
    config = KimiLinearConfig(
        hidden_size=32, num_hidden_layers=1, layer_types=["linear_attention"], rms_norm_eps=1e-6,
        linear_num_heads=4, linear_head_dim=8, linear_conv_kernel_dim=4, hidden_act="silu",
    )  # fmt: skip
    theirs = public.KimiLinearDeltaAttention(config, 0).eval()
    with torch.no_grad():
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            getattr(theirs, name).weight.copy_(getattr(ours, name).weight)
        theirs.b_proj.weight.copy_(ours.beta_proj.weight)
        theirs.conv1d.weight.copy_(ours.conv.weight[:, None])
        theirs.forget_gate.f_a_proj.weight.copy_(ours.decay_proj.down.weight)
        theirs.forget_gate.f_b_proj.weight.copy_(ours.decay_proj.up)
        theirs.forget_gate.A_log.copy_(ours.decay.A_log[:, None])
        theirs.forget_gate.dt_bias.copy_(ours.decay.dt_bias)
        theirs.g_a_proj.weight.copy_(ours.gate_proj.down.weight)
        theirs.g_b_proj.weight.copy_(ours.gate_proj.up)
        theirs.o_norm.weight.copy_(ours.norm.weight)
        x = torch.randn(2, tokens, 32)
        got = ours(x, ctx(tokens=tokens)).y
        close(got, theirs(x), 1e-3)
        monkeypatch.setattr(public, "l2norm", lambda x, dim, eps: F.normalize(x, dim=dim, eps=eps))
        close(got, theirs(x), 1e-5)
