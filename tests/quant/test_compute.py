"""Products of integer codes give the numbers of `simulate`, with any shape, and its gradients.

Codes are made once per change of the weight, whatever changes it, and belong to no state.
"""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import distributed, nn

from chimera.config.compose import compose, plain
from chimera.config.settings import Model
from chimera.contract import Role
from chimera.errors import UserError
from chimera.model.assemble import build_model, choose
from chimera.model.sharding import load_state, shard, whole_state
from chimera.ops import integer
from chimera.ops.ternary import Rule
from chimera.quant.bitnet158 import BitNet158
from chimera.quant.bitnet_a48 import BitNetA48
from chimera.quant.bitnet_b1 import BitNetB1
from chimera.quant.bitnet_v2 import BitNetV2
from chimera.quant.hbit import HBit
from chimera.quant.shared.layers import TernaryLinear
from chimera.quant.ternary_weight import TernaryWeight
from chimera.quant.uniform import Uniform
from tests.kit import close

#: Quantisers with integers on both sides, by name.
KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "bitnet158": (BitNet158, {}),
    "threshold, 4 bits": (BitNet158, {"ternarize": "threshold", "activation_bits": 4}),
    "bitnet_b1": (BitNetB1, {}),
    "hbit": (HBit, {"activations": "per_token"}),
    "hbit standard": (HBit, {"activations": "per_token", "ste": "standard"}),
    "hbit lsq_learned": (HBit, {"activations": "per_token", "ste": "lsq_learned"}),
    "ternary_weight": (TernaryWeight, {"activation_bits": 8}),
    "uniform": (Uniform, {}),
    "uniform, 3 and 5 bits": (Uniform, {"weight_bits": 3, "activation_bits": 5}),
    "bitnet_v2": (BitNetV2, {}),
    "bitnet_a48": (BitNetA48, {}),
}
#: The layers of these that differ most from others: rotated, and sparse. Others are all alike.
ROLES: dict[str, Role] = {"bitnet_v2": "down", "bitnet_a48": "out"}


def pair(kind: str, compute: str, d_in: int, d_out: int, dtype: torch.dtype) -> tuple[Any, Any]:
    """The same layer with `simulate` and with another arithmetic."""
    of, options = KINDS[kind]
    layers = []
    for each in ("simulate", compute):
        torch.manual_seed(d_in * 100 + d_out)
        quantiser = of(**options, compute=each)
        layer = quantiser.linear(d_in, d_out, bias=True, role=ROLES.get(kind, "up"))
        layers.append(layer.to(dtype))
    return layers[0], layers[1]


def results(layer: Any, x: torch.Tensor, g: torch.Tensor) -> dict[str, torch.Tensor]:
    """Output, and gradients of the inputs and of every parameter."""
    x = x.clone().requires_grad_()
    y = layer(x)
    (y * g).sum().backward()
    found = {name: p.grad for name, p in layer.named_parameters()}
    return {"y": y.detach(), "x": x.grad, **found}


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "uniform, 3 and 5 bits"])
def test_all_arithmetics_send_halves_to_one_side(kind: str) -> None:
    """Whole numbers times a scale, the largest 254, seen with other noise by each arithmetic."""
    of, options = KINDS[kind]
    whole = torch.randint(-127, 128, (9, 128)) * 2 + torch.randint(2, (9, 128))
    whole[:, 0] = 254
    layers = []
    for compute in ("simulate", "int8"):
        torch.manual_seed(1)
        quantiser = of(**options, compute=compute, ties="away")
        layers.append(quantiser.linear(128, 30, bias=False, role=ROLES.get(kind, "up")).eval())
    layers.append(layers[0].packed() if isinstance(layers[0], TernaryLinear) else layers[1])
    found = []
    for layer in (*layers, layers[0].double()):
        noise = 1 + 2e-7 * (2 * torch.rand(9, 128) - 1)
        with torch.no_grad():
            found.append(layer((whole * noise * 0.37).to(layer.weight.dtype)).float())
    for other in found[1:]:
        close(other, found[0], 2e-5 * float(found[0].abs().max()))


@pytest.mark.sampled(3, each=("compute",))
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("compute", ["int8", "bf16"])
@given(
    batch=st.integers(0, 3), tokens=st.integers(1, 19), d_in=st.integers(1, 67),
    d_out=st.integers(1, 35), zeros=st.sampled_from(["none", "token", "row", "all"]),
)  # fmt: skip
def test_is_simulate(
    kind: str, compute: str, batch: int, tokens: int, d_in: int, d_out: int, zeros: str
) -> None:
    plain, other = pair(kind, compute, d_in, d_out, torch.float64)
    x = torch.randn(batch, tokens, d_in, dtype=torch.float64)
    if zeros == "token":
        x[:, 0] = 0
    if zeros == "all":
        x.zero_()
    if zeros == "row":
        for layer in (plain, other):
            layer.weight.data[0] = 0
    g = torch.randn(batch, tokens, d_out, dtype=torch.float64)
    want, got = results(plain, x, g), results(other, x, g)
    assert want.keys() == got.keys()
    product = want["y"] - (0 if plain.bias is None else plain.bias.detach())
    bound = 2**-8 * product.abs() if compute == "bf16" else 0.0
    assert ((got.pop("y") - want.pop("y")).abs() <= bound + 1e-12 * (1 + product.abs())).all()
    close(list(got.values()), [want[name] for name in got], 1e-10)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", KINDS)
def test_is_simulate_to_the_rounding_of_float32(kind: str) -> None:
    """Inputs are sums of 129 products: 129·2⁻²⁴ of their sizes bounds what summation may change."""
    plain, other = pair(kind, "int8", 129, 33, torch.float32)
    x, g = torch.randn(4, 7, 129), torch.randn(4, 7, 33)
    want, got = results(plain, x, g), results(other, x, g)
    sizes = plain.inputs(x).abs() @ plain.quantised().abs().T
    assert ((got["y"] - want["y"]).abs() <= 130 * 2**-24 * (sizes + 1)).all()
    close(list(got.values()), [want[name] for name in got], 1e-4)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("compute", ["int8", "bf16"])
@pytest.mark.parametrize("kind", KINDS)
def test_under_autocast_as_simulate(kind: str, compute: str) -> None:
    plain, other = pair(kind, compute, 48, 40, torch.float32)
    x, g = torch.randn(3, 5, 48), torch.randn(3, 5, 40)
    exact = results(plain, x, g)
    with torch.autocast("cpu", torch.bfloat16):
        got = results(other, x, g)
    assert got["y"].dtype == torch.bfloat16
    assert {got[k].dtype for k in got if k != "y"} == {torch.float32}
    for name, value in got.items():  # 8 bits, and sums of 40 and 15 of them
        close(value.float(), exact[name], 0.05 * float(exact[name].abs().max()))


def test_both_paths_of_int8_are_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """With VNNI the codes are int8, without it float32: the same sums."""
    outputs = []
    for has in (True, False):
        monkeypatch.setattr(integer, "_cpu_multiplies_int8", lambda has=has: has)
        _, other = pair("bitnet158", "int8", 131, 17, torch.float32)
        x = torch.randn(2, 5, 131)
        outputs.append(other(x))
        assert other.rounded().codes.dtype == (torch.int8 if has else torch.float32)
    close(outputs[0], outputs[1], 0.0)


def test_what_is_not_finite_stays_so() -> None:
    for value in (float("nan"), float("inf")):
        plain, other = pair("bitnet158", "int8", 32, 8, torch.float32)
        x = torch.randn(2, 3, 32)
        x[0, 1, 5] = value
        assert torch.equal(other(x).isfinite().all(-1), plain(x).isfinite().all(-1))
        assert not other(x)[0, 1].isfinite().any()


@pytest.mark.parametrize(
    ("make", "need"),
    [
        (lambda c: HBit(compute=c), "per_token"),
        (lambda c: Uniform(activations="per_channel", compute=c), "per_token"),
        (lambda c: Uniform(weight_bits=None, compute=c), "weight_bits"),
        (lambda c: TernaryWeight(compute=c), "activation_bits"),
    ],
)
@pytest.mark.parametrize("compute", ["int8", "bf16"])
def test_other_grids_are_refused_in_one_line(make: Any, need: str, compute: str) -> None:
    with pytest.raises(UserError, match=need) as error:
        make(compute)
    assert f"quant.compute={compute}" in str(error.value)
    assert "\n" not in str(error.value)
    assert make("simulate").compute == "simulate"


def layer(compute: str = "int8", seed: int = 0, *, learned: bool = False) -> Any:
    torch.manual_seed(seed)
    quantiser: Any = (
        HBit(ste="lsq_learned", activations="per_token", compute=compute)  # type: ignore[arg-type]
        if learned
        else BitNet158(compute=compute)  # type: ignore[arg-type]
    )
    return quantiser.linear(24, 20, bias=False, role="up")


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """An entry for every quantisation of a weight."""
    calls: list[int] = []
    original = Rule.codes

    def counted(self: Rule, w: torch.Tensor) -> Any:
        calls.append(id(w))
        return original(self, w)

    monkeypatch.setattr(Rule, "codes", counted)
    return calls


def whole(compute: str, loops: int) -> Any:
    """A small decoder."""
    torch.manual_seed(0)
    line = ["quant=bitnet158", "norm=none", f"quant.compute={compute}"]
    shape = Model(dim=16, depth=2, heads=2, max_len=8, loops=loops)
    return build_model(shape, choose(plain(compose(line))), vocab_size=7, causal=True)


def test_once_per_step_over_loops_accumulation_and_validation(made: list[int]) -> None:
    model = whole("int8", loops=3)
    layers = [m for m in model.modules() if hasattr(m, "kept")]
    ids, optimizer = torch.randint(7, (2, 5)), torch.optim.AdamW(model.parameters(), fused=True)
    for step in range(3):
        for _ in range(2):
            model(ids).logits.square().sum().backward()
        for context in (torch.no_grad(), torch.inference_mode()):
            with context:
                model.eval()(ids)
        model.train()
        assert len(made) == (step + 1) * len(layers) > 0
        optimizer.step()
        optimizer.zero_grad()


CHANGES: dict[str, Callable[[Any], object]] = {
    "in place": lambda m: m.weight.detach().neg_(),
    "without autograd": lambda m: nn.init.normal_(m.weight, std=0.3),
    "copied": lambda m: m.load_state_dict(layer(seed=5).state_dict(), strict=False),
    "assigned": lambda m: m.load_state_dict(layer(seed=5).state_dict(), strict=False, assign=True),
    "replaced": lambda m: setattr(m, "weight", nn.Parameter(-m.weight.detach())),
    "other data": lambda m: setattr(m.weight, "data", -m.weight.data),
    "other dtype": lambda m: m.double(),
    # Kernels of other packages write past the version.
    "by an optimiser": lambda m: (m.weight.data.neg_(), torch.optim.SGD(m.parameters()).step()),
}


@pytest.mark.sampled(1, each=("change",))
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("learned", [True, False])
def test_no_change_is_missed(change: str, learned: bool) -> None:
    mine, x = layer(learned=learned).eval(), torch.randn(3, 24)
    before = mine(x).double()
    CHANGES[change](mine)
    x = x.to(mine.weight.dtype)
    plainly = layer("simulate", learned=learned).to(x.dtype).eval()
    plainly.load_state_dict(mine.state_dict())
    close(mine(x), plainly(x), 1e-5)
    assert change == "other dtype" or (mine(x) - before).abs().max() > 1e-2


def test_codes_are_in_no_state_and_in_no_copy(made: list[int]) -> None:
    mine, x = layer(), torch.randn(3, 24)
    mine(x).sum().backward()
    names = set(layer("simulate").state_dict())
    assert set(mine.state_dict()) == names
    copies = [copy.deepcopy(mine), pickle.loads(pickle.dumps(mine))]
    file = io.BytesIO()
    torch.save(mine, file)
    file.seek(0)
    copies.append(torch.load(file, weights_only=False))
    for each in copies:
        assert each.kept is not mine.kept
        with torch.no_grad():
            each.weight.neg_()
        close(each(x), -mine(x), 1e-6)
    assert len(made) == 1 + len(copies)


def test_parameters_of_inference_mode_and_a_frozen_weight() -> None:
    with torch.inference_mode():
        made_there, x = layer(), torch.randn(3, 24)
        before = made_there(x).clone()
        made_there.weight.neg_()
        close(made_there(x), -before, 1e-6)
    frozen, x = layer().requires_grad_(False), torch.randn(3, 24, requires_grad=True)
    frozen(x).sum().backward()
    assert x.grad is not None
    assert frozen.weight.grad is None


@pytest.fixture
def alone() -> Iterator[Any]:
    """A mesh of this process."""
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        yield distributed.init_device_mesh("cpu", (1,), mesh_dim_names=("data_parallel",))
    finally:
        distributed.destroy_process_group()


def test_weights_that_fsdp_gathers_again_are_not_stale(alone: Any, made: list[int]) -> None:
    """They are as those without shards, and the codes are made once per step."""
    models = [whole(compute, loops=2) for compute in ("int8", "simulate")]
    shard(models[0], alone)
    layers = [m for m in models[0].modules() if hasattr(m, "kept")]
    optimizers = [torch.optim.AdamW(m.parameters(), lr=0.05) for m in models]
    ids = torch.randint(7, (2, 5))
    for step in range(3):
        for _ in range(2):
            losses = [model(ids).logits.square().mean() for model in models]
            for loss in losses:
                loss.backward()
            close(losses[0], losses[1], 1e-4)
        assert len(made) == (step + 1) * len(layers)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    before = models[0](ids).logits.detach()
    load_state(models[0], {k: torch.zeros_like(v) for k, v in whole_state(models[0]).items()})
    assert not torch.allclose(models[0](ids).logits, before)
