"""Quantised layers from their factories: values, gradients, options, roles, stages of training."""

import copy
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
import torch
import torch.nn.functional as F
from hydra.utils import instantiate
from omegaconf import OmegaConf
from torch import Tensor, nn

from chimera.callback.part.stages import ActivationStages
from chimera.contract import Packable, Role
from chimera.ops.together import together
from chimera.quant.bitnet158 import BitNet158
from chimera.quant.bitnet_a48 import BitNetA48
from chimera.quant.bitnet_b1 import BitNetB1
from chimera.quant.bitnet_v2 import BitNetV2
from chimera.quant.hbit import HBit
from chimera.quant.shared.stages import LATE, Stages
from tests.kit import close, grads, randn
from tests.reference.quantisation import bitlinear158, bitlinear_b1, hadamard

CONF = Path(__file__).parents[2] / "conf" / "quant"
NAMES = sorted(path.stem for path in CONF.glob("*.yaml"))


def make(name: str, **change: Any) -> Any:
    node = {**OmegaConf.load(CONF / f"{name}.yaml"), **change}
    return instantiate({key: value for key, value in node.items() if key != "callbacks"})


def linear(quantiser: Any, d_in: int = 48, d_out: int = 40, role: Role = "up") -> Any:
    return quantiser.linear(d_in, d_out, bias=False, role=role).double()


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", NAMES)
def test_every_gradient_and_never_a_stale_weight(name: str) -> None:
    quantiser = make(name)
    layer, table = linear(quantiser), quantiser.embedding(10, 16)
    x = randn(2, 5, 48)
    (
        layer(x).square().sum() + table(torch.arange(4)).sum() + table.table().square().sum()
    ).backward()
    for module in (layer, table):
        assert all(p.grad is not None and p.grad.isfinite().all() for p in module.parameters())
    layer.eval()
    seen = layer(x)
    layer.weight.data.neg_()  # an in-place change that version counters do not detect
    close(layer(x), -seen, 1e-9)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", NAMES)
def test_one_product_of_layers_with_the_same_input(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Results, gradients and statistics are those of the layers alone; a layer with a hook is."""
    quantiser = make(name)
    roles: list[Role] = ["qkv", "qkv", "qkv", "gate", "gate"]
    layers = nn.ModuleList(linear(quantiser, 48, 8 + i, role) for i, role in enumerate(roles))
    other = copy.deepcopy(layers)
    x, products = randn(3, 7, 48).requires_grad_(), []
    multiply = F.linear
    monkeypatch.setattr(F, "linear", lambda *args: (products.append(1), multiply(*args))[1])
    apart = [layer(x) for layer in other]
    assert len(products) == 5
    monkeypatch.setattr("chimera.ops.together.DEVICES", ("cpu",))
    joined = together(x, *layers)
    assert len(products) - 5 == (1 if name == "none" else 2)
    close(joined, apart, 1e-9)
    losses = [sum(y.sin().sum() for y in ys) for ys in (joined, apart)]
    close(
        grads(losses[0], [x, *layers.parameters()]),
        grads(losses[1], [x, *other.parameters()]),
        1e-9,
    )
    for a, b in zip(layers.state_dict().values(), other.state_dict().values(), strict=True):
        close(a.double(), b.double(), 0.0)
    products.clear()
    for number, group in ((1 if name == "none" else 2, layers), (1, layers[:3])):
        side, *alone = together(x, (*group[:2],), *group[2:])  # without a copy of the first two
        assert len(products) == number
        assert side._base is not None
        close([*side.split([8, 9], -1), *alone], apart[: len(group)], 1e-9)
        products.clear()
    seen: list[nn.Module] = []
    layers[1].register_forward_hook(lambda module, *_: seen.append(module))
    together(x, *layers)
    assert seen == [layers[1]]
    seen.clear()
    side, *_ = together(x, (*layers[:2],))
    close(side, torch.cat(apart[:2], -1), 1e-9)
    assert seen == [layers[1]]
    products.clear()
    together(x, *layers.eval())
    assert len(products) == 5


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("quantised", [True, False])
def test_embedding_looks_up_its_table(name: str, quantised: bool) -> None:
    quantiser = make(name, **({} if name == "none" else {"embedding": quantised}))
    table = quantiser.embedding(11, 8)
    ids = torch.tensor([[1, 5, 5], [0, 10, 3]])
    close(table(ids), F.embedding(ids, table.table()), 0.0)
    assert table.component == "embedding"
    a, b = grads(table(ids).square().sum(), table), grads(table.table()[ids].square().sum(), table)
    close(a, b, 1e-6)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", [name for name in NAMES if name != "none"])
def test_head_is_quantised_by_option_only(name: str) -> None:
    head = make(name).linear(16, 32, bias=True, role="head")
    x = torch.randn(3, 16)
    close(head(x), F.linear(x, head.weight, head.bias), 0.0)
    other = make(name, head=True).linear(16, 32, bias=True, role="head")
    assert not torch.allclose(other(x), F.linear(x, other.weight, other.bias), atol=1e-3)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", NAMES)
def test_meta_device_roles_and_autocast(name: str) -> None:
    for role in get_args(Role):
        with torch.device("meta"):
            layer = make(name).linear(48, 40, bias=True, role=role)
        assert layer.role == role
        assert layer.weight.is_meta
    layer = make(name).linear(48, 40, bias=True, role="out")
    x = torch.randn(2, 5, 48, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        y = layer(x)
    y.float().sum().backward()
    assert y.dtype == torch.bfloat16
    assert layer.weight.grad.dtype == x.grad.dtype == torch.float32
    close(y.float(), layer(x), 0.06)  # bfloat16 has 8 bits


def gradients(ste: str) -> tuple[torch.Tensor, torch.Tensor, nn.Module]:
    """Gradient of the weight, ∂L/∂Ŵ, and the layer, for a constant seed."""
    torch.manual_seed(3)
    layer = linear(HBit(ste=ste, activations="per_token"))
    x, g = randn(2, 9, 48), randn(2, 9, 40)
    (layer(x) * g).sum().backward()
    return layer.weight.grad, torch.einsum("bto,bti->oi", g, layer.inputs(x)), layer


def test_gradient_rule_standard() -> None:
    got, of_quantised, _ = gradients("standard")
    close(got, of_quantised, 1e-12)


def test_gradient_rule_lsq_divides_by_the_scale_of_the_row() -> None:
    got, of_quantised, layer = gradients("lsq")
    close(got, of_quantised / (layer.weight.abs().mean(1, keepdim=True) + 1e-5), 1e-9)


def test_erratum_e7_the_papers_lsq_is_not_lsq() -> None:
    """LSQ learns the step; weights outside the grid get no gradient, unlike the paper's rule."""
    got, of_quantised, layer = gradients("lsq_learned")
    step = 2 * layer.weight.detach().abs().mean(1, keepdim=True)
    close(layer.step, step, 1e-12)
    inside = layer.weight.abs() < step
    assert not inside.all()
    close(got, of_quantised * inside, 1e-12)
    ratio = layer.weight.detach() / step
    slope = torch.where(inside, ratio.round() - ratio, ratio.sign())
    close(layer.step.grad, (of_quantised * slope).sum(1, keepdim=True) / 48**0.5, 1e-9)
    papers, _, other = gradients("lsq")
    assert not hasattr(other, "step")
    assert papers[~inside].ne(0).all()


def test_learned_step_starts_from_the_weights_it_finds() -> None:
    layer = linear(HBit(ste="lsq_learned"))
    nn.init.normal_(layer.weight, std=0.5)  # after construction, as the model's initialisation
    layer.weight.data[3] = 0.0
    layer(randn(2, 48))
    close(layer.step[4], 2 * layer.weight[4].abs().mean()[None], 1e-12)
    assert layer.step[3] == 0
    layer.weight.data[3] = 0.1
    layer.step.data[4] = 7.0  # changed by training
    layer(randn(2, 48))
    close(layer.step[3:5, 0], torch.tensor([0.2, 7.0]).double(), 1e-6)


def test_hbit_is_rotation_grid_and_row_scales() -> None:
    layer = linear(HBit(), 192, 16).train()
    x = randn(2, 9, 192)
    rotated = x @ torch.block_diag(*[hadamard(64)] * 3)
    step = rotated.abs().amax((0, 1)) / 7
    s = layer.weight.abs().mean(1, keepdim=True) + 1e-5
    w = s * (layer.weight / s).round().clamp(-1, 1)
    close(layer(x), (rotated / step).round() * step @ w.T, 1e-9)


@pytest.mark.parametrize("role", ["qkv", "gate", "out", "up", "down"])
def test_hadamard_by_role(role: Role) -> None:
    x = randn(4, 48)
    found = {
        choice: linear(HBit(hadamard=choice, activations="per_token"), role=role).inputs(x)
        for choice in ("all", "attention", "none")
    }
    assert not torch.allclose(found["all"], found["none"])
    rotates = role in {"qkv", "gate", "out"}
    close(found["attention"], found["all" if rotates else "none"], 0.0)


@pytest.mark.parametrize("name", ["bitnet158", "bitnet_b1", "hbit", "ternary_weight"])
def test_ternary_layers_show_their_codes(name: str) -> None:
    for module in (linear(make(name)), make(name, embedding=True).embedding(9, 16).double()):
        assert isinstance(module, Packable)
        codes, scale = module.ternary()
        assert codes.dtype == torch.int8
        used = module.table() if hasattr(module, "table") else module.quantised()
        close(codes * scale, used.detach(), 1e-15)


def expected(x: Tensor, w: Tensor, activations: str) -> Tensor:
    """A layer by the equations of the papers, with gradients by x + (q − x).detach()."""
    if activations in ("8", "b1"):
        return bitlinear158(x, w) if activations == "8" else bitlinear_b1(x, w)
    normed = x / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt()
    if activations == "4":
        beta = normed.abs().mean(-1, keepdim=True)
        rounded = (normed * math.sqrt(7) / beta).round().clamp(-8, 7) * beta / math.sqrt(7)
    else:
        gamma = normed.abs().max(-1, keepdim=True).values
        rounded = (normed * 127 / gamma).round() * gamma / 127
        least = normed.abs().sort(-1, descending=True).values[..., x.shape[-1] // 2 - 1, None]
        rounded = rounded * (normed.abs() >= least)
    scale = w.abs().mean()
    weight = (w / scale).round().clamp(-1, 1) * scale
    return (normed + (rounded - normed).detach()) @ (w + (weight - w).detach()).T


CASES = [
    (BitNet158(), "up", "8", False),
    (BitNetB1(), "up", "b1", False),
    (BitNetV2(), "qkv", "4", False),
    (BitNetV2(), "down", "4", True),
    (BitNetV2(), "out", "4", True),
    (BitNetV2(activation_bits=8), "down", "8", True),
    (BitNetA48(), "up", "4", False),
    (BitNetA48(), "out", "sparse", False),
    (BitNetA48(), "down", "8", False),
]


@pytest.mark.sampled(9)
@pytest.mark.parametrize("late", [True, False])
@pytest.mark.parametrize(("quantiser", "role", "activations", "rotates"), CASES)
def test_layers_are_their_papers(
    quantiser: Any, role: Role, activations: str, rotates: bool, late: bool
) -> None:
    layer = linear(quantiser, role=role).train(late)
    for module in layer.modules():
        if isinstance(module, Stages):
            module.set_stage(late)
    x, g = randn(2, 7, 48).requires_grad_(), randn(2, 7, 40)
    rotation = torch.block_diag(*[hadamard(16)] * 3) if rotates else torch.eye(48).double()
    early = activations if activations == "b1" else "8"
    theirs = expected(x @ rotation, layer.weight, activations if late else early)
    mine = layer(x)
    close(mine, theirs, 1e-12)
    over = [x, layer.weight]
    close(grads((mine * g).sum(), over), grads((theirs * g).sum(), over), 1e-12)


def run_to(callback: ActivationStages, model: torch.nn.Module, step: int, steps: int = 100) -> None:
    trainer: Any = SimpleNamespace(global_step=step, estimated_stepping_batches=steps)
    callback.on_train_batch_start(trainer, model, None, 0)  # type: ignore[arg-type]


def test_a_run_changes_over_and_a_later_one_does_not_start_again() -> None:
    layer = BitNetV2().linear(16, 16, bias=False, role="up")
    x = torch.randn(3, 16)
    four_bits = layer(x)
    callback = ActivationStages(early=0.9)
    start: Any = SimpleNamespace(global_step=0, estimated_stepping_batches=100)
    callback.on_train_start(start, layer)
    run_to(callback, layer, 0)
    assert not layer(x).equal(four_bits)
    run_to(callback, layer, 89)
    saved_early = {k: v.clone() for k, v in layer.state_dict().items()}
    assert not layer(x).equal(four_bits)
    run_to(callback, layer, 90)
    assert layer(x).equal(four_bits)
    assert int(layer.inputs[-1].stage) == LATE
    again = ActivationStages()
    again.on_train_start(start, layer)
    run_to(again, layer, 0)
    assert layer(x).equal(four_bits)
    layer.load_state_dict(saved_early)  # a checkpoint of the first stage evaluates with 8 bits
    assert not layer(x).equal(four_bits)
