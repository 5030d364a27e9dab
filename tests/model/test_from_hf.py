"""Checkpoints of transformers in our parts and back: logits, nothing left out, refusals."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import nn

from chimera.config.compose import compose, plain
from chimera.config.from_hf import checkpoint_config
from chimera.config.hydra_calls import make
from chimera.errors import UserError
from chimera.model.assemble import build_model, choose
from chimera.model.restore import start_from
from chimera.model.to_hf import original
from tests.kit import close

SHAPE = {"vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 4}
HEADS = {"intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2}
QWEN3_NEXT = {
    "head_dim": 16, "linear_num_value_heads": 4, "linear_num_key_heads": 2,
    "linear_key_head_dim": 8, "linear_value_head_dim": 8, "num_experts": 4,
    "num_experts_per_tok": 2, "moe_intermediate_size": 24, "shared_expert_intermediate_size": 24,
}  # fmt: skip
#: Names of classes in transformers, and options of the configuration.
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", HEADS | {"rms_norm_eps": 1e-5}),
    "llama_biases": (
        "Llama",
        HEADS | {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    ),
    "qwen2": ("Qwen2", HEADS),
    "qwen3": ("Qwen3", HEADS | {"head_dim": 16}),
    "mamba": ("Mamba", {"state_size": 6}),
    "mamba2": ("Mamba2", {"num_heads": 8, "head_dim": 8, "state_size": 6, "n_groups": 2}),
    "qwen3_next": ("Qwen3Next", HEADS | QWEN3_NEXT),
}
FAST = ("qwen3", "mamba2", "qwen3_next")


def theirs(kind: str, folder: Path) -> nn.Module:
    """A random model, saved; all parameters are random, norms and gates of time too.

    Convolutions are large, so that keys have lengths near 1: theirs adds 1e-6 to their squares.
    """
    name, options = KINDS[kind]
    config = getattr(transformers, f"{name}Config")(**SHAPE, **options)
    torch.manual_seed(0)
    made = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        for name, parameter in made.named_parameters():
            if "linear_attn.conv1d" in name:
                parameter.mul_(10)
    made.save_pretrained(folder)
    return made


def configuration(folder: Path, *overrides: str) -> dict[str, Any]:
    words = ["task=causal_lm", "data=text", "data.path=x", *overrides]
    return plain(compose([f"init_from=hf:{folder}", *words]))


def ours(folder: Path, *overrides: str, vocab_size: int = 60) -> nn.Module:
    config = configuration(folder, *overrides)
    model = build_model(make(config["model"]), choose(config), vocab_size=vocab_size, causal=True)
    start_from(model, config["init_from"])
    return model.eval()


@pytest.mark.parametrize(
    "kind", [k if k in FAST else pytest.param(k, marks=pytest.mark.slow) for k in KINDS]
)
def test_logits_are_those_of_transformers(kind: str, tmp_path: Path) -> None:
    other, model = theirs(kind, tmp_path), ours(tmp_path)
    ids = torch.randint(60, (2, 21), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        want, got = other(ids).logits, model(ids).logits
        close(got, want, 1e-5)
        state = model.init_state(2)
        first = model(ids[:, :20], state=state)
        close(model(ids[:, 20:], state=first.state).logits, want[:, 20:], 1e-5)
    assert want.std() > 0.1
    count = sum(p.numel() for p in model.parameters())
    assert abs(count - other.num_parameters()) <= SHAPE["num_hidden_layers"] * 32


def test_layers_of_several_kinds_are_a_pattern_and_settings_come_from_the_file(
    tmp_path: Path,
) -> None:
    theirs("qwen3_next", tmp_path)
    config = configuration(tmp_path, "model.max_len=64", "quant=bitnet158")
    assert config["mixer"]["cycle"] == [*["gated_delta"] * 3, "gated_attention"]
    assert config["mixer"]["members"]["gated_attention"]["kv_heads"] == 2
    assert config["position"]["fraction"] == 0.25
    assert (config["model"]["qk_norm"], config["model"]["max_len"]) == (True, 64)
    assert config["ffn"]["expert"]["expand"] == 0.75
    assert config["tokenizer"]["path"] == str(tmp_path)
    quantised = ours(tmp_path, "quant=bitnet158", vocab_size=50)  # fewer rows than the table has
    assert quantised.head.output.weight.shape[0] == 50


def test_identity_follows_the_weights(tmp_path: Path) -> None:
    theirs("mamba", tmp_path / "a")
    other = theirs("mamba", tmp_path / "b")
    runs = [configuration(tmp_path / name)["init_run"] for name in "ab"]
    assert runs[0] == runs[1]
    other.backbone.norm_f.weight.data.add_(1)
    other.save_pretrained(tmp_path / "b")
    assert configuration(tmp_path / "b")["init_run"] != runs[0]


def edited(source: Path, to: Path, **change: Any) -> Path:
    shutil.copytree(source, to)
    file = to / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    return to


def test_what_cannot_be_taken_is_one_line(tmp_path: Path) -> None:
    theirs("llama", tmp_path / "llama")
    refusals: dict[str, tuple[dict[str, Any], str]] = {
        "bert": ({"model_type": "bert"}, "no part here takes weights of model_type bert"),
        "text": ({"hidden_size": "32; rm"}, "hidden_size=32; rm is not allowed"),
        "huge": ({"num_hidden_layers": 10**9}, "has 1000000000 layers for"),
        "yarn": ({"rope_parameters": {"rope_type": "yarn"}}, "has rope_type=yarn"),
        "act": ({"hidden_act": "gelu"}, "has hidden_act=gelu, which ffn=swiglu lacks"),
        "window": ({"sliding_window": 8}, "has sliding_window=8"),
        "lacks": ({"intermediate_size": None}, "config.json has no intermediate_size"),
    }
    for name, (change, line) in refusals.items():
        folder = edited(tmp_path / "llama", tmp_path / name, **change)
        with pytest.raises(UserError, match=line) as caught:
            configuration(folder)
        assert "\n" not in str(caught.value), name
    deeper = edited(tmp_path / "llama", tmp_path / "deeper", num_hidden_layers=5)
    with pytest.raises(UserError, match=r"has no weights for"):
        ours(deeper)
    fewer = edited(tmp_path / "llama", tmp_path / "fewer", num_hidden_layers=3)
    with pytest.raises(UserError, match=r"has weights that no part here has: model.layers.3"):
        ours(fewer)


def test_a_folder_is_data(tmp_path: Path) -> None:
    """Weights in a format that runs code, an index that leads elsewhere, no folder at all."""
    with pytest.raises(UserError, match=r"config\.json is missing"):
        configuration(tmp_path / "nowhere")
    theirs("llama", tmp_path / "llama")
    pickled = edited(tmp_path / "llama", tmp_path / "pickled", auto_map={"AutoModel": "evil.py"})
    (pickled / "model.safetensors").rename(pickled / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"has no model\.safetensors"):
        configuration(pickled)
    index = {"weight_map": {"x": "../llama/model.safetensors"}}
    (pickled / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(UserError, match="which does not exist"):
        configuration(pickled)


ONE = "qwen3_next"


@pytest.mark.parametrize(
    "kind", [k if k == ONE else pytest.param(k, marks=pytest.mark.slow) for k in KINDS]
)
def test_transformers_computes_the_logits_of_changed_weights(kind: str, tmp_path: Path) -> None:
    theirs(kind, tmp_path)
    model, file = ours(tmp_path, vocab_size=50), tmp_path / "model.safetensors"
    before = load_file(file)
    made = original(model, checkpoint_config(tmp_path), before, "like=x")
    assert made.keys() == before.keys()
    for name, tensor in made.items():  # rows beyond the vocabulary stay
        close(tensor, before[name], 1e-6)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1 + 0.1 * torch.randn_like(parameter))
    save_file(
        original(model, checkpoint_config(tmp_path), before, "like=x"), file, {"format": "pt"}
    )
    other = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    ids = torch.randint(50, (2, 21), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        close(model(ids).logits, other(ids).logits[..., :50], 1e-5)


def test_values_without_a_place_are_one_line(tmp_path: Path) -> None:
    theirs("qwen2", tmp_path)
    model, config = ours(tmp_path), checkpoint_config(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    model.backbone.blocks[0].mixer.o_proj.bias.data.fill_(0.1)
    with pytest.raises(UserError, match=r"no place for the values of .*o_proj\.bias"):
        original(model, config, tensors, "like=x")
