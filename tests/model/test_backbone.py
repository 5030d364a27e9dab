"""Blocks, loops, head and initial weights, independent of the components in them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from chimera.contract import Ctx, Out, Site
from chimera.contract_tests import zoo
from chimera.model.backbone import _mean
from tests.kit import close


def test_logits_at_masked_positions_are_those_of_the_full_pass() -> None:
    model = zoo.model().double().eval()
    ids = zoo.tokens(3, 11)
    index = torch.tensor([0, 5, 12, 32])
    close(model(ids, index=index).logits, model(ids).logits.flatten(0, 1)[index], 1e-12)


def test_loops_traverse_the_same_layers_with_the_logical_index(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = replace(zoo.TINY, depth=2, loops=3)
    model = zoo.model(settings)
    seen = []
    for layer, block in enumerate(model.backbone.blocks):
        whole = block.mixer.forward

        def spy(x, ctx: Ctx, state=None, layer=layer, whole=whole) -> Out:  # type: ignore[no-untyped-def]
            seen.append(Site(8, 2, depth=2, layer=layer).logical(ctx.loop))
            return whole(x, ctx, state)

        monkeypatch.setattr(block.mixer, "forward", spy)
    model(zoo.tokens())
    assert seen == [0, 1, 2, 3, 4, 5]
    once = zoo.model(replace(settings, loops=1))
    assert sum(p.numel() for p in model.parameters()) == sum(p.numel() for p in once.parameters())


def test_decoder_states_have_a_slot_per_logical_layer() -> None:
    model = zoo.model(replace(zoo.TINY, depth=2, loops=3), causal=True)
    state = model.init_state(2)
    assert len(state.slots) == 6
    out = model(zoo.tokens(2, 5), state=state)
    assert out.state is not None
    assert out.state.seen.tolist() == [5, 5]


def test_a_tied_head_reads_the_table_of_the_forward_pass() -> None:
    model = zoo.model(replace(zoo.TINY, tie_head=True))
    untied = zoo.model(replace(zoo.TINY, tie_head=False))
    extra = sum(p.numel() for p in untied.parameters()) - sum(p.numel() for p in model.parameters())
    assert extra == 64 * 32
    model(zoo.tokens()).logits.sum().backward()
    assert model.backbone.embedding.weight.grad is not None


def test_no_ffn_leaves_the_branch_and_its_norm_out() -> None:
    block = zoo.model(ffn="none").backbone.blocks[0]
    assert block.ffn is None
    assert block.ffn_norm is None


@pytest.mark.parametrize("kind", ["normal", "scaled", "fixup"])
def test_residual_initialisation(kind: str) -> None:
    torch.manual_seed(0)
    settings = replace(zoo.TINY, dim=256, residual_init=kind, init_std=0.02, depth=2, loops=2)
    block = zoo.model(settings).backbone.blocks[0]
    inner, out = block.ffn.up.weight.std().item(), block.ffn.down.weight.std().item()
    branches = 2 * 2 * 2
    wanted = {
        "normal": (0.02, 0.02),
        "scaled": (0.02, 0.02 * branches**-0.5),
        "fixup": (0.02 * branches**-0.5, 0.0),
    }[kind]
    assert (inner, out) == pytest.approx(wanted, rel=0.02)


def test_dropout_is_off_in_evaluation_and_on_in_training() -> None:
    model = zoo.model(replace(zoo.TINY, dropout=0.3))
    ids = zoo.tokens()
    close(model.eval()(ids).logits, model(ids).logits)
    model.train()
    assert not torch.equal(model(ids).logits, model(ids).logits)


def test_aux_is_a_mean_over_the_layers_that_report_it() -> None:
    one, two = torch.tensor(1.0), torch.tensor(3.0)
    assert _mean([{"a": one}, {}, {"a": two, "b": one}]) == {"a": torch.tensor(2.0), "b": one}
