"""Gated DeltaNet against its equations and against Qwen3-Next's layer with copied weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor
from transformers.models.qwen3_next import modeling_qwen3_next as public
from transformers.models.qwen3_next.configuration_qwen3_next import Qwen3NextConfig

from chimera.mixer.gated_delta import GatedDelta
from tests.kit import close, ctx, double, parts, site
from tests.mixer import forms
from tests.reference.gated_delta import gated_delta

OPTIONS: list[dict[str, Any]] = [
    {},
    {"heads": 2, "key_heads": 1, "negative_eigenvalues": True, "conv": 0},
    {"heads": 4, "key_heads": 2, "key_expand": 0.5, "value_expand": 1.0, "conv": 2},
]


def build(**options: Any) -> GatedDelta:
    mixer = double(lambda: GatedDelta(site(), parts(), **options))
    assert isinstance(mixer, GatedDelta)
    return mixer


def by_token(mixer: GatedDelta, x: Tensor) -> Tensor:
    """Equations of the module's docstring, eq. 10 with Sᵀ in place of S."""
    h, groups = mixer.heads, mixer.heads // mixer.key_heads
    mixed = torch.cat([mixer.q_proj(x), mixer.k_proj(x), mixer.v_proj(x)], -1)
    if mixer.conv.weight is not None:
        mixed = forms.conv(mixed, mixer.conv.weight)
    q, k, v = F.silu(mixed).split(mixer.widths, -1)
    q, k = (rearrange(y, "b t (h k) -> b h t k", h=mixer.key_heads) for y in (q, k))
    q, k = ((y / y.norm(dim=-1, keepdim=True)).repeat_interleave(groups, 1) for y in (q, k))
    v = rearrange(v, "b t (h v) -> b h t v", h=h)
    beta = mixer.max_beta * mixer.beta_proj(x).sigmoid()
    step = torch.log1p((mixer.decay_proj(x) + mixer.decay.dt_bias).exp())
    alpha = torch.exp(-mixer.decay.A_log.exp() * step)
    state = x.new_zeros(len(x), h, v.shape[-1], q.shape[-1])
    y, _ = gated_delta(q / q.shape[-1] ** 0.5, k, v, beta.mT, alpha.mT, state)
    y = rearrange(y, "b h t v -> b t h v")
    y = y / (y.square().mean(-1, keepdim=True) + 1e-6).sqrt() * mixer.norm.weight
    return mixer.o_proj(y.flatten(2) * F.silu(mixer.z_proj(x)))


class TestForms(forms.Forms):
    build, oracle = staticmethod(build), staticmethod(by_token)
    options = OPTIONS
    forgets = ({"conv": 0}, {"decay.A_log": 10.0, "decay.dt_bias": 2.0})


@pytest.mark.parametrize("tokens", [1, 5, 70])
def test_is_the_layer_of_qwen3_next(tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outputs with copied weights; theirs computes the recurrence in float32.

    Theirs adds 1e-6 to the square of a key's length. Without that, only rounding is left.
    """
    ours = build(heads=4, key_heads=2, key_expand=0.5, value_expand=1.0).float()
    config = Qwen3NextConfig(
        hidden_size=32, num_hidden_layers=1, layer_types=["linear_attention"], rms_norm_eps=1e-6,
        linear_num_value_heads=4, linear_num_key_heads=2, linear_key_head_dim=4,
        linear_value_head_dim=8, linear_conv_kernel_dim=4, hidden_act="silu",
    )  # fmt: skip
    theirs = public.Qwen3NextGatedDeltaNet(config, 0).eval()
    with torch.no_grad():
        # Theirs puts the rows of a key head together: q, k, two heads of v, two of z; then β and α.
        blocks = zip(
            ours.q_proj.weight.chunk(2), ours.k_proj.weight.chunk(2),
            ours.v_proj.weight.chunk(2), ours.z_proj.weight.chunk(2), strict=True,
        )  # fmt: skip
        theirs.in_proj_qkvz.weight.copy_(torch.cat([row for block in blocks for row in block]))
        pairs = zip(ours.beta_proj.weight.chunk(2), ours.decay_proj.weight.chunk(2), strict=True)
        theirs.in_proj_ba.weight.copy_(torch.cat([row for pair in pairs for row in pair]))
        theirs.conv1d.weight.copy_(ours.conv.weight[:, None])
        theirs.A_log.copy_(ours.decay.A_log)
        theirs.dt_bias.copy_(ours.decay.dt_bias)
        theirs.norm.weight.copy_(ours.norm.weight)
        theirs.out_proj.weight.copy_(ours.o_proj.weight)
        x = torch.randn(2, tokens, 32)
        got = ours(x, ctx(tokens=tokens)).y
        close(got, theirs(x), 1e-3)
        monkeypatch.setattr(public, "l2norm", lambda x, dim, eps: F.normalize(x, dim=dim, eps=eps))
        close(got, theirs(x), 1e-5)


def test_weights_are_six_times_the_width_squared() -> None:
    """As the authors count, without gates, convolution and norms."""
    mixer = GatedDelta(site(dim=64), parts())
    names = ("q_proj", "k_proj", "v_proj", "z_proj", "o_proj")
    assert sum(getattr(mixer, name).weight.numel() for name in names) == 6 * 64**2
