"""Assembling a model and restoring its weights: what is refused by name, and in one line."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from chimera.contract import CAUSAL, Context, Mixer, Out, Parts, Site
from chimera.contract_tests import zoo
from chimera.errors import UserError
from chimera.model.assemble import Choices, build_model, choose
from chimera.model.language import LanguageModel
from chimera.model.restore import read, restore
from tests.kit import close


@dataclass(frozen=True)
class Mine:
    """Settings of a model outside Chimera."""

    builder: ClassVar[str] = f"{__name__}.mine"
    width: int = 3


def mine(settings: Mine, choices: Choices, *, vocab_size: int, causal: bool | None) -> Any:
    """Builder of this model."""
    assert causal
    assert choices.names["mixer"] == "retnet"
    return nn.Embedding(vocab_size, settings.width)


def test_a_settings_class_of_your_own_names_its_builder() -> None:
    model: Any = build_model(Mine(), zoo.choices(mixer="retnet"), vocab_size=5, causal=True)
    assert model.weight.shape == (5, 3)


def test_a_model_without_its_adapter_is_the_model_without_any() -> None:
    config = zoo.config(adapter="lora")
    models = []
    for choices in (choose(config, adapter=False), zoo.choices()):
        torch.manual_seed(0)
        models.append(build_model(zoo.TINY, choices, vocab_size=64, causal=False).state_dict())
    assert models[0].keys() == models[1].keys()
    assert all(torch.equal(models[0][name], tensor) for name, tensor in models[1].items())


def test_a_quantiser_without_effect_is_refused_by_name() -> None:
    for quant in ("bitnet158", "hbit", "int8"):
        for causal in (True, False):
            with pytest.raises(
                UserError, match=f"quant={quant} .*mixer=slstm; use mixer.headwise="
            ):
                zoo.model(mixer="slstm", quant=quant, causal=causal)
    config = zoo.config(mixer="slstm", quant="bitnet158")
    config["mixer"]["headwise"] = False
    build_model(zoo.TINY, choose(config), vocab_size=8, causal=True)


def test_a_quantised_head_that_is_a_plain_table_is_refused() -> None:
    config = zoo.config(quant="bitnet158")
    config["quant"]["head"] = True
    tied = replace(zoo.TINY, tie_head=True)
    with pytest.raises(UserError, match=r"quant.head=true has no effect with model.tie_head=true"):
        build_model(tied, choose(config), vocab_size=8, causal=True)
    build_model(replace(tied, tie_head=False), choose(config), vocab_size=8, causal=True)
    config["quant"]["embedding"] = True
    build_model(tied, choose(config), vocab_size=8, causal=True)


def test_a_tied_quantised_head_is_a_bitlinear_of_the_table() -> None:
    """SPEC E11; TITAN eq. 16, Algorithm 3: RMSNorm, 8-bit inputs, ternary table."""
    config = zoo.config(quant="bitnet158")
    config["quant"] |= {"head": True, "embedding": True}
    shape = replace(zoo.TINY, tie_head=True, head_transform=False)
    head = build_model(shape, choose(config), vocab_size=8, causal=False).double().head
    x = torch.randn(5, zoo.TINY.dim, dtype=torch.float64)
    normed = x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    step = normed.abs().amax(-1, keepdim=True) / 127
    weight = head.table.__self__.weight.detach()  # type: ignore[union-attr]
    scale = weight.abs().mean()
    ternary = (weight / scale).round().clamp(-1, 1) * scale
    close(head(x), (normed / step).round() * step @ ternary.T + head.bias, 1e-5)
    config["quant"]["head"] = False
    plain = build_model(shape, choose(config), vocab_size=8, causal=False).head
    assert plain.inputs is None


class Reads(Mixer):
    """The mean of all tokens: for encoders alone, and only in parallel."""

    component, directions = "reads", frozenset({"bidirectional"})

    def __init__(self, site: Site, parts: Parts) -> None:
        super().__init__()
        self.out: nn.Module = parts.linear(site.dim, site.dim, bias=False, role="out")

    def forward(self, x: Tensor, ctx: Context, state: Any = None) -> Out:
        return Out(self.out(x.mean(1, keepdim=True).expand_as(x)))


class Parallel(Reads):
    """The mean of the tokens so far, without a form that decodes."""

    component, directions = "parallel", CAUSAL

    def forward(self, x: Tensor, ctx: Context, state: Any = None) -> Out:
        counts = torch.arange(1, x.shape[1] + 1, device=x.device)[:, None]
        return Out(self.out(x.cumsum(1) / counts))


def model(kind: type[Mixer], *, causal: bool) -> LanguageModel:
    config = zoo.config()
    config["mixer"] = {"_target_": f"{__name__}.{kind.__name__}", "_partial_": True}
    config["choices"] = {**config["choices"], "mixer": kind.component}
    return build_model(zoo.TINY, choose(config), vocab_size=64, causal=causal)


def test_a_mixer_for_encoders_is_refused_in_a_decoder() -> None:
    assert model(Reads, causal=False)(zoo.tokens()).logits.isfinite().all()
    with pytest.raises(
        UserError, match=r"mixer=reads reads the tokens after .*task=mlm"
    ) as refusal:
        model(Reads, causal=True)
    assert "\n" not in str(refusal.value)


def test_a_mixer_for_decoders_is_wrapped_in_an_encoder() -> None:
    assert model(Parallel, causal=False)(zoo.tokens()).logits.isfinite().all()


def test_a_mixer_without_a_state_trains_and_is_refused_where_it_would_decode() -> None:
    decoder = model(Parallel, causal=True)
    decoder.check_length(zoo.TINY.max_len)  # asked before training
    assert decoder(zoo.tokens()).logits.isfinite().all()
    with pytest.raises(UserError, match="mixer=parallel cannot decode: it has no init_state"):
        decoder.init_state(1)


def saved(model: nn.Module, folder: Path, kind: str) -> Path:
    tensors = {name: t.clone() for name, t in model.state_dict().items()}
    if kind == "safetensors":
        file = folder / "model.safetensors"
        save_file(tensors, file)
    else:
        file = folder / "last.ckpt"
        own = {f"model.{name}": t for name, t in tensors.items()}
        torch.save({"state_dict": own | {"meter.total": torch.zeros(1)}}, file)
    return file


@pytest.mark.parametrize("kind", ["safetensors", "checkpoint"])
def test_all_weights_come_back(kind: str, tmp_path: Path) -> None:
    model = zoo.model(mixer="retnet", quant="hbit", norm="qdyt")
    file = saved(model, tmp_path, kind)
    other = zoo.model(mixer="retnet", quant="hbit", norm="qdyt")
    with torch.no_grad():
        for tensor in (*other.parameters(), *other.buffers()):
            tensor.zero_()
    restore(other, file)
    wanted = model.state_dict()
    assert all(torch.equal(tensor, wanted[name]) for name, tensor in other.state_dict().items())
    assert read(file).keys() == wanted.keys()


def test_a_name_that_the_file_leaves_out_is_that_of_the_same_tensor(tmp_path: Path) -> None:
    pair = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 2)})
    file = tmp_path / "model.safetensors"
    save_file({"a.weight": torch.ones(2, 2), "a.bias": torch.ones(2)}, file)
    restore(pair, file, tied={"b.weight": "a.weight", "b.bias": "a.bias"})
    assert all(bool((tensor == 1).all()) for tensor in pair.state_dict().values())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"depth": 1}, "has weights for backbone.blocks.1.*, which this model lacks"),
        ({"depth": 3}, "has no weights for backbone.blocks.2"),
        ({"dim": 16}, r"has .* \[64 32\], this model \[64 16\]"),
    ],
)
def test_what_does_not_fit_is_said(change: dict[str, int], message: str, tmp_path: Path) -> None:
    file = saved(zoo.model(), tmp_path, "checkpoint")
    with pytest.raises(UserError, match=message):
        restore(zoo.model(replace(zoo.TINY, **change)), file)  # type: ignore[arg-type]
