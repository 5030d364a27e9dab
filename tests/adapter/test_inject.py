"""Selection of adapted layers and of trained parameters, in Chimera's and other models."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from mambapy.mamba import Mamba, MambaConfig
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from chimera.adapter.dora import dora
from chimera.adapter.head_only import head_only
from chimera.adapter.lora import lora
from chimera.adapter.pissa import pissa
from chimera.adapter.shared.inject import linears
from chimera.adapter.shared.low_rank import adapted, matrix
from chimera.adapter.shared.merge import merge
from chimera.adapter.sora import sora
from chimera.adapter.vera import vera
from chimera.config.settings import Optim
from chimera.contract_tests import zoo
from chimera.errors import UserError
from chimera.optim.optimizer import components, groups
from chimera.quant.shared.packing import packed
from tests.adapter.kit import bert, stir, updates
from tests.kit import close


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
