"""Parameters of the presets of known models, counted on the meta device, against their sources."""

from __future__ import annotations

import pytest
import torch
from transformers import (
    Mamba2Config,
    Mamba2ForCausalLM,
    ModernBertConfig,
    ModernBertForMaskedLM,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
)

from chimera.config.compose import compose, plain
from chimera.config.hydra_calls import make
from chimera.model.assemble import build_model, choose


def count(preset: str, vocab_size: int) -> int:
    """Parameters with a vocabulary of this size."""
    config = plain(compose([f"preset={preset}"]))
    causal = config["task"]["_target_"].rpartition(".")[2] != "MaskedLM"
    with torch.device("meta"):
        model = build_model(
            make(config["model"]), choose(config), vocab_size=vocab_size, causal=causal
        )
    return sum(p.numel() for p in model.parameters())


def gated_deltanet() -> int:
    """fla's GatedDeltaNetConfig() by its layers: 21 of 2048, 6 heads of 256, values of 512."""
    d, keys, values, inner = 2048, 6 * 256, 6 * 512, 5632
    mixer = 2 * d * keys + 3 * d * values + 2 * d * 6 + 2 * 6 + 4 * (2 * keys + values) + 512
    return 21 * (mixer + 3 * d * inner + 2 * d) + d + 2 * 32_000 * d


def test_gated_deltanet_is_flas() -> None:
    assert count("gated_deltanet_1b", 32_000) == gated_deltanet()
    assert gated_deltanet() / 1e9 == pytest.approx(1.3, rel=0.07)  # «1.3B»; untied tables included


@pytest.mark.parametrize(
    ("name", "dim", "depth", "published"),
    [("mamba2_130m", 768, 24, 128_989_632), ("mamba2_370m", 1024, 48, 368_346_624)],
)
def test_mamba2_is_the_published_checkpoint(
    name: str, dim: int, depth: int, published: int
) -> None:
    """Sizes of state-spaces/mamba2-130m and -370m, also by transformers."""
    assert count(name, 50_288) == published
    config = Mamba2Config(
        vocab_size=50_288, hidden_size=dim, num_hidden_layers=depth, num_heads=dim // 32,
        head_dim=64, state_size=128, n_groups=1, tie_word_embeddings=True,
    )  # fmt: skip
    with torch.device("meta"):
        assert Mamba2ForCausalLM(config).num_parameters() == published


def test_rwkv7_is_the_paper_without_two_parts() -> None:
    """2503.14456, appendix: the number of parameters; value mixing and ffn's shift are left out."""
    d, depth, vocabulary, decay, erase, value, gate = 768, 12, 50_304, 64, 64, 32, 128
    low_rank = 2 * (decay + erase + value + gate)
    of_paper = 2 * d * vocabulary + 4 * d + depth * d * (12 * d + low_rank + 19)
    of_paper -= 2 * d * value + d
    assert of_paper / 1e6 == pytest.approx(168, abs=0.5)
    left_out = (depth - 1) * (2 * d * value + d) + depth * d
    assert count("rwkv7_168m", vocabulary) == of_paper - left_out
    assert left_out / of_paper < 0.004


def test_qwen3_next_is_transformers_of_the_same_size() -> None:
    config = Qwen3NextConfig(
        vocab_size=32_000, hidden_size=512, num_hidden_layers=8, num_attention_heads=8,
        num_key_value_heads=1, head_dim=128, linear_num_value_heads=8, linear_num_key_heads=4,
        linear_key_head_dim=128, linear_value_head_dim=128, num_experts=32,
        num_experts_per_tok=4, moe_intermediate_size=128, shared_expert_intermediate_size=128,
    )  # fmt: skip
    with torch.device("meta"):
        theirs = Qwen3NextForCausalLM(config).num_parameters()
    assert count("qwen3_next_small", 32_000) == theirs


def test_kimi_linear_is_its_layers() -> None:
    """2510.26692: six layers of KDA, two of MLA (rank 128), 33 experts of 256 each."""
    d, h, k, rank, turned, vocabulary = 512, 8, 64, 128, 32, 32_000
    kda = 4 * d * d + d * h + 2 * (d * k + k * d) + 3 * 4 * d + h + d + k
    mla = d * h * (k + turned) + d * (rank + turned) + rank + 2 * rank * d + d * d
    experts = 33 * 3 * d * 256 + 32 * d
    layers = 6 * kda + 2 * mla + 8 * (experts + 2 * d)
    assert count("kimi_linear_small", vocabulary) == layers + d + 2 * vocabulary * d


def test_modernbert_is_the_published_checkpoint() -> None:
    """149.7 M; ours has biases in norms and the transform, and a norm before all attention."""
    with torch.device("meta"):
        theirs = ModernBertForMaskedLM(ModernBertConfig()).num_parameters()
    assert theirs == 149_655_232
    norms = 2 * 22 + 3
    assert count("modernbert_base", 50_368) == theirs + (norms + 1 + 1) * 768
