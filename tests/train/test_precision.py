"""precision=fp16 computes fp16, with a gradient scaler, or is refused."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from chimera.errors import UserError
from chimera.train import trainer as trainers
from chimera.train.trainer import precision_arguments
from tests.kit import QUIET


class Module(pl.LightningModule):
    """Records the dtype of a product, forward and backward, and the scale of the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)
        self.seen: list[Any] = []

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        y = self.layer(batch)
        self.seen.append(y.dtype)
        y.register_hook(lambda g: self.seen.append((g.dtype, float(g.float().abs().max()))))
        return y.float().sum()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def test_fp16_on_a_cpu_is_fp16_with_a_scaler() -> None:
    module = Module()
    trainer = pl.Trainer(max_steps=1, **precision_arguments("fp16", "cpu"), **QUIET)
    before = module.layer.weight.detach().clone()
    trainer.fit(module, DataLoader([torch.full((4,), 0.01)] * 2, batch_size=None))
    assert module.seen[0] == torch.float16
    # The scale of 2¹⁶ overflows the gradient of a sum, which is 1: the step is left out.
    assert module.seen[1] == (torch.float16, float("inf"))
    assert torch.equal(module.layer.weight, before)
    assert trainer.precision_plugin.scaler.get_scale() == 2.0**15


@pytest.mark.parametrize("computed", [torch.bfloat16, torch.float32])
def test_another_dtype_is_refused(computed: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainers, "autocast_dtype", lambda device: computed)
    with pytest.raises(UserError, match=rf"precision=fp16 computes {str(computed)[6:]} on cpu"):
        precision_arguments("fp16", "cpu")
