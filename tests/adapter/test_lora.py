"""LoRA and the adapters built from it equal peft's (SPEC A1); which layers they take."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import yaml
from mambapy.mamba import Mamba, MambaConfig
from peft.optimizers import create_loraplus_optimizer
from safetensors.torch import load_file
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
)

from chimera.adapter.adalora import adalora
from chimera.adapter.dora import dora
from chimera.adapter.head_only import head_only
from chimera.adapter.lora import lora
from chimera.adapter.lora_plus import lora_plus
from chimera.adapter.pissa import pissa
from chimera.adapter.shared.files import TENSORS, load, save, update_classes
from chimera.adapter.shared.inject import linears
from chimera.adapter.shared.low_rank import LowRank, adapted, matrix
from chimera.adapter.shared.merge import merge, prune
from chimera.adapter.sora import sora
from chimera.adapter.vera import vera
from chimera.config.settings import Optim
from chimera.contract_tests import zoo
from chimera.errors import UserError
from chimera.optim.optimizer import components, groups
from chimera.paths import EXPERIMENTS
from chimera.quant.shared.packing import packed
from tests.adapter.kit import TARGETS, batches, bert, logits, of_peft, stir, updates
from tests.kit import close, uniform

SHARED = ["query", "value"]
ADAPTERS: dict[str, Callable[..., nn.Module]] = {
    "lora": partial(lora, r=4, alpha=6.0),
    "dora": partial(dora, r=4, alpha=6.0),
    "pissa": partial(pissa, r=4, alpha=6.0),
    "vera": partial(vera, r=6),
    "lora_plus": partial(lora_plus, r=4, alpha=6.0),
    "adalora": adalora,
    "sora": sora,
}
FACTORS = {"A": "lora_A.default.weight", "B": "lora_B.default.weight"}


def ours(name: str, scale: float = 0.0) -> nn.Module:
    model = ADAPTERS[name](bert(), targets=TARGETS, train=["classifier"])
    stir(model, scale)
    return model


def theirs(**options: object) -> nn.Module:
    """peft's LoRA."""
    config = peft.LoraConfig(
        **{"r": 4, "lora_alpha": 6, "target_modules": SHARED, **options}  # type: ignore[arg-type]
    )
    return peft.get_peft_model(bert(), config)


def compared(mine: nn.Module, other: nn.Module, parameters: dict[str, str]) -> None:
    """Logits, and gradients of parameters by our name and peft's."""
    batch, found = next(batches(1)), []
    for model in (mine, other):
        out = model.train()(**batch)
        out.loss.backward()
        found.append(out.logits)
    close(*found, 1e-9)
    for name, update in updates(mine).items():
        for own, others in parameters.items():
            grad = getattr(update, own).grad
            close(grad, of_peft(other, name, others).grad, 1e-9)
            assert grad.any()


@pytest.mark.parametrize("name", ["lora", "dora", "vera"])
def test_it_is_pefts(name: str) -> None:
    mine = ours(name, 0.1)
    names, constant = FACTORS, {}
    if name == "vera":
        config = peft.VeraConfig(r=6, target_modules=SHARED, modules_to_save=["classifier"])
        other = peft.get_peft_model(bert(), config).double()
        names = {"lambda_b": "vera_lambda_b.default", "lambda_d": "vera_lambda_d.default"}
        constant = {"A": "vera_A.default", "B": "vera_B.default"}
    else:
        other = theirs(modules_to_save=["classifier"], use_dora=name == "dora")
    if name == "dora":
        names = {**FACTORS, "magnitude": "lora_magnitude_vector.default.weight"}
    for layer, update in updates(mine).items():
        for own, others in {**names, **constant}.items():
            of_peft(other, layer, others).data.copy_(getattr(update, own))
    compared(mine, other, names)
    count = sum(p.numel() for p in mine.parameters() if p.requires_grad)
    assert count == other.get_nb_trainable_parameters()[0]


def test_pissa_is_pefts() -> None:
    """peft subtracts B₀ A₀ from the weight; both compute in float32 there."""
    config = peft.LoraConfig(r=4, lora_alpha=6, target_modules=SHARED, init_lora_weights="pissa")
    other, mine = peft.get_peft_model(bert().float(), config).double(), ours("pissa")
    for name, update in updates(mine).items():
        product = update.B0 @ update.A0
        a, b = (of_peft(other, name, path) for path in FACTORS.values())
        close(product, b @ a, 1e-6)
        left = of_peft(other, name, "base_layer.weight") + 1.5 * product
        close(left, adapted(mine)[name].base.weight, 1e-6)
        residual = adapted(mine)[name].base.weight - 1.5 * product
        of_peft(other, name, "base_layer.weight").data.copy_(residual)
        for part, path in FACTORS.items():
            getattr(update, part).data.add_(0.1 * torch.randn_like(getattr(update, part)))
            of_peft(other, name, path).data.copy_(getattr(update, part))
    compared(mine, other, FACTORS)


def test_lora_plus_has_pefts_rates() -> None:
    mine = ours("lora_plus")
    optimizer = create_loraplus_optimizer(
        theirs(), torch.optim.AdamW, lr=1e-3, loraplus_lr_ratio=16.0
    )
    found = groups(mine, Optim(lr=1e-3))
    rates = {id(p): group.lr for group in found for p in group.parameters}
    for update in updates(mine).values():
        assert (rates[id(update.A)], rates[id(update.B)]) == (1e-3, 1.6e-2)
    adapter = {group.lr: group.count for group in found if group.component == "adapter"}
    for rate, count in adapter.items():
        same = (group for group in optimizer.param_groups if group["lr"] == rate)
        assert count == sum(p.numel() for group in same for p in group["params"])


def test_a_starts_as_a_linear_layer_and_b_at_zero() -> None:
    """Kaiming's bound with a = √5 is 1/√d_in, for any rank and output width."""
    update = LowRank(nn.Linear(25, 3), 4000, 1.0, 0.0)
    uniform(update.A, -1 / 5, 1 / 5)
    assert not update.B.any()


def test_saidl_counts() -> None:
    """DeBERTa-v3-base of 184.7 M with each adapter of SAIDL Tables 7 and 10, on its shape alone."""
    folder = EXPERIMENTS / "saidl/shapes/deberta-v3-base"
    config = AutoConfig.from_pretrained(folder, num_labels=2)
    patterns = yaml.safe_load((EXPERIMENTS / "saidl/adapters/adalora.yaml").read_text())["adapter"]
    found = []
    for make, options in ((lora, {}), (sora, {}), (adalora, patterns)):
        with torch.device("meta"):
            model = make(AutoModelForSequenceClassification.from_config(config), **options)
        trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
        found.append((trained, len(updates(model))))
        if make is lora:
            assert round(sum(p.numel() for p in model.parameters()) / 1e6, 1) == 184.7
    assert found == [(296_450, 24), (296_642, 24), (1_181_954, 48)]


@pytest.mark.parametrize("name", ADAPTERS)
def test_it_starts_as_the_model_itself_and_merges(name: str) -> None:
    close(logits(ours(name)), logits(bert()), 1e-12 if name in ("dora", "pissa") else 0.0)
    model = ADAPTERS[name](bert(), targets=TARGETS, train=[])
    stir(model, 0.1)
    want = logits(model)
    assert not torch.allclose(want, logits(bert()))
    done = merge(model)
    close(logits(model), want, 1e-12)
    assert (len(done.merged), done.kept, adapted(model)) == (4, {}, {})
    assert set(model.state_dict()) == set(bert().state_dict())


@pytest.mark.parametrize("name", ADAPTERS)
def test_files_are_read_by_peft_and_by_us(name: str, tmp_path: Path) -> None:
    model = ours(name, 0.1)
    with torch.no_grad():
        model.classifier.weight.add_(1.0)
    save(model, tmp_path)
    want = logits(model)
    close(logits(load(bert(), tmp_path)), want, 1e-12)
    assert not any("embeddings" in key for key in load_file(tmp_path / TENSORS))
    if name != "sora":  # peft has none; pruned, it is a LoRA
        other = peft.PeftModel.from_pretrained(bert(), tmp_path).double()
        close(logits(other), want, 1e-6 if name in ("pissa", "vera") else 1e-9)
    close(logits(load(model, tmp_path)), want, 1e-12)  # in place of its own


@pytest.mark.parametrize("scaled", [False, True])
def test_we_load_pefts(scaled: bool, tmp_path: Path) -> None:
    """Also scaled by the root of the rank."""
    other = theirs(modules_to_save=["classifier"], use_rslora=scaled)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(0.1 if parameter.requires_grad else 0.0)
    other.save_pretrained(tmp_path)
    again = load(bert(), tmp_path)
    close(logits(again), logits(other), 1e-9)
    assert {update.scale for update in updates(again).values()} == {6 / (2 if scaled else 4)}
    assert all(
        p.requires_grad == (".update." in n or n.startswith("classifier"))
        for n, p in again.named_parameters()
    )


@pytest.mark.parametrize("make", [adalora, sora])
def test_a_pruned_adapter_is_smaller_equal_and_a_lora_to_peft(
    make: Callable[..., nn.Module], tmp_path: Path
) -> None:
    model = make(bert(), r=8, targets=TARGETS, train=["classifier"])
    stir(model)
    ranks = [8, 5, 0, 1]
    with torch.no_grad():
        for rank, update in zip(ranks, updates(model).values(), strict=True):
            update.diagonal()[rank:] = 0.0
    before, size = logits(model), sum(p.numel() for p in model.parameters())
    assert list(prune(model).values()) == ranks
    close(logits(model), before, 1e-12)
    assert sum(p.numel() for p in model.parameters()) < size
    assert [u.r for u in updates(model).values()] == [8, 5, 1]
    save(model, tmp_path)
    close(logits(peft.PeftModel.from_pretrained(bert(), tmp_path)), before, 1e-9)
    close(logits(load(bert(), tmp_path)), before, 1e-12)


def test_what_does_not_fit_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"adapter_config\.json is missing"):
        load(bert(), tmp_path)
    save(lora(bert(), targets=["*.query"]), tmp_path)
    with pytest.raises(UserError, match=r"is for bert\.encoder.*, which the model does not have"):
        load(nn.ModuleDict({"query": nn.Linear(16, 16)}), tmp_path)


def test_every_update_is_known_by_the_kind_in_its_file() -> None:
    for name in zoo.names("adapter"):
        with suppress(UserError):  # an adapter that rejects Chimera's models
            for layer in adapted(zoo.model(adapter=name)).values():
                assert update_classes()[layer.update.peft_type] is type(layer.update)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("mixer", zoo.distinct("mixer"))
def test_every_layer_that_may_be_adapted_trains_in_every_mixer(mixer: str) -> None:
    model = zoo.model(mixer=mixer, ffn="moe" if mixer == "attention" else "mlp")
    lora(model, targets=["*"])
    stir(model)
    out = model.train()(zoo.tokens())
    (out.logits.square().mean() + sum(out.aux.values(), torch.tensor(0.0))).backward()
    assert len(adapted(model)) >= 5
    without = [n for n, p in model.named_parameters() if p.requires_grad and p.grad is None]
    assert not without
    assert all(p.grad is None for p in model.parameters() if not p.requires_grad)


@pytest.mark.parametrize("adapter", [dora, pissa, vera])
def test_a_block_diagonal_layer_takes_an_update_made_from_its_matrix(adapter: Any) -> None:
    """Those of xLSTM; DoRA's lengths are of the rows of the whole matrix."""
    model = zoo.model(mixer="mlstm").double().eval()
    before = model(zoo.tokens()).logits
    adapter(model, r=2, targets=["*"])
    close(model(zoo.tokens()).logits, before, 1e-9)  # the update is 0 at first
    stir(model)
    layer: Any = next(m for m in adapted(model).values() if m.weight.ndim == 3)
    x = torch.randn(3, layer.base.in_features, dtype=torch.float64)
    close(layer(x), x @ (matrix(layer.base) + layer.update.delta()).T, 1e-9)
    model(zoo.tokens()).logits.square().mean().backward()
    assert all(p.grad is not None for p in model.parameters() if p.requires_grad)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("quant", zoo.names("quant"))
def test_the_update_stands_beside_every_quantiser(quant: str) -> None:
    torch.manual_seed(0)
    model = zoo.model(quant=quant).double().train()
    plain = model.backbone.blocks[0].ffn.up
    x = torch.randn(3, 5, 32, dtype=torch.float64)
    model(zoo.tokens())  # layers that initialise scales from the first batch have seen one
    model.eval()
    before = plain(x)
    lora(model, targets=["*.up"])
    close(model.backbone.blocks[0].ffn.up(x), before, 0.0)
    stir(model)
    update = updates(model)["backbone.blocks.0.ffn.up"]
    close(model.backbone.blocks[0].ffn.up(x), before + x @ update.delta().T, 1e-10)
    logits = model(zoo.tokens()).logits
    done = merge(model)
    close(model(zoo.tokens()).logits, logits, 1e-10)  # merged or separate, outputs are equal
    assert (len(done.merged), len(done.kept)) == ((2, 0) if quant == "none" else (0, 2))
    assert quant == "none" or "is not exact" in str(done)


def test_packing_keeps_the_update() -> None:
    model = zoo.model(quant="bitnet158").double().eval()
    lora(model)
    stir(model)
    small = packed(model)
    assert len(adapted(small)) == 4
    close(small(zoo.tokens()).logits, model(zoo.tokens()).logits, 1e-9)


def test_a_layer_under_two_names_has_one_update() -> None:
    settings = zoo.Model(**{**zoo.TINY.__dict__, "two_way": "shared"})
    model = zoo.model(settings, mixer="mamba")
    lora(model)
    block = model.backbone.blocks[0].mixer
    assert block.ahead.ssm.in_proj is block.back.ssm.in_proj
    assert len(adapted(model)) == 4


def test_usual_targets() -> None:
    def leaves(model: nn.Module) -> set[str]:
        return {name.rpartition(".")[2] for name in adapted(lora(model))}

    assert leaves(bert()) == {"query", "value"}
    assert leaves(zoo.model(mixer="retnet")) == {"q_proj", "v_proj"}
    assert leaves(zoo.model(mixer="mamba")) == {"in_proj", "out_proj"}
    assert leaves(Mamba(MambaConfig(d_model=8, n_layers=1))) == {"in_proj", "out_proj"}
    llama = LlamaConfig(
        hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, vocab_size=9
    )
    assert leaves(LlamaForCausalLM(llama)) == {"q_proj", "v_proj"}
    assert leaves(nn.Sequential(nn.Linear(3, 3))) == {"0"}


def test_gpt2_with_its_transposed_weights() -> None:
    torch.manual_seed(0)
    config = GPT2Config(n_embd=8, n_layer=1, n_head=2, vocab_size=11, n_positions=8)
    model = lora(GPT2LMHeadModel(config).double().eval())
    stir(model)
    ids = torch.arange(6)[None]
    before = model(ids).logits
    assert len(merge(model).merged) == 1
    close(model(ids).logits, before, 1e-12)


def test_a_mamba_of_others_trains() -> None:
    model = sora(Mamba(MambaConfig(d_model=8, n_layers=2)), targets=["*.in_proj", "*.out_proj"])
    stir(model)
    model(torch.randn(2, 5, 8)).square().mean().backward()
    assert len(adapted(model)) == 4
    assert all(p.grad is not None for p in model.parameters() if p.requires_grad)


def test_adapter_and_gates_are_groups_and_the_rest_is_in_none() -> None:
    model = sora(zoo.model(), targets=["*.q_proj"], train=["head"])
    found = {group.component: group for group in groups(model, Optim(lr=1e-3))}
    assert set(found) == {"adapter", "gate", "head", "norm"}
    assert found["adapter"].count == 2 * 8 * 64
    assert found["gate"].count == 2 * 8
    owner = components(model)
    assert owner["backbone.blocks.0.mixer.q_proj.base.weight"] == "attention"
    trained = {id(p) for p in model.parameters() if p.requires_grad}
    assert {id(p) for g in found.values() for p in g.parameters} == trained


def test_half_precision_bases_and_autocast() -> None:
    model = lora(zoo.model().bfloat16(), targets=["*.q_proj"])
    assert all(p.dtype == torch.float32 for p in model.parameters() if p.requires_grad)
    assert model(zoo.tokens()).logits.dtype == torch.bfloat16
    model = lora(zoo.model())
    with torch.autocast("cpu", torch.bfloat16):
        model(zoo.tokens()).logits.float().square().mean().backward()


@pytest.mark.parametrize(
    ("targets", "train", "message"),
    [
        (["*.q_prj"], None, r"'\*\.q_prj' matches no linear layer of this model; did you mean"),
        (["*.q_proj", "nothing"], None, r"'nothing' matches no linear layer.*it has \*\.down"),
        (["*.mixer_norm"], None, r"matches backbone\.blocks\.0\.mixer_norm, a LayerNorm"),
        (["*.q_proj"], ["classifer"], "adapter.train: 'classifer' matches no module or parameter"),
    ],
)
def test_a_glob_that_matches_nothing(
    targets: list[str], train: list[str] | None, message: str
) -> None:
    with pytest.raises(UserError, match=message) as caught:
        lora(zoo.model(), targets=targets, train=train)
    assert "\n" not in str(caught.value)


def test_one_adapter_at_a_time() -> None:
    with pytest.raises(UserError, match="has an adapter already"):
        lora(lora(zoo.model(), targets=["*.q_proj"]), targets=["*.q_proj"])


def test_a_router_is_no_target() -> None:
    names = linears(zoo.model(mixer="routed", ffn="moe"))
    assert not any("router" in name for name in names)


def test_trains_the_classifier_by_default() -> None:
    trained = {n for n, p in lora(bert()).named_parameters() if p.requires_grad}
    assert {n for n in trained if ".update." not in n} == {"classifier.weight", "classifier.bias"}


def trained(model: nn.Module) -> set[str]:
    return {name.partition(".")[0] for name, p in model.named_parameters() if p.requires_grad}


def test_only_the_classifier_is_trained() -> None:
    assert trained(head_only(bert())) == {"classifier"}
    assert trained(head_only(bert(), train=["bert.embeddings"])) == {"bert"}


def test_a_model_without_a_head_is_refused() -> None:
    with pytest.raises(UserError, match=r"adapter=head_only: this model has no \*\.classifier"):
        head_only(nn.Sequential(nn.Linear(2, 2)))
