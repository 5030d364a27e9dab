"""Codes are made once per change of the weight, whatever changes it, and belong to no state."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import distributed, nn

from chimera.config.compose import compose, plain
from chimera.config.settings import Model
from chimera.model.assemble import build_model, choose
from chimera.model.sharding import load_state, shard, whole_state
from chimera.ops.ternary import Rule
from chimera.quant.bitnet158 import BitNet158
from chimera.quant.hbit import HBit
from tests.kit import close


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
