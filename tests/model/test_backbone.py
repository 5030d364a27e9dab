"""Blocks, loops, head and initial weights, independent of the components in them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from chimera.contract import Context, Out, Site
from chimera.contract_tests import zoo
from chimera.errors import UserError
from chimera.mixer.shared import softmax
from chimera.model.backbone import _mean
from chimera.ops import mesa
from chimera.ops.local import Aligned
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

        def spy(x, ctx: Context, state=None, layer=layer, whole=whole) -> Out:  # type: ignore[no-untyped-def]
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


@pytest.mark.parametrize("part", [{"position": "learned"}, {"mixer": "aft"}], ids=str)
def test_positions_are_checked_once_per_batch_outside_the_parts(part: dict[str, str]) -> None:
    model, ids = zoo.model(causal=True, **part), zoo.tokens(1, 34)
    limit = zoo.TINY.max_len
    with pytest.raises(UserError, match=str(limit)):
        model(ids[:, : limit + 1])
    with torch.no_grad():
        state = model(ids[:, :limit], state=model.init_state(1)).state
        with pytest.raises(UserError, match=str(limit)):
            model(ids[:, :1], state=state)
        # Padding has no position: a wide batch of short texts is accepted.
        mask = torch.arange(34)[None] >= 30
        padded = model(ids, mask, state=model.init_state(1))
        again = model(ids[:, :1], state=padded.state)
        text = torch.cat([ids[:, 30:], ids[:, :1]], 1)
        close(again.logits[:, -1], model(text).logits[:, -1], 1e-5)


class NoSynchronisation(TorchFunctionMode):
    """Raise where a number is fetched from the device."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        fetches = (Tensor.item, Tensor.tolist, Tensor.__bool__, Tensor.__int__, Tensor.__float__)
        assert func not in fetches, f"{func} synchronises with the device"
        return func(*args, **(kwargs or {}))


#: Mixtures of experts fetch the sizes of their groups, one transfer; lsq_learned tests its steps
#: once.
PARTS = [
    (group, name)
    for group in ("mixer", "norm", "quant", "position", "ffn")
    for name in zoo.names(group)
    if not name.startswith("moe")
]


@pytest.mark.sampled(3, each=("group",))
@pytest.mark.parametrize(("group", "name"), PARTS)
def test_training_and_decoding_do_not_wait_for_the_device(
    group: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mesa, "_ends_early", lambda _: False)  # as on a GPU
    model, ids = zoo.model(causal=True, **{group: name}), zoo.tokens(2, 12)
    mask = torch.arange(12)[None] >= torch.tensor([[0], [5]])
    with NoSynchronisation():
        model.train()(ids, mask)
        with torch.no_grad():
            state = model.eval()(ids, mask, state=model.init_state(2)).state
            model(ids[:, :1], state=state)


def test_layers_share_the_mask_of_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    for module, name in ((softmax, "allowed"), (Aligned, "_of")):
        own = getattr(module, name)
        monkeypatch.setattr(
            module, name, lambda *a, own=own, **k: (made.append(own), own(*a, **k))[1]
        )
    mask = torch.arange(16)[None] >= torch.tensor([[0], [5]])
    for mixer in ("attention", "ode", "sliding_window"):
        made.clear()
        zoo.model(replace(zoo.TINY, loops=2), mixer=mixer)(zoo.tokens(), mask)
        assert len(made) == 1, mixer
