"""Sizes of the presets, counted on the meta device, against the papers' numbers and checkpoints."""

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

from chimera.api.library import build
from chimera.config.compose import compose, plain
from chimera.config.groups import groups
from chimera.config.hydra_calls import make
from chimera.config.tables import load
from chimera.model.assemble import build_model, choose
from chimera.optim.optimizer import components
from chimera.tables.parameters import PARTS, count, main, published

GPT2 = 50257
ULTRA = ["preset=titan_bert_ultra"]


def parameters(vocab_size: int, *words: str) -> int:
    """Parameters with a vocabulary of this size."""
    config = plain(compose(list(words)))
    causal = config["task"]["name"] != "mlm"
    with torch.device("meta"):
        choices = choose(config)
        model = build_model(make(config["model"]), choices, vocab_size=vocab_size, causal=causal)
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("name", ["titan_bert_ultra", "tormented_bert"])
def test_eq_53_within_two_per_cent(name: str) -> None:
    found = count([f"preset={name}"])
    assert found.total == pytest.approx(303e6, rel=0.02)
    assert found.total == 305_506_305
    formula = 12 * (20 * 1024**2 + 7 * 1024) + 50_000 * 1024
    assert found.total - formula == sum(
        found.parts[part] - 12 * size
        for part, size in zip(PARTS, (4 * 1024**2, 16 * 1024**2, 4096, 3072), strict=True)
    ) + sum(n for part, n in found.outside.items() if part != "embeddings")


def test_table_6_by_component() -> None:
    layers = count(ULTRA).layers
    kinds = [kind for kind, _ in layers]
    assert kinds == 2 * ["retnet", "attention", "retnet", "mamba", "attention", "ode"]
    square = 1024**2
    for kind, parts in layers:
        assert parts["experts"] == 16 * square
        assert parts["gating"] == 4 * 1024
        assert parts["norm"] == 2 * 3 * 1024
        expected = {"retnet": 5.0, "attention": 2.5, "mamba": 6.18, "ode": 4.0}[kind]
        assert parts["mixer"] / square == pytest.approx(expected, abs=0.01)
    mean = sum(parts["mixer"] for _, parts in layers) / len(layers)
    assert mean / square == pytest.approx(4.2, abs=0.01)


@pytest.mark.parametrize(
    ("name", "millions"),
    [
        ("bert_base", 109.218),  # 437 MB in fp32; QDYT prints 440
        ("bitnet_qdyt_base", 250.730),
        ("bitnet_qdyt_large", 326.252),
        ("bert_tiny", 0.946),
        ("titan_bert_ultra_2048", 1924.402),
    ],
)
def test_sizes(name: str, millions: float) -> None:
    words = [f"preset={name}"]
    assert count(words).total / 1e6 == pytest.approx(millions, abs=0.001)


def test_gpt2_has_its_published_size() -> None:
    assert parameters(GPT2, "preset=gpt2") == 124_439_808


def test_every_preset_composes() -> None:
    assert {"none", "encoder_small", "bert_tiny"} <= set(groups()["preset"])
    plain_one, small = plain(compose([])), plain(compose(["preset=encoder_small"]))
    for config in (plain_one, small):
        config.pop("choices")
    assert plain_one == small


def test_the_table_is_printed_and_written(
    capsys: pytest.CaptureFixture[str], tmp_path: pytest.TempPathFactory
) -> None:
    main(ULTRA)
    assert "305,506,305" in capsys.readouterr().out
    file = f"{tmp_path}/table.md"
    main([*ULTRA, f"out={file}"])
    with open(file, encoding="utf-8") as opened:
        assert "| total | 305,506,305 | 302,944,256 | +2,562,049 | +0.85% |" in opened.read()
    assert published(ULTRA)[0]["mixer"] == 4 * 1024**2


def gated_deltanet() -> int:
    """fla's GatedDeltaNetConfig() by its layers: 21 of 2048, 6 heads of 256, values of 512."""
    d, keys, values, inner = 2048, 6 * 256, 6 * 512, 5632
    mixer = 2 * d * keys + 3 * d * values + 2 * d * 6 + 2 * 6 + 4 * (2 * keys + values) + 512
    return 21 * (mixer + 3 * d * inner + 2 * d) + d + 2 * 32_000 * d


def test_gated_deltanet_is_flas() -> None:
    assert parameters(32_000, "preset=gated_deltanet_1b") == gated_deltanet()
    assert gated_deltanet() / 1e9 == pytest.approx(1.3, rel=0.07)  # «1.3B»; untied tables included


@pytest.mark.parametrize(
    ("name", "dim", "depth", "published"),
    [("mamba2_130m", 768, 24, 128_989_632), ("mamba2_370m", 1024, 48, 368_346_624)],
)
def test_mamba2_is_the_published_checkpoint(
    name: str, dim: int, depth: int, published: int
) -> None:
    """Sizes of state-spaces/mamba2-130m and -370m, also by transformers."""
    assert parameters(50_288, f"preset={name}") == published
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
    assert parameters(vocabulary, "preset=rwkv7_168m") == of_paper - left_out
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
    assert parameters(32_000, "preset=qwen3_next_small") == theirs


def test_kimi_linear_is_its_layers() -> None:
    """2510.26692: six layers of KDA, two of MLA (rank 128), 33 experts of 256 each."""
    d, h, k, rank, turned, vocabulary = 512, 8, 64, 128, 32, 32_000
    kda = 4 * d * d + d * h + 2 * (d * k + k * d) + 3 * 4 * d + h + d + k
    mla = d * h * (k + turned) + d * (rank + turned) + rank + 2 * rank * d + d * d
    experts = 33 * 3 * d * 256 + 32 * d
    layers = 6 * kda + 2 * mla + 8 * (experts + 2 * d)
    assert parameters(vocabulary, "preset=kimi_linear_small") == layers + d + 2 * vocabulary * d


def test_modernbert_is_the_published_checkpoint() -> None:
    """149.7 M; ours has biases in norms and the transform, and a norm before all attention."""
    with torch.device("meta"):
        theirs = ModernBertForMaskedLM(ModernBertConfig()).num_parameters()
    assert theirs == 149_655_232
    norms = 2 * 22 + 3
    assert parameters(50_368, "preset=modernbert_base") == theirs + (norms + 1 + 1) * 768


def test_the_preset_has_table_1s_parameters() -> None:
    body = 6 * (4 * 256**2 + 2 * 256 * 1024 + 1024 + 256 + 4 * 256) + 2 * 256
    assert parameters(GPT2, "preset=saidl_gpt") == GPT2 * 256 + 2048 * 256 + body == 18_123_008


def test_every_parameter_of_titan_has_an_effect_and_the_rate_of_its_mixer() -> None:
    words = ("preset=titan_bert_ultra", "scale=smoke", "quant=none", "ffn.capacity_factor=null")
    model = build(*words, vocab_size=64)
    with torch.no_grad():  # at the start, layers behind a residual of 0 have no gradient
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    model.train()(torch.randint(4, 60, (2, 24))).logits.logsumexp(-1).sum().backward()
    owner = components(model)
    trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
    idle = [n for n, p in trained.items() if p.grad is None or not p.grad.abs().max() > 1e-7]
    assert not idle
    radii = {n: owner[n] for n in owner if n.endswith("log_radius")}
    assert set(radii.values()) == {"retnet", "attention", "ode"}
    assert {n for n in radii if radii[n] == "retnet"} == {*owner} - {*trained}


@pytest.mark.parametrize("row", [row.name for row in load("saidl/hybrids").rows])
def test_hybrids_have_table_6s_parameters(row: str) -> None:
    printed = {p.row: p.value for p in load("saidl/hybrids").published if p.column == "parameters"}
    if row in printed:
        assert parameters(GPT2, f"+saidl/hybrids={row}") == printed[row]
    else:
        assert row.startswith("aft") or row in {"alibi", "conv_plain"}  # ours


def test_a_decoders_head_is_tied_to_the_embedding() -> None:
    config = plain(compose(["preset=saidl_gpt", "model.dim=64"]))
    assert config["task"]["name"] == "causal_lm"
    assert config["model"]["tie_head"]
