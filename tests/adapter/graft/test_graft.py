"""Grafted models: what a graft computes and trains; files, and the schedule of α in checkpoints."""

from __future__ import annotations

import copy
import inspect
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import yaml
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, DynamicCache

from chimera import graft
from chimera.adapter.graft.attach import _layout
from chimera.adapter.graft.memory import GraftedMemory, stateful_layer
from chimera.adapter.liza import liza
from chimera.adapter.lora import lora
from chimera.adapter.none import no_adapter
from chimera.adapter.shared.low_rank import adapted
from chimera.api.graft import NEW
from chimera.callback.part.liza import MagSchedule
from chimera.config.compose import compose, plain
from chimera.errors import UserError
from chimera.ops.liza import LinearBranch
from chimera.paths import CONF
from tests.adapter.graft.kit import OpenELMLike, causal_model, families, tokens
from tests.kit import close

OPTIONS: list[dict[str, Any]] = [
    {"order": 1, "trick": "none"},
    {"order": 1, "trick": "none", "nonlinearity": "gelu", "chunk": 7},
    {"order": 2, "trick": "derivative", "gate": "v"},
    {"order": 3, "trick": "derivative", "gate": "kv", "mag": "cross_gate"},
    {"order": 2, "trick": "rotary", "nonlinearity": "tanh", "chunk": 5},
    {"order": 2, "trick": "both"},
    {"order": 2, "trick": "derivative", "pool": "all", "beta": "scalar"},
]
options = pytest.mark.parametrize("said", OPTIONS, ids=lambda o: "-".join(map(str, o.values())))


def grafted(model: Any, **said: Any) -> Any:
    return graft.liza(model, **{"lora": None, **said})


@pytest.mark.sampled(5)
@families
def test_at_weight_0_the_base_speaks_to_the_bit(family: str) -> None:
    base = causal_model(family)
    model = grafted(copy.deepcopy(base), mag_weight=0.0)
    ids = tokens(2, 23)
    assert torch.equal(model(ids).logits, base(ids).logits)
    said = {"max_new_tokens": 20, "do_sample": False, "attention_mask": torch.ones_like(ids)}
    assert torch.equal(model.generate(ids, **said), base.generate(ids, **said))
    graft.set_weight(model, 0.5)
    assert (model(ids).logits - base(ids).logits).abs().max() > 0.1


def test_weights_are_untouched_and_keep_their_names() -> None:
    base = causal_model()
    before = {name: tensor.clone() for name, tensor in base.state_dict().items()}
    model = grafted(base)
    assert model is base
    after = model.state_dict()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    assert {n.rpartition("liza.")[2] for n in after.keys() - before.keys()} == {
        "mag_weight",
        "linear.norm.weight",
    }


@pytest.mark.sampled(1, each=("family",))
@options
@families
def test_the_linear_branch_gets_the_projections(family: str, said: dict[str, Any]) -> None:
    """Input of the output projection from outputs of the other projections, in float64.

    tests/mixer/test_liza.py holds `LinearBranch` against the naive recurrence.
    """
    model = grafted(causal_model(family).double(), **said)
    graft.set_weight(model, 0.3)
    memory = graft.memories(model)[1]
    module = next(m for m in model.modules() if getattr(m, "liza", None) is memory)
    at, seen = memory.layout, {}
    for name in at.inputs:
        module.get_submodule(name).register_forward_hook(
            lambda _m, _a, out, name=name: seen.__setitem__(name, out.detach())
        )
    out = module.get_submodule(at.out)
    out.register_forward_hook(lambda _m, args, _o: seen.__setitem__("mixed", args[0].detach()))
    ids = tokens(2, 23)
    model(ids)
    mixed = seen["mixed"]
    graft.set_weight(model, 0.0)
    # Only this layer has α = 0; its inputs must not change.
    for other in graft.memories(model):
        other.set_mag_weight(0.3 if other is not memory else 0.0)
    model(ids)
    base = seen["mixed"]
    q, k, v = at.split([seen[name] for name in at.inputs])
    q, k, v = (x.unflatten(-1, (-1, at.head_dim)).transpose(1, 2) for x in (q, k, v))
    k, v = (x.repeat_interleave(at.heads // at.kv_heads, 1) for x in (k, v))
    branch = LinearBranch(head_dim=at.head_dim, **{k: v for k, v in said.items() if k != "mag"})
    y, _ = branch(q, k, v, torch.ones(at.head_dim).double())
    base, lin = 0.7 * base, 0.3 * y.transpose(1, 2).flatten(2)
    cross = base * lin if said.get("mag") == "cross_gate" else 0
    close(mixed, base + lin + cross)


@pytest.mark.sampled(1, each=("family",))
@options
@families
def test_decoding_token_by_token_is_the_full_pass(family: str, said: dict[str, Any]) -> None:
    model, ids = grafted(causal_model(family).double(), **said), tokens(2, 31)
    want = model(ids, use_cache=False).logits
    close(model(ids, use_cache=True).logits, want)
    cache = DynamicCache(config=model.config)
    got, at = [], 0
    for width in (9, 3, *[1] * 19):
        part = ids[:, at : at + width]
        got.append(model(part, past_key_values=cache, use_cache=True).logits)
        at += width
    close(torch.cat(got, 1), want)


@pytest.mark.sampled(4)
@families
@pytest.mark.parametrize("bound", [None, 1, 5])
def test_left_padding_and_a_bounded_cache(family: str, bound: int | None) -> None:
    model = grafted(causal_model(family).double(), max_cache=bound, order=3, gate="kv")
    alone, mask = tokens(1, 20), torch.ones(2, 20, dtype=torch.long)
    mask[0, :8] = 0
    ids = alone.repeat(2, 1)
    ids[0] = torch.cat([torch.zeros(8, dtype=torch.long), alone[0, :12]])
    position = (mask.cumsum(1) - 1).clamp(min=0)
    said = {"attention_mask": mask, "position_ids": position}
    both = model(ids, use_cache=False, **said).logits
    close(both[1], model(alone).logits[0])
    close(both[0, 8:], model(alone[:, :12]).logits[0])
    long = {"max_new_tokens": 12, "min_new_tokens": 12, "do_sample": False}
    got = model.generate(ids, attention_mask=mask, **long)
    assert torch.equal(got[1:], model.generate(alone, attention_mask=mask[1:], **long))
    short = torch.ones(1, 12, dtype=torch.long)
    assert torch.equal(got[:1, 8:], model.generate(alone[:, :12], attention_mask=short, **long))


@pytest.mark.parametrize("bound", [1, 4])
def test_the_bounded_cache_stays_bounded(bound: int) -> None:
    model = grafted(causal_model(), max_cache=bound, mag_weight=1.0 if bound == 1 else 0.5)
    sizes = []
    for length in (20, 120):
        cache = DynamicCache(config=model.config)
        model(tokens(1, length), past_key_values=cache)
        model(tokens(1, 1), past_key_values=cache)
        assert cache.get_seq_length() == length + 1
        held = [x for at in cache.layers for x in (at.keys, at.values, *at.linear)]
        sizes.append(sum(x.untyped_storage().nbytes() for x in held))
    assert sizes[0] == sizes[1]
    assert cache.layers[0].keys.shape[2] == bound - 1


@pytest.mark.sampled(3)
@families
def test_alone_a_branch_costs_nothing_of_the_other(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """α = 1: no attention, no keys; α = 0: no memory; α between: bands under `max_cache`."""
    model, ids = grafted(causal_model(family).double(), max_cache=5), tokens(2, 40)
    graft.set_weight(model, 1.0)
    for memory in graft.memories(model):
        memory.train()  # where both branches are computed
    whole = model(ids, use_cache=False).logits
    model.eval()
    widths: list[int] = []
    plain = F.scaled_dot_product_attention

    def attention(q: Tensor, k: Tensor, *given: Any, **named: Any) -> Tensor:
        widths.append(k.shape[-2])
        return plain(q, k, *given, **named)

    monkeypatch.setattr(F, "scaled_dot_product_attention", attention)
    cache = DynamicCache(config=model.config)
    close(model(ids, past_key_values=cache).logits, whole)
    assert not widths
    assert not any(layer.keys.numel() for layer in cache.layers)
    graft.set_weight(model, 0.5)
    with pytest.raises(ValueError, match="another α"):
        model(ids, past_key_values=cache)
    model(ids, use_cache=False)
    assert 0 < max(widths) <= 10
    graft.set_weight(model, 0.0)
    monkeypatch.setattr(LinearBranch, "__call__", lambda *_, **__: pytest.fail("computed"))
    model(ids)


def test_beams_and_rows_keep_their_own_memory() -> None:
    model, ids = grafted(causal_model().double()), tokens(2, 9)
    mask = torch.ones_like(ids)
    said = {"max_new_tokens": 12, "num_beams": 3, "do_sample": False, "attention_mask": mask}
    with_cache = model.generate(ids, use_cache=True, **said)
    assert torch.equal(with_cache, model.generate(ids, use_cache=False, **said))


def test_the_fused_projections_of_openelm() -> None:
    torch.manual_seed(0)
    base, ids = OpenELMLike().double().eval(), tokens(2, 23)
    want = base(ids).logits
    model = grafted(base, mag_weight=0.0)
    assert [m.layout.heads for m in graft.memories(model)] == [2, 4]
    assert [m.layout.kv_heads for m in graft.memories(model)] == [1, 2]
    assert torch.equal(model(ids).logits, want)
    graft.set_weight(model, 1.0)
    later = ids.clone()
    later[:, 15:] = 3
    close(
        model(later).logits[:, :15], model(ids).logits[:, :15]
    )  # no token depends on later tokens
    assert (model(ids).logits - want).abs().max() > 1e-3


def test_gradients_reach_lora_through_both_branches() -> None:
    """LoRA also changes the queries, keys and values of the memory."""
    model = graft.liza(causal_model().double(), lora=4, lora_dropout=0.0, mag_weight=1.0)
    trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
    assert len(trained) == 2 * 4 * 2  # A and B beside four projections in two layers
    learned = graft.liza(causal_model(), mag_learn="head", mag_weight=0.01)
    learned(tokens(2, 23)).logits.square().sum().backward()
    assert all(p.grad.all() for n, p in learned.named_parameters() if n.endswith("mag_shift"))
    ids = tokens(2, 23)

    def loss() -> Tensor:
        return F.cross_entropy(model(ids).logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())

    loss().backward()
    assert all(p.grad is not None for p in trained.values())
    assert all(p.grad.abs().max() > 0 for n, p in trained.items() if n.endswith("B"))
    name = next(n for n in trained if "k_proj" in n and n.endswith("B"))
    parameter, step = trained[name], 1e-3
    with torch.no_grad():
        parameter[0, 0] += step
        up = loss()
        parameter[0, 0] -= 2 * step
        down = loss()
    close(parameter.grad[0, 0], (up - down) / (2 * step), 1e-3)  # their norms are float32


def test_checkpointed_layers_have_the_same_gradients() -> None:
    model, ids = graft.liza(causal_model().double(), lora_dropout=0.0), tokens(2, 23)
    mask = torch.ones_like(ids)
    mask[0, 15:] = 0
    for parameter in model.parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, std=0.1)
    found = []
    for checkpointing in (False, True):
        model.train()
        if checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        model.zero_grad()
        model(ids, attention_mask=mask, labels=ids, use_cache=False).loss.backward()
        found.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    close(found[0], found[1])


def test_projections_only() -> None:
    model = graft.liza(causal_model(), lora=None, train="projections")
    names = {n.split(".")[-2] for n, p in model.named_parameters() if p.requires_grad}
    assert names == {"q_proj", "k_proj", "v_proj", "o_proj"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"trick": "none"}, "order=2 needs virtual tokens"),
        ({"model": torch.nn.Linear(2, 2)}, "finds no attention in Linear"),
        ({"model": OpenELMLike().layers[0]["attn"]}, "grafts onto Hugging Face causal models"),
    ],
)
def test_what_cannot_be_is_said(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        liza(**{"model": causal_model(), "inner": no_adapter, **change})


def test_an_attention_without_a_layer_number_is_refused() -> None:
    """GPT-Neo's; with one place in the cache for all layers, decoding is another function."""
    from transformers import GPTNeoConfig, GPTNeoForCausalLM

    shape = GPTNeoConfig(
        vocab_size=61, hidden_size=16, num_layers=2, num_heads=2, attention_types=[[["global"], 2]]
    )
    with pytest.raises(UserError, match="no layer number"):
        grafted(GPTNeoForCausalLM(shape))


def test_twice_is_refused_and_so_are_masks_made_beforehand() -> None:
    model = grafted(causal_model())
    with pytest.raises(UserError, match="has LiZAttention already"):
        grafted(model)
    with pytest.raises(ValueError, match=r"\[batch, tokens\] or none"):
        model(tokens(1, 3), attention_mask=torch.ones(1, 1, 3, 3, dtype=torch.bool))
    assert model(tokens(1, 3)).logits.isfinite().all()  # all hooks are removed


def test_a_fused_projection_without_a_head_width_is_divided_among_its_heads() -> None:
    module = nn.ModuleDict({"qkv_proj": nn.Linear(16, 40), "o_proj": nn.Linear(20, 16)})
    module.num_heads, module.num_key_value_heads = 4, 2
    layout = _layout("attention", module, ("qkv_proj",), "o_proj")
    assert (layout.heads, layout.kv_heads, layout.head_dim) == (4, 2, 5)


def test_a_cache_without_a_configuration_grows_its_layers_as_they_come() -> None:
    cache = DynamicCache()
    second = stateful_layer(cache, 1, None)
    assert len(cache.layers) == 2
    assert cache.layers[1] is second is stateful_layer(cache, 1, None)
    stateful_layer(cache, 0, None)
    stateful_layer(cache, 2, None)
    assert len(cache.layers) == 3


@pytest.mark.sampled(4)
@families
def test_the_adapter_finds_the_projections_that_the_function_finds(family: str) -> None:
    """The YAML names those of Llama; fused ones (Phi-3, GPT-2) have other names."""
    node = yaml.safe_load((CONF / "adapter" / "liza.yaml").read_text())
    named = liza(causal_model(family), inner=partial(lora, **node["inner"]))
    assert list(adapted(named)) == list(adapted(graft.liza(causal_model(family))))
    with pytest.raises(UserError, match=r"adapter\.inner\.targets: '\*\.nope'"):
        liza(causal_model(family), inner=partial(lora, targets=["*.nope"]))


def test_the_function_has_the_defaults_of_the_yaml() -> None:
    node = yaml.safe_load((CONF / "adapter" / "liza.yaml").read_text())
    inner = {f"lora_{key}": value for key, value in node["inner"].items()} | node["inner"]
    wanted = {**node, **inner, "lora": inner["r"]}
    for name, parameter in inspect.signature(graft.liza).parameters.items():
        if name != "model":
            assert parameter.default == wanted[name], name


SAID = {"max_new_tokens": 25, "do_sample": False}


@pytest.fixture
def base(tmp_path: Path) -> Path:
    causal_model().save_pretrained(tmp_path / "base")
    return tmp_path / "base"


def trained(base: Path, **said: Any) -> Any:
    """Grafted model whose new parameters have other than initial values."""
    model = graft.liza(base, **said)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
        for memory in graft.memories(model):
            memory.linear.norm.weight.mul_(1.5)
    graft.set_weight(model, 0.375)
    return model.eval()


settings = pytest.mark.parametrize(
    "said",
    [
        {},
        {"lora": None, "train": "projections", "order": 1, "trick": "none"},
        {"lora": 3, "lora_alpha": 5.0, "mag": "cross_gate", "gate": "kv", "max_cache": 7},
        {"mag_learn": "head", "pool": "all", "beta": "scalar"},
        {"lora": None, "trick": "rotary", "nonlinearity": "gelu", "chunk": 5},
    ],
    ids=["lora", "projections", "cross", "learned", "none"],
)


@pytest.mark.sampled(2)
@settings
def test_saved_loaded_and_generating_the_same(
    said: dict[str, Any], base: Path, tmp_path: Path
) -> None:
    model, ids = trained(base, **said), tokens(1, 9)
    graft.save(model, tmp_path / "out")
    again = graft.load(tmp_path / "out", base)
    assert torch.equal(again(ids).logits, model(ids).logits)
    want = model.generate(ids, attention_mask=torch.ones_like(ids), **SAID)
    assert torch.equal(again.generate(ids, attention_mask=torch.ones_like(ids), **SAID), want)
    assert [float(m.mag_weight) for m in graft.memories(again)] == [0.375, 0.375]
    kept = load_file(tmp_path / "out" / NEW)
    frozen = {n for n, p in model.named_parameters() if not p.requires_grad} - {
        n for n, _ in model.named_parameters() if ".liza." in n or ".update." in n
    }
    assert not frozen & set(kept)


def from_folder(folder: Path) -> Any:
    """The model that transformers makes of a folder, every tensor of which it found there."""
    model, told = AutoModelForCausalLM.from_pretrained(
        folder, trust_remote_code=True, output_loading_info=True
    )
    assert not any(told.values()), told
    return model


def same_of_transformers(model: Any, folder: Path, tolerance: float = 1e-5) -> None:
    """Check that a folder's model computes, trains, generates and is saved again as `model`."""
    ids = tokens(2, 9)
    mask = torch.ones_like(ids)
    mask[0, :3] = 0
    theirs = from_folder(folder)
    assert isinstance(theirs, type(model))
    assert not [m for m in theirs.modules() if isinstance(m, GraftedMemory)]  # code of the folder
    want = model(ids, labels=ids)
    got = theirs(ids, labels=ids)
    close(got.logits, want.logits, tolerance)
    close(got.loss, want.loss, tolerance)
    said = {"attention_mask": mask, "min_new_tokens": 25, **SAID}
    text = theirs.generate(ids, **said)
    assert torch.equal(text, model.generate(ids, **said))
    assert torch.equal(text, theirs.generate(ids, use_cache=False, **said))
    got.loss.backward()
    assert all(p.grad is not None for n, p in theirs.named_parameters() if "_proj" in n)
    theirs.save_pretrained(folder.with_name("again"))
    again = from_folder(folder.with_name("again"))
    assert type(again) is not type(theirs)
    assert torch.equal(again(ids).logits, got.logits)


@pytest.mark.sampled(2)
@settings
def test_a_whole_graft_is_a_model_of_transformers(
    said: dict[str, Any], base: Path, tmp_path: Path
) -> None:
    model = trained(base, **said)
    graft.save(model, tmp_path / "out", whole=True)
    same_of_transformers(model, tmp_path / "out")
    plain = AutoModelForCausalLM.from_pretrained(base)
    assert type(plain).__module__.startswith("transformers.")
    with pytest.raises(UserError, match="trust_remote_code=True"):
        graft.load(tmp_path / "out", base)


@pytest.mark.sampled(2)
@families
def test_every_family_is_saved_whole(family: str, tmp_path: Path) -> None:
    causal_model(family).save_pretrained(tmp_path / "base")
    model = trained(tmp_path / "base")
    model.save_pretrained(tmp_path / "out")
    same_of_transformers(model, tmp_path / "out", 1e-4)


def test_weights_of_the_memory_stay_wide_in_half_precision(base: Path, tmp_path: Path) -> None:
    model = graft.liza(AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16), lora=None)
    graft.set_weight(model, 0.3)
    graft.save(model, tmp_path / "out", whole=True)
    theirs = from_folder(tmp_path / "out")
    assert theirs.dtype is torch.bfloat16
    assert torch.equal(theirs(tokens(1, 9)).logits, model(tokens(1, 9)).logits)


def test_a_base_that_moved_or_is_another(base: Path, tmp_path: Path) -> None:
    model = trained(base)
    graft.save(model, tmp_path / "out")
    moved = base.rename(tmp_path / "moved")
    ids = tokens(1, 9)
    assert torch.equal(graft.load(tmp_path / "out", moved)(ids).logits, model(ids).logits)
    with pytest.raises(UserError, match=f"it was saved with the base {base}"):
        graft.load(tmp_path / "out")
    with pytest.raises(UserError, match="is no folder with a causal model"):
        graft.load(tmp_path / "out", tmp_path / "gone")
    causal_model("Qwen3").save_pretrained(tmp_path / "other")
    with pytest.raises(UserError, match="is not the base of"):
        graft.load(tmp_path / "out", tmp_path / "other")
    with pytest.raises(UserError, match=r"has no liza\.json"):
        graft.load(tmp_path)


def test_mixer_and_adapter_bring_their_schedule_along() -> None:
    for words in (["mixer=liza"], ["adapter=liza", "task=causal_lm"]):
        node = plain(compose(words))[words[0].partition("=")[0]]
        assert node["callbacks"]["mag"]["_target_"] == "chimera.callback.part.liza.MagSchedule"


class Module(nn.Module):
    """Module with a weight around a grafted model, as a task."""

    def __init__(self) -> None:
        super().__init__()
        self.model = graft.liza(causal_model())


def weights(module: nn.Module) -> set[float]:
    return {round(float(memory.mag_weight), 6) for memory in graft.memories(module)}


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({}, [0.5, 0.5, 0.5, 0.5]),
        ({"schedule": "gradual", "steps": 4, "end": 0.41}, [0.01, 0.11, 0.21, 0.31, 0.41, 0.41]),
        ({"schedule": "cyclic"}, [0.0, 0.5, 1.0, 0.0, 0.5]),
        ({"schedule": "cyclic", "values": [0.25, 0.75]}, [0.25, 0.75, 0.25]),
    ],
    ids=["constant", "gradual", "cyclic", "list"],
)
def test_schedules(said: dict[str, Any], expected: list[float]) -> None:
    module, callback = Module(), MagSchedule(**said)
    trainer: Any = SimpleNamespace(max_steps=100)
    callback.setup(trainer, module, "fit")  # type: ignore[arg-type]
    for step, weight in enumerate(expected):
        trainer.global_step = step
        callback.on_train_batch_start(trainer, module, None, 0)  # type: ignore[arg-type]
        assert weights(module) == {weight}
        saved = module.state_dict()
        assert {float(v) for k, v in saved.items() if k.endswith("mag_weight")} == {
            float(torch.tensor(weight))
        }


def test_a_short_run_arrives_and_validation_has_its_own_weight() -> None:
    module, callback = Module(), MagSchedule(schedule="gradual", evaluate=0.25)
    trainer: Any = SimpleNamespace(max_steps=10, global_step=5)
    callback.setup(trainer, module, "fit")  # type: ignore[arg-type]
    callback.on_train_batch_start(trainer, module, None, 0)  # type: ignore[arg-type]
    assert weights(module) == {0.5}
    callback.on_validation_start(trainer, module)  # type: ignore[arg-type]
    assert weights(module) == {0.25}
    callback.on_train_batch_start(trainer, module, None, 0)  # type: ignore[arg-type]
    assert weights(module) == {0.5}
