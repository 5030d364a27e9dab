"""Contract of mixers, for every mixer that the configuration folders name (SPEC Mixers)."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from chimera.contract import Mixer
from chimera.contract_tests import zoo
from chimera.contract_tests.zoo import LENGTHS, close, pad, padding_is_neutral
from chimera.model.language import LanguageModel

MIXERS = zoo.names("mixer")


def build(mixer: str, *, causal: bool, loops: int = 1) -> LanguageModel:
    settings = replace(zoo.tiny(mixer), loops=loops)
    model = zoo.model(settings, causal=causal, mixer=mixer)
    # With initial values 0 or 1, errors in the use of a parameter would not show.
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.05 * torch.randn_like(p))
    return model.double().eval()


def decoder(mixer: str, *, loops: int = 1) -> LanguageModel:
    """A decoder that generates; a mixer without `init_state` is one that only trains."""
    model = build(mixer, causal=True, loops=loops)
    if any(type(m).init_state is Mixer.init_state for m in model.modules() if isinstance(m, Mixer)):
        pytest.skip(f"mixer={mixer} has no init_state: it trains and does not generate")
    return model


@pytest.mark.parametrize("causal", [True, False], ids=["decoder", "encoder"])
@pytest.mark.parametrize("mixer", MIXERS)
class TestEveryMixer:
    @pytest.mark.sampled(1, each=("mixer",))
    def test_every_parameter_gets_a_gradient(self, mixer: str, causal: bool) -> None:
        model = build(mixer, causal=causal).train()
        out = model(zoo.tokens())
        (out.logits.square().mean() + sum(out.aux.values(), torch.tensor(0.0))).backward()
        without = [n for n, p in model.named_parameters() if p.grad is None or not p.grad.any()]
        assert not without

    @pytest.mark.sampled(1, each=("mixer", "causal"))
    @pytest.mark.parametrize(("left", "loops"), [(True, 1), (False, 3)], ids=["left", "right"])
    def test_padding_gives_the_unpadded_numbers(
        self, mixer: str, causal: bool, left: bool, loops: int
    ) -> None:
        model = build(mixer, causal=causal, loops=loops)
        padding_is_neutral(model, [zoo.tokens(1, n)[0] for n in LENGTHS], left=left)

    @pytest.mark.sampled(1, each=("mixer",))
    def test_checkpointing_changes_no_gradient(self, mixer: str, causal: bool) -> None:
        model = build(mixer, causal=causal, loops=2).train()
        found = []
        for checkpointing in (False, True):
            model.backbone.gradient_checkpointing = checkpointing
            model.zero_grad()
            torch.manual_seed(3)
            model(zoo.tokens()).logits.square().mean().backward()
            found.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
        close(found[0], found[1])

    @pytest.mark.sampled(1, each=("mixer",))
    def test_runs_under_bf16_autocast(self, mixer: str, causal: bool) -> None:
        model = build(mixer, causal=causal).float().train()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(zoo.tokens()).logits.float().square().mean()
        loss.backward()
        assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


@pytest.mark.parametrize("mixer", MIXERS)
class TestEveryDecoder:
    def test_the_future_does_not_matter(self, mixer: str) -> None:
        model = build(mixer, causal=True, loops=2)
        ids = zoo.tokens(1, 16)
        other = ids.clone()
        other[:, 9:] = (other[:, 9:] + 1) % 64
        with torch.no_grad():
            close(model(ids).logits[:, :9], model(other).logits[:, :9])

    @pytest.mark.sampled(1, each=("mixer",))
    @pytest.mark.parametrize(("cut", "loops"), [(0, 1), (1, 3), (7, 1)])
    def test_prefill_and_decode_equal_the_full_pass(self, mixer: str, loops: int, cut: int) -> None:
        model = decoder(mixer, loops=loops)
        ids = zoo.tokens(2, 16)
        with torch.no_grad():
            full = model(ids).logits
            state = model.init_state(2)
            got = []
            chunks = [ids[:, :cut]] * bool(cut) + [ids[:, i : i + 1] for i in range(cut, 13)]
            for chunk in [*chunks, ids[:, 13:]]:
                out = model(chunk, state=state)
                state = out.state
                got.append(out.logits)
        close(torch.cat(got, 1), full)

    @pytest.mark.sampled(1, each=("mixer",))
    @pytest.mark.parametrize("left", [True, False], ids=["left", "right"])
    def test_a_padded_prefill_decodes_as_unpadded(self, mixer: str, left: bool) -> None:
        model = decoder(mixer)
        rows = [zoo.tokens(1, n)[0] for n in LENGTHS]
        ids, mask = pad([r[:-1] for r in rows], left=left)
        last = torch.stack([r[-1] for r in rows])[:, None]
        with torch.no_grad():
            state = model(ids, mask, state=model.init_state(len(rows))).state
            got = model(last, state=state).logits[:, 0]
            for row, one in zip(rows, got, strict=True):
                close(one, model(row[None]).logits[0, -1])

    def test_gradients_are_the_same_through_the_state(self, mixer: str) -> None:
        model = decoder(mixer)
        ids = zoo.tokens(2, 16)
        found = []
        for cuts in ([16], [5, 11]):
            model.zero_grad()
            state = model.init_state(2)
            logits = []
            for chunk in ids.split(cuts, 1):
                out = model(chunk, state=state)
                state = out.state
                logits.append(out.logits)
            torch.cat(logits, 1).square().mean().backward()
            found.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
        close(found[0], found[1])
