"""FLOPs per token of whole models: every component against torch's counter on real numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from chimera.config.settings import Optim
from chimera.contract_tests import zoo
from chimera.ops.flops import _OURS
from chimera.task.base import Task
from chimera.task.causal_lm import CausalLM
from chimera.task.cost import Flops, count, without_numbers
from chimera.task.mlm import MaskedLM

LENGTH, VOCAB = 32, 64
FAST = ("attention", "mamba", "slstm")
EVERY = [
    pytest.param(g, n, marks=() if n in FAST and g == "mixer" else pytest.mark.slow)
    for g in zoo.ZOO
    for n in zoo.names(g)
    # For Hugging Face models alone, and for models with a classifier.
    if (g, n) not in {("adapter", "liza"), ("adapter", "head_only")}
]


def task(kind: type[Task] = MaskedLM, settings: Any = zoo.TINY, **chosen: str) -> Task:
    model = zoo.model(settings, causal=bool(kind.causal), vocab_size=VOCAB, **chosen)
    return kind(model, Optim(lr=1e-3), 9, VOCAB)  # type: ignore[call-arg, arg-type]


def counted(kind: type[Task] = MaskedLM, settings: Any = zoo.TINY, **chosen: str) -> Flops:
    flops = count(task(kind, settings, **chosen), LENGTH)
    assert flops is not None
    return flops


@pytest.mark.parametrize(("group", "name"), EVERY)
def test_torch_counts_the_same_on_real_numbers(group: str, name: str) -> None:
    made = task(**{group: name})
    if hasattr(made.model.backbone.blocks[0].ffn, "capacity"):  # the router is not even
        for block in made.model.backbone.blocks:
            block.ffn.capacity = {True: None, False: None}
    for part in made.modules():
        if hasattr(part, "solver"):  # which ends early on real numbers
            part.solver = part.solver._replace(steps=2)
    found = count(made, LENGTH)
    assert found is not None
    theirs = {op: lambda *a, out_val=None, f=f, **k: f(*a, **k) for op, f in _OURS.items()}
    for of in theirs.values():
        of._get_raw = True  # type: ignore[attr-defined]
    given = made.example(LENGTH, torch.device("cpu"))
    with FlopCounterMode(display=False, custom_mapping=theirs) as counter:
        out = made.model.train()(**given)
        forward = counter.get_total_flops()
        (out.logits.sum() + sum(out.aux.values())).backward()
    assert found.forward * LENGTH == forward
    # The CPU's attention in one operation has gradients of keys that nobody needs, too.
    exact = group not in ("position", "adapter")
    both = counter.get_total_flops()
    assert found.training * LENGTH == (both if exact else pytest.approx(both, rel=0.05))


def test_a_solver_that_ends_early_says_so() -> None:
    assert counted(mixer="attention").at_most == ()
    (reason,) = counted(mixer="mesa", settings=replace(zoo.TINY, depth=1)).at_most
    assert "mixer=mesa counts all 30 steps" in reason


def test_an_encoder_by_hand() -> None:
    d, t, depth = zoo.TINY.dim, LENGTH, zoo.TINY.depth
    found = counted(settings=replace(zoo.TINY, head_transform=False))
    of = found.by_component
    assert of["attention"] == depth * (2 * 4 * d * d + 4 * t * d)
    assert of["ffn"] == depth * 2 * 2 * 4 * d * d
    masked = round(0.15 * t)
    assert of["head"] == pytest.approx(2 * d * VOCAB * masked / t)
    assert found.forward == pytest.approx(sum(of.values()))
    assert found.training == pytest.approx(3 * found.forward)


def test_a_decoder_pays_for_logits_of_all_tokens() -> None:
    shape = replace(zoo.TINY, head_transform=False)
    assert counted(CausalLM, shape).by_component["head"] == 2 * zoo.TINY.dim * VOCAB


def test_loops_repeat_the_blocks_and_not_the_head() -> None:
    once, thrice = counted(), counted(settings=replace(zoo.TINY, loops=3))
    for part in ("attention", "ffn"):
        assert thrice.by_component[part] == 3 * once.by_component[part]
    assert thrice.by_component["head"] == once.by_component["head"]


def test_recomputation_is_no_work_of_the_model() -> None:
    kept = replace(zoo.TINY, gradient_checkpointing=True)
    assert counted(settings=kept) == counted()


def test_a_mixture_counts_active_experts() -> None:
    made = task(ffn="moe")
    experts = made.model.backbone.blocks[0].ffn
    found = count(made, LENGTH)
    per_expert = sum(w.numel() for w in experts.experts[0].parameters() if w.ndim == 2)
    capacity = -(-round(LENGTH * experts.capacity[True] * 1000) // 1000)
    rows = len(experts.experts) * min(capacity, LENGTH * experts.top_k // len(experts.experts))
    router = experts.router.weight.numel()
    assert found is not None
    hand = zoo.TINY.depth * 2 * (rows / LENGTH * per_expert + router)
    assert found.by_component["ffn"] == pytest.approx(hand)


def test_frozen_weights_have_no_gradient_products() -> None:
    made = task(adapter="lora")
    found = count(made, LENGTH)
    assert found is not None
    assert found.training < 2.6 * found.forward


def test_the_model_is_left_as_it_was() -> None:
    made = task(quant="bitnet158")
    made.model.eval()
    before = {name: value.clone() for name, value in made.model.state_dict().items()}
    count(made, LENGTH)
    assert not made.model.training
    after = made.model.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    assert all(p.grad is None for p in made.model.parameters())
    copied = without_numbers(made.model, torch.device("meta"))
    assert all(p.is_meta for p in copied.parameters())
    head, table = copied.head, copied.backbone.embedding
    assert head.table.__self__ is table  # still tied


def test_a_model_that_needs_numbers_is_not_counted() -> None:
    class Asking(nn.Module):
        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return ids if int(ids.sum()) else ids * 2

    made = task()
    made.model = Asking()
    assert count(made, LENGTH) is None
