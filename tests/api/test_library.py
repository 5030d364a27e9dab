"""`import chimera as ch`: what it gives, how soon, and what a mistake says."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import chimera as ch
from chimera.contract_tests.zoo import distinct, names, ragged
from chimera.errors import UserError
from chimera.paths import ROOT

#: Python examples of the page, in its order.
EXAMPLES = re.findall(r"```python\n(.*?)```", (ROOT / "docs/guide/library.md").read_text(), re.S)


def test_the_import_loads_nothing_slow() -> None:
    code = (
        "import sys; before = set(sys.modules); import chimera; dir(chimera);"
        "print(*sorted({n.partition('.')[0] for n in set(sys.modules) - before}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "chimera" in loaded
    assert not loaded - set(sys.stdlib_module_names) - {"chimera"}


def test_public_names() -> None:
    assert list(inspect.signature(ch.layers.norm).parameters) == ["name", "dim", "options"]
    assert {"build", "load", "layers", "fit", "datamodule", "runs", "graft"} <= set(dir(ch))
    assert not hasattr(ch, "nothing")


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", distinct("mixer"))
@pytest.mark.parametrize("causal", [True, False])
def test_every_mixer_is_a_layer(name: str, causal: bool) -> None:
    options = {"cycle": ["retnet", "mamba"]} if name == "pattern" else {}
    layer = ch.layers.mixer(name, dim=32, heads=4, causal=causal, max_len=16, **options).eval()
    x = torch.randn(2, 12, 32)
    y = layer(x)
    assert y.shape == x.shape
    assert torch.isfinite(y).all()
    if causal:  # no token sees a later one
        changed = x.clone()
        changed[:, 8:] += 1
        torch.testing.assert_close(layer(changed)[:, :8], y[:, :8], rtol=1e-4, atol=1e-5)


def test_padding_changes_nothing() -> None:
    torch.manual_seed(0)
    layer = ch.layers.mixer("delta", dim=32, heads=4, causal=True, dropout=0.0).eval()
    mask = ragged([5, 9], left=True)
    x = torch.randn(2, 9, 32)
    alone = layer(x[:1, 4:])
    torch.testing.assert_close(layer(x, mask)[:1, 4:], alone, rtol=1e-4, atol=1e-5)


@pytest.mark.sampled(2, each=("group",))
@pytest.mark.parametrize(
    ("group", "name"),
    [(g, n) for g in ("norm", "ffn", "quant") for n in names(g) if (g, n) != ("ffn", "none")],
)
def test_every_norm_ffn_and_quantiser_is_a_layer(group: str, name: str) -> None:
    x = torch.randn(2, 6, 32)
    if group == "quant":
        layer: Any = ch.layers.quant(name, 32, 16, role="up")
    else:
        layer = getattr(ch.layers, group)(name, dim=32)
    y = layer(x)
    assert y.shape == (2, 6, 16 if group == "quant" else 32)
    assert torch.isfinite(y).all()
    if list(layer.parameters()):
        y.square().sum().backward()
        assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in layer.parameters())


def test_options_reach_the_component() -> None:
    near = ch.layers.mixer("sliding_window", dim=16, heads=2, causal=True, window=2).eval()
    x = torch.randn(1, 6, 16)
    far = x.clone()
    far[:, 0] += 1
    torch.testing.assert_close(near(far)[:, 2:], near(x)[:, 2:])
    assert not torch.equal(near(far)[:, 1], near(x)[:, 1])
    rotated = ch.layers.mixer("attention", dim=16, heads=2, position="rope").part
    assert any(type(m).__name__ == "Rotary" for m in rotated.modules()), rotated


def test_a_model_is_built_from_words() -> None:
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    words = ("mixer=retnet", "quant=bitnet158", "model.dim=32", "model.depth=1")
    model, again = ch.build(*words), ch.build(*words)
    assert torch.equal(before, torch.random.get_rng_state())
    assert model(torch.tensor([[1, 2, 3]])).logits.shape == (1, 3, 4000)
    for one, other in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, other)
    seeded = ch.build(*words, "seed=1", vocab_size=7)
    assert seeded(torch.tensor([[1, 2, 3]])).logits.shape == (1, 3, 7)
    adapted = ch.build(*words, "adapter=lora")
    assert sum(p.requires_grad for p in adapted.parameters()) < len(list(model.parameters()))


#: A call, and what its one line says.
BAD: list[tuple[Callable[[], Any], list[str]]] = [
    (lambda: ch.layers.mixer("retnett", dim=8), ["mixer=retnett", "did you mean 'retnet'"]),
    (lambda: ch.layers.mixer("retnet", dim=6), ["heads=4 does not divide dim=6"]),
    (lambda: ch.layers.mixer("retnet", dim="8"), ["dim=8", "an integer"]),  # type: ignore[arg-type]
    (lambda: ch.layers.mixer("retnet", dim=8, windw=1), ["mixer.windw", "value_expand"]),
    (lambda: ch.layers.mixer("retnet", dim=8, position="alibi"), ["position=alibi", "retnet"]),
    (lambda: ch.layers.mixer("retnet", dim=8, position="learned"), ["embeddings", "rope"]),
    (lambda: ch.layers.mixer("retnet", dim=8, decay=object()), ["no value of a setting"]),
    (lambda: ch.layers.mixer("slstm", dim=8, quant="bitnet158"), ["quantise no weight"]),
    (lambda: ch.layers.mixer("retnet", dim=8)(torch.ones(2, 8)), ["[2, 8]", "[b, t, 8]"]),
    (
        lambda: ch.layers.mixer("retnet", dim=8)(torch.ones(1, 2, 8), torch.ones(1, 2)),
        ["torch.bool"],
    ),
    (lambda: ch.layers.norm("layer", dim=8), ["norm=layer", "layernorm"]),
    (lambda: ch.layers.ffn("none", dim=8), ["ffn=none is no layer"]),
    (lambda: ch.layers.quant("bitnet", 8, 8), ["quant=bitnet", "bitnet158"]),
    (lambda: ch.layers.quant("bitnet158", 8, 2.5), ["d_out=2.5"]),  # type: ignore[arg-type]
    (lambda: ch.layers.quant("hbit", 8, 8, role="x"), ["role=x", "down"]),  # type: ignore[arg-type]
    (lambda: ch.build("mixer=retnett"), ["did you mean 'retnet'"]),
    (lambda: ch.build("-m", "seed=0,1"), ["-m is a flag"]),
    (lambda: ch.build(3), ["3 is no text"]),  # type: ignore[arg-type]
    (lambda: ch.build(vocab_size=0), ["vocab_size=0"]),
    (lambda: ch.build("--config-dir=/nowhere/at/all"), ["/nowhere/at/all is no folder"]),
    (lambda: ch.load("/nowhere/at/all"), ["/nowhere/at/all", "chimera train"]),
    (lambda: ch.runs("/nowhere/at/all"), ["/nowhere/at/all is no folder"]),
    (lambda: ch.datamodule("txt"), ["data=txt", "text"]),
    (lambda: ch.fit("optim.lr=-1"), ["optim.lr=-1"]),
    (lambda: ch.fit("seed=0,1"), ["several values"]),
]


@pytest.mark.parametrize(("call", "says"), BAD, ids=lambda v: v[0] if isinstance(v, list) else "")
def test_a_mistake_is_a_value_error_of_one_line(
    call: Callable[[], Any], says: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError) as caught:
        call()
    assert isinstance(caught.value, UserError)
    assert "\n" not in str(caught.value)
    assert not [word for word in says if word not in str(caught.value)], str(caught.value)
    assert not (tmp_path / "runs").exists()


def test_the_layers_of_the_page() -> None:
    place: dict[str, Any] = {"__name__": "page"}
    exec(EXAMPLES[1], place)
    assert torch.isfinite(place["loss"])
    grads = [p.grad for p in place["block"].parameters() if p.requires_grad]
    assert any(g is not None and g.abs().sum() > 0 for g in grads)


def test_the_first_example_of_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = [line for line in EXAMPLES[0].splitlines() if line.strip()]
    assert len(lines) <= 10
    place: dict[str, Any] = {}
    exec(EXAMPLES[0], place)
    run, model, logits = place["run"], place["model"], place["logits"]
    assert run.path.parent == tmp_path / "runs"  # below the current folder
    assert not model.training
    assert logits.shape == (1, len(place["ids"]), place["tokenizer"].vocab_size)
    printed = capsys.readouterr().out
    assert "retnet" in printed
    assert str(run.metrics["test/perplexity"]) in printed
    steps = run.steps
    assert len(steps) == 12
    assert {"step", "loss"} <= set(steps.columns)
    text = run.generate("The", max_new=3, greedy=True)
    assert text.startswith("The")
    with pytest.raises(UserError, match="max_new=-1"):
        run.generate("The", max_new=-1)
    with pytest.raises(UserError, match="maxnew"):
        run.generate("The", maxnew=1)
    frame = ch.runs(tmp_path / "runs", keys=["optim.lr"])
    assert list(frame["state"]) == ["DONE"]
    assert frame["optim.lr"][0] == pytest.approx(2e-3)
    assert frame["test/perplexity"][0] == run.metrics["test/perplexity"]
    exec(EXAMPLES[2], place)  # data and a model of its own
    assert place["batch"] is not None


def test_the_table_of_runs(tmp_path: Path) -> None:
    assert list(ch.runs(tmp_path).columns) == ["name", "state", "path"]
    for name, status in (("a", '{"state": "RUNNING"}'), ("b", '{"sta'), ("c", None)):
        (tmp_path / name).mkdir()
        if status is not None:
            (tmp_path / name / "status.json").write_text(status)
    (tmp_path / "a" / "run.json").write_text('{"metrics": {"val/loss": 1.5}, "seed": 3}')
    frame = ch.runs(tmp_path)
    assert list(frame["name"]) == ["a", "b"]
    assert list(frame["state"]) == ["STOPPED", "unreadable"]  # its process is gone; half a file
    assert frame["val/loss"][0] == 1.5
