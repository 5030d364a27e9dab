"""What the report of a step that is not finite lists."""

from __future__ import annotations

import math
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from chimera.callback.state.guard import collect_report
from chimera.ffn.mlp import MLP
from chimera.ffn.moe import MoE
from tests.kit import ctx, parts, site


def test_experts_without_tokens_are_not_listed() -> None:
    torch.manual_seed(0)
    moe = MoE(site(), parts(), expert=partial(MLP, expand=2), experts=4, top_k=2).train()
    task: Any = nn.ModuleDict({"ffn": moe})
    task.gradient_scale = lambda _: None
    out = moe(torch.randn(1, 1, 32), ctx(tokens=1))
    (out.y.sum() * math.nan).backward()
    expert = {name: name.split(".")[2] for name, _ in task.named_parameters() if "experts" in name}
    whole_nan = {
        expert[name]
        for name, p in task.named_parameters()
        if name in expert and p.grad is not None and p.grad.isnan().sum() > 1
    }
    assert len(whole_nan) == 2  # one token chose two of the four
    loop = SimpleNamespace(epoch_loop=SimpleNamespace(total_batch_idx=0))
    trainer = SimpleNamespace(
        fit_loop=loop, precision_plugin=None, global_step=0, current_epoch=0, global_rank=0
    )
    trainer.optimizers = [torch.optim.SGD([{"params": task.parameters(), "name": "ffn"}], lr=0.1)]
    trainer.world_size = trainer.num_training_batches = 1
    facts = collect_report(trainer, task, [], [math.nan], math.nan, {})
    listed = facts["gradients_not_finite"]
    assert {expert[name] for name in listed if name in expert} == whole_nan
    assert "ffn.router.weight" in listed
