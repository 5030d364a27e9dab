"""Pictures of a model: what is captured, that no number changes, and what the figures show."""

from __future__ import annotations

import math
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from chimera.callback.log import pictures
from chimera.callback.log.pictures import (
    Captured,
    by_distance,
    influence,
    mixers_of,
    ternary_weights,
)
from chimera.config.compose import compose, plain
from chimera.config.groups import groups
from chimera.errors import UserError
from chimera.rundir.directory import RunDir
from chimera.train.build import build_task
from chimera.train.run import run
from tests.train.tiny import LINE, write


def model(*words: str) -> Any:
    torch.manual_seed(0)
    return build_task(plain(compose(["scale=smoke", *words])), 100).model.eval()


def watched(net: Any, length: int = 12) -> Captured:
    found = Captured(net, tokens=8)
    with torch.no_grad():
        net(torch.arange(2 * length).view(2, length))
    found.release()
    return found


def test_one_batch_is_captured_and_the_hooks_go() -> None:
    net = model("mixer=retnet", "norm=layernorm")
    found = watched(net)
    norms = [name for name in found.norms if "norm" in name]
    assert len(norms) == len(found.norms) >= 3
    assert all(abs(float(values.mean())) < 0.1 for values in found.norms.values())
    assert [x.shape for _, x in found.mixers.values()] == [(8, 64)] * len(mixers_of(net))
    assert all(len(values) == 8 for values in found.gates.values())
    assert found.gates
    hooks = [m for m in net.modules() if m._forward_hooks or m._forward_pre_hooks]
    assert hooks == []


@pytest.mark.parametrize("causal", [True, False])
def test_the_map_of_a_causal_mixer_is_a_triangle(causal: bool) -> None:
    words = ["task=causal_lm", "mixer=attention"] if causal else ["mixer=attention"]
    net = model(*words, "position=alibi")
    (mixer, x), *_ = watched(net).mixers.values()
    shares = influence(mixer, x)
    assert shares.shape == (8, 8)
    assert torch.allclose(shares.sum(-1), torch.ones(8), atol=1e-5)
    assert bool((shares.triu(1) > 0).any()) != causal
    assert all(parameter.grad is None for parameter in net.parameters())
    distances = by_distance(shares)
    assert float(distances[0]) == pytest.approx(float(shares.diagonal().mean()))


@pytest.mark.slow
@pytest.mark.parametrize("mixer", sorted(groups()["mixer"]))
def test_every_mixer_has_a_map(mixer: str) -> None:
    """A picture that fails would end a run that has trained."""
    net = None
    for words in (["task=causal_lm", "quant=bitnet158"], ["quant=bitnet158"], ["task=causal_lm"]):
        with suppress(UserError):  # an encoder's mixer, or one without a weight to quantise
            net = net or model(*words, f"mixer={mixer}")
    assert net is not None
    with torch.inference_mode():  # as Lightning validates
        found = watched(net)
    for one, x in found.mixers.values():
        shares = influence(one, x)
        assert torch.isfinite(shares).all()
        assert torch.allclose(shares.sum(-1), torch.ones(len(x)), atol=1e-4)


@pytest.mark.parametrize("compute", ["int8", "bf16"])
def test_codes_made_in_validation_have_no_say(compute: str) -> None:
    net = model("quant=bitnet158", f"quant.compute={compute}")
    with torch.inference_mode():
        found = watched(net)
    (mixer, x), *_ = found.mixers.values()
    assert torch.isfinite(influence(mixer, x)).all()
    assert ternary_weights(net)


class Decaying(torch.nn.Module):
    """y_t = Σ_s 0.5^{t−s} x_s, of which the influence is known."""

    def forward(self, x: Tensor, ctx: Any) -> Any:
        from chimera.contract import Out

        at = torch.arange(x.shape[1])
        weights = (0.5 ** (at[:, None] - at[None]).clamp(min=0).float()).tril()
        return Out(weights @ x)


def test_the_influence_of_a_known_decay_is_that_decay() -> None:
    shares = influence(Decaying(), torch.randn(6, 5))  # type: ignore[arg-type]
    last = shares[-1] / shares[-1, -1]
    assert last.tolist() == pytest.approx([0.5**n for n in range(5, -1, -1)], rel=1e-4)


def test_thresholds_part_the_codes() -> None:
    layers = ternary_weights(model("quant=bitnet158"))
    assert layers
    for values, codes in layers.values():
        found = pictures._threshold(values, codes, 1, 1.0)
        assert found == pytest.approx(0.5, abs=0.02)  # of absmean: half the mean size
        assert pictures._threshold(values, codes, -1, -1.0) == pytest.approx(-0.5, abs=0.02)
    assert ternary_weights(model("quant=none")) == {}


def test_panels_are_named_in_words_and_few() -> None:
    names = {f"body.blocks.{n}.mixer.q_proj": n for n in range(40)}
    shown = pictures.evenly(names)
    assert len(shown) == pictures.PANELS
    assert [*shown.values()][:: pictures.PANELS - 1] == [0, 39]
    assert pictures.words("body.blocks.3.mixer.q_proj") == "block 3, mixer q"
    assert pictures.words("body.norm") == "final norm"


@pytest.mark.slow
def test_a_run_is_the_same_with_and_without_pictures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a tiny run that is long enough, at every validation, with ternary weights and gates."""
    parts = ["mixer=retnet", "quant=bitnet158", "norm=qdyt"]
    losses = []
    write(tmp_path)
    monkeypatch.chdir(tmp_path)
    for name, shortest in (("with", 0), ("without", 10_000)):
        folder = tmp_path / name
        words = [*LINE, *parts, "trainer.max_steps=8", f"run_dir={folder}"]
        words += [f"callbacks.pictures.shortest={shortest}", "callbacks.pictures.every=1"]
        record = run(plain(compose(words)), words)
        losses.append((record["metrics"]["val/loss"], record["validations"]))
        drawn = [file for file in ("activations", "weights", "maps", "gates")
                 if (RunDir(folder).path / f"{file}.png").exists()]  # fmt: skip
        assert len(drawn) == (4 if name == "with" else 0)
    assert losses[0] == losses[1]
    assert math.isfinite(losses[0][0])
    assert not (tmp_path / "with/model.png").exists()  # no logger shows it
    settings = (tmp_path / "with/settings.md").read_text()
    assert "| quant | none | bitnet158 |" in settings
