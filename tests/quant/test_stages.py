"""BitNet a4.8 and v2 against their equations, and the change from 8 to 4 bits."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from chimera.callback.part.stages import ActivationStages
from chimera.contract import Role
from chimera.quant.bitnet_a48 import BitNetA48
from chimera.quant.bitnet_v2 import BitNetV2
from chimera.quant.shared.stages import LATE, Stages
from tests.kit import close, grads, randn
from tests.reference.quantisation import bitlinear158, hadamard


def expected(x: Tensor, w: Tensor, activations: str) -> Tensor:
    """A layer by the equations of both papers, with gradients by x + (q − x).detach()."""
    if activations == "8":
        return bitlinear158(x, w)
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
    (BitNetV2(), "qkv", "4", False),
    (BitNetV2(), "down", "4", True),
    (BitNetV2(), "out", "4", True),
    (BitNetV2(activation_bits=8), "down", "8", True),
    (BitNetA48(), "up", "4", False),
    (BitNetA48(), "out", "sparse", False),
    (BitNetA48(), "down", "8", False),
]


@pytest.mark.sampled(7)
@pytest.mark.parametrize("late", [True, False])
@pytest.mark.parametrize(("quantiser", "role", "activations", "rotates"), CASES)
def test_layers_are_their_papers(
    quantiser: Any, role: Role, activations: str, rotates: bool, late: bool
) -> None:
    layer = quantiser.linear(48, 40, bias=False, role=role).double()
    for module in layer.modules():
        if isinstance(module, Stages):
            module.set_stage(late)
    x, g = randn(2, 7, 48).requires_grad_(), randn(2, 7, 40)
    rotation = torch.block_diag(*[hadamard(16)] * 3) if rotates else torch.eye(48).double()
    theirs = expected(x @ rotation, layer.weight, activations if late else "8")
    mine = layer(x)
    close(mine, theirs, 1e-10)
    over = [x, layer.weight]
    close(grads((mine * g).sum(), over), grads((theirs * g).sum(), over), 1e-10)


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
