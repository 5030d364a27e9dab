"""Blocks, loops, places of norms, head and initial weights, whatever components are in them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from chimera.config.settings import Model
from chimera.contract import Context, Out, Site
from chimera.contract_tests import zoo
from chimera.contract_tests.zoo import padding_is_neutral
from chimera.errors import UserError
from chimera.mixer.shared import softmax
from chimera.model.backbone import _mean
from chimera.model.compressor import Compressor, sinusoid
from chimera.model.language import LanguageModel
from chimera.ops import mesa
from chimera.ops.local import Aligned
from tests.kit import close, ctx


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


PLACEMENTS = ("pre", "post", "output", "sandwich", "peri")


def build(causal: bool = False, mixer: str = "attention", **settings: object) -> LanguageModel:
    made = zoo.build(replace(zoo.TINY, **settings), {"mixer": mixer}, causal=causal)
    with torch.no_grad():
        for p in made.parameters():
            p.add_(0.1 * torch.randn_like(p))
    return made.double().eval()


def by_equation(model: LanguageModel, ids: Tensor, placement: str) -> Tensor:
    """Hidden states by the equations at the head of `model.block`."""
    body, where = model.backbone, ctx(tokens=ids.shape[1])
    x = body.scale(body.embedding(ids)) if body.scale else body.embedding(ids)
    x = body.embedding_norm(x) if placement == "peri" else x
    for block in body.blocks:
        branches = (
            (lambda z, b=block: b.mixer(z, where).y, block.mixer_norm, block.mixer_out_norm),
            (lambda z, b=block: b.ffn(z, where).y, block.ffn_norm, block.ffn_out_norm),
        )
        for f, norm, out in branches:
            match placement:
                case "pre":
                    x = x + f(norm(x))
                case "post":
                    x = norm(x + f(x))
                case "output":
                    x = x + norm(f(x))
                case _:
                    x = x + out(f(norm(x)))
    return body.norm(x)


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_blocks_are_their_equations(placement: str) -> None:
    model = build(norm_placement=placement)
    ids = zoo.tokens()
    close(model.backbone(ids).y, by_equation(model, ids, placement), 1e-10)
    norms = {"sandwich": 4, "peri": 4}.get(placement, 2) * zoo.TINY.depth + 1
    count = sum("norm" in name and name.endswith("weight") for name in model.backbone.state_dict())
    assert count == norms + (placement == "peri")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("placement", PLACEMENTS[1:])
def test_padding_changes_nothing_wherever_norms_are(placement: str, left: bool) -> None:
    model = build(norm_placement=placement, qk_norm=True)
    padding_is_neutral(model, [zoo.tokens(1, n)[0] for n in (5, 9)], left=left)


def test_queries_and_keys_have_length_one_before_they_are_rotated() -> None:
    """Scaling W_q or W_k changes nothing, the weights of the norm do."""
    model = build(causal=True, qk_norm=True)
    ids = zoo.tokens()
    before = model(ids).logits
    attention = model.backbone.blocks[0].mixer
    attention.q_proj.weight.data.mul_(7)
    close(model(ids).logits, before, 1e-5)
    q, k = torch.randn(2, 1, 4, 5, 8).double()
    norm = attention.position
    got = norm.rotate(q, k, torch.arange(5)[None])
    for x, y, weight in zip((q, k), got, (norm.q_weight, norm.k_weight), strict=True):
        close(y, weight * x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt(), 1e-10)
    norm.k_weight.data.mul_(2)
    assert not torch.allclose(model(ids).logits, before, atol=1e-3)


def test_a_mixer_without_queries_and_keys_is_refused_in_one_line() -> None:
    with pytest.raises(
        UserError, match=r"model\.qk_norm=true needs queries and keys to rotate; mixer=mamba"
    ):
        build(causal=True, mixer="mamba", qk_norm=True)


def test_all_logits_come_from_the_last_output() -> None:
    torch.manual_seed(0)
    shape = Model(dim=32, depth=1, heads=4, max_len=16)
    language = zoo.model(shape, causal=True, vocab_size=9, position="rope")
    model = Compressor(language).eval()
    ids = torch.randint(1, 9, (2, 7))
    outputs = []
    language.backbone.register_forward_hook(lambda *a: outputs.append(a[-1].y))
    logits = model(ids).logits.view(2, 7, 9)
    last = outputs[0][:, -1:]
    x = last + sinusoid(7, 32, last.device)
    wanted = language.head(model.decoder(x))
    close(logits, wanted, 1e-5)
    # Positions differ by their sinusoids only, and each has another one.
    assert (logits[:, :1] - logits[:, 1:]).abs().amax(-1).min() > 0
    index = torch.tensor([3, 8])
    close(model(ids, index=index).logits, logits.flatten(0, 1)[index], 1e-5)
