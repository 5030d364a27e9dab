"""`model.dtype=nf4`: what is asked of transformers, what adapters find, what a run keeps.

bitsandbytes and a GPU are on few machines, so `tests.model.four_bits` stands for its layers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, LlamaForCausalLM

from chimera.adapter.dora import dora
from chimera.adapter.graft.attach import attach
from chimera.adapter.lora import lora
from chimera.adapter.pissa import pissa
from chimera.adapter.shared.low_rank import adapted
from chimera.adapter.shared.merge import merge
from chimera.cli.finished import evaluate, export
from chimera.cli.train import main as train
from chimera.errors import UserError
from chimera.model import four_bit, hf_settings
from chimera.model.assemble import build_model, check_model
from chimera.model.hf_settings import HuggingFace
from chimera.quant.shared.packing import byte_report
from chimera.rundir.checkpoint_io import load
from chimera.train.model_summary import parameters_by_component
from tests.kit import Refused, close
from tests.model.four_bits import Linear4bit, install, rounded
from tests.model.hf_folders import folder
from tests.model.test_hf import Choices

LORA = {"targets": ["*.q_proj", "*.down_proj"]}
ADAPTERS = {"lora": lora, "dora": dora, "pissa": pissa}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder("llama", tmp_path_factory.mktemp("nf4") / "llama")


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)
    monkeypatch.setattr(hf_settings, "find_spec", lambda name: name)
    prepare = four_bit.prepare
    monkeypatch.setattr(four_bit, "options", dict)
    monkeypatch.setattr(four_bit, "rounded", lambda model: model)
    monkeypatch.setattr(four_bit, "prepare", lambda model: prepare(rounded(model)))


def settings(place: Path, **more: Any) -> HuggingFace:
    return HuggingFace(name=str(place), dtype="nf4", max_len=32, **more)


class Adapter(Choices):
    """Choices with an adapter, so that the weights are frozen."""

    names = {**Choices.names, "adapter": "lora"}  # noqa: RUF012
    adapter = staticmethod(lambda model: lora(model, **LORA))


def built(place: Path, **more: Any) -> Any:
    return build_model(settings(place, **more), Adapter, vocab_size=1, causal=True).eval()


def ids() -> torch.Tensor:
    return torch.randint(3, 18, (2, 9))


def test_transformers_is_asked_for_nf4_with_double_quantisation(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}
    load_from = LlamaForCausalLM.from_pretrained

    def spy(name: Any, **options: Any) -> Any:
        asked.update(options)
        rest = {k: v for k, v in options.items() if k not in ("quantization_config", "device_map")}
        return rounded(load_from(name, **rest))

    install(monkeypatch)
    monkeypatch.setattr(hf_settings, "find_spec", lambda name: name)
    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", spy)
    model = built(place)
    made = asked["quantization_config"]
    assert made.load_in_4bit
    assert made.bnb_4bit_quant_type == "nf4"
    assert made.bnb_4bit_use_double_quant
    assert made.bnb_4bit_compute_dtype is torch.bfloat16
    assert asked["dtype"] is torch.bfloat16
    assert asked["device_map"] == {"": "cuda:0" if torch.cuda.is_available() else "cpu"}
    assert not hasattr(model.model.config, "quantization_config")
    monkeypatch.setattr(LlamaForCausalLM, "from_pretrained", spy)
    fresh = built(place, pretrained=False)
    assert len(four_bit.layers(fresh)) == len(four_bit.layers(model)) == 14
    assert {*asked["state_dict"]} == {*load_from(place).state_dict()}


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize("name", [*ADAPTERS])
def test_adapters_begin_as_the_base_and_learn(name: str, place: Path) -> None:
    model = ADAPTERS[name](built_base(place), **LORA)
    x = ids()
    close(model(x).logits.float(), built_base(place)(x).logits.float(), 2e-2)
    assert {type(layer.base) for layer in adapted(model).values()} == {Linear4bit}
    model(x).logits.float().square().mean().backward()
    trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
    assert all(".update." in n and p.dtype == torch.float32 for n, p in trained.items())
    assert all(p.grad is not None for p in trained.values())
    assert not merge(model).merged  # codes cannot hold the sum
    with torch.device("meta"):
        outline = ADAPTERS[name](built_base(place), **LORA)
    assert {*adapted(outline)} == {*adapted(model)}
    assert parameters_by_component(outline) == parameters_by_component(model)


def built_base(place: Path) -> Any:
    """The model without an adapter; its choices say that one will freeze it."""
    base = type("Base", (Choices,), {"names": Adapter.names})
    return build_model(settings(place), base, vocab_size=1, causal=True).eval()


@pytest.mark.usefixtures("stand_in")
def test_a_graft_finds_its_projections(place: Path) -> None:
    model = built_base(place)
    options = {"max_cache": None, "mag": "additive", "mag_weight": 0.5}
    branch = {"order": 1, "trick": "derivative", "gate": "k", "gate_input": "normalised"}
    rest = {"pool": 3, "beta": None, "nonlinearity": "none", "chunk": 64}
    x = ids()
    before = model(x).logits
    with pytest.raises(UserError, match=r"adapter\.train=projections chooses weights of 4 bits"):
        attach(
            built_base(place), inner=nn.Identity(), train="projections", **options, **branch, **rest
        )
    grafted = attach(model, inner=lora, train="inner", **options, **branch, **rest)
    memories = [m for m in grafted.modules() if type(m).__name__ == "GraftedMemory"]
    assert len(memories) == 2
    assert {p.dtype for m in memories for p in m.parameters()} == {torch.float32}
    assert not torch.equal(grafted(x).logits, before)


def test_what_is_checked_before_a_run_has_the_bytes_of_4_bits(place: Path) -> None:
    model = check_model(settings(place), Adapter, causal=True)
    plain = check_model(
        HuggingFace(name=str(place), dtype="bf16", max_len=32), Adapter, causal=True
    )
    assert parameters_by_component(model) == parameters_by_component(plain)
    layers = [
        m for n, m in plain.named_modules() if isinstance(m, nn.Linear) and "lm_head" not in n
    ]
    saved = sum(layer.weight.nbytes - layer.weight.numel() // 2 for layer in layers)
    size = {m: sum(p.nbytes for p in m.parameters()) for m in (model, plain)}
    assert size[plain] - size[model] == saved
    assert byte_report(model)["total"].fp32 == byte_report(plain)["total"].fp32


@pytest.mark.usefixtures("stand_in")
def test_a_checkpoint_holds_codes_and_scales(place: Path) -> None:
    first, other = built(place), built(place, pretrained=False)
    x = ids()
    assert not torch.equal(first(x).logits, other(x).logits)
    state = {name: tensor.clone() for name, tensor in first.state_dict().items()}
    assert sum(tensor.dtype == torch.uint8 for tensor in state.values()) == 14
    other.load_state_dict(state)
    close(other(x).logits, first(x).logits, 0)
    four_bit.widen(other)
    assert not four_bit.layers(other)
    close(other(x).logits, first(x).logits, 0)
    assert len(merge(other).merged) == 4


@pytest.mark.usefixtures("stand_in")
def test_a_run_is_evaluated_and_leaves_the_house(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chimera.train.check.check_parts", lambda *_: None)
    words = ["task=causal_lm", "model=hf", f"model.name={place}", "model.dtype=nf4"]
    words += ["model.max_len=16", "adapter=lora", "adapter.targets=['*.q_proj']", "data=text"]
    words += ["scale=smoke", "tokenizer=own", f"data.cache_dir={tmp_path}"]
    (tmp_path / "text.txt").write_text(
        "\n".join(["the cat sees a big red dog under one tree"] * 300)
    )
    words += [f"data.path={tmp_path}/text.txt", "logger=csv", "trainer.max_steps=3"]
    assert train([*words, f"run_dir={tmp_path}/run"]) == 0
    saved = load(tmp_path / "run/checkpoints/last.ckpt")["state_dict"]
    assert "model.model.model.layers.0.self_attn.q_proj.base.weight.absmax" in saved
    assert evaluate([f"run={tmp_path}/run"]) == 0
    assert export([f"run={tmp_path}/run", f"to={tmp_path}/out"]) == 0
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "out", trust_remote_code=True)
    assert {p.dtype for p in theirs.parameters()} == {torch.bfloat16}
    assert not four_bit.layers(theirs)
    assert export([f"run={tmp_path}/run", f"to={tmp_path}/alone", "adapter=alone"]) == 0
    assert not (tmp_path / "alone/model.safetensors").exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("adapter=lora", "model.dtype=nf4 trains on a GPU of CUDA only"),
        ("adapter=lora trainer.accelerator=cpu", "model.dtype=nf4 trains on a GPU of CUDA only"),
        ("adapter=lora trainer.strategy=fsdp trainer.devices=2", "a shard of codes has no scales"),
        ("", "use an adapter, such as adapter=lora"),
        ("adapter=lora adapter.train=['*.up_proj']", "adapter.train chooses weights of 4 bits"),
    ],
)
def test_what_does_not_go_with_4_bits_is_one_line(
    words: str, says: str, place: Path, tmp_path: Path, refused: Refused, monkeypatch: Any
) -> None:
    monkeypatch.setattr(hf_settings, "find_spec", lambda name: name)
    given = ["task=causal_lm", "model=hf", f"model.name={place}", "model.dtype=nf4"]
    given += ["model.max_len=32", "data=pydocs", f"run_dir={tmp_path}/run", *words.split()]
    if "GPU" not in says:
        monkeypatch.setattr("torch.cuda.is_available", lambda: True)
        monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    refused(train, given, says, read=True)
    assert not (tmp_path / "run").exists()


def test_missing_packages_are_one_line(
    place: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hf_settings, "find_spec", lambda name: None)
    given = ["task=causal_lm", "model=hf", f"model.name={place}", "model.dtype=nf4", "adapter=lora"]
    refused(train, given, "needs a GPU, bitsandbytes and accelerate: pip install", read=True)
