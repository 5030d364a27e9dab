"""torch.compile by blocks: one graph for equal blocks, the numbers of the model without it."""

from __future__ import annotations

import logging
import warnings
from typing import Any

import pytest
import torch
from torch._dynamo.testing import CompileCounter

from chimera.config.compose import compose, plain
from chimera.config.settings import Model
from chimera.contract_tests import zoo
from chimera.model.assemble import build_model, choose
from chimera.model.compiled import compile_as, compile_model

#: Graphs of three layers where it is not one: numbers that depend on the layer, kinds of layers.
GRAPHS = {"differential": 3, "hgrn2": 3}
GRAPHS |= dict.fromkeys(("best_combo", "interleaved", "modernbert", "pattern", "titan6"), 2)
#: Its blocks run in pieces: the scan breaks the graph.
BREAKING = {"slstm"}
#: Torch's to the one Python whose guards are slow; its user may want to know.
ADVICE = "Python 3.13.0"
IDS = torch.randint(100, (2, 16), generator=torch.Generator().manual_seed(0))
DRAWS = torch.tensor([11, 12])


def built(overrides: list[str], **shape: Any) -> Any:
    torch.manual_seed(0)
    factories = choose(plain(compose(overrides)))
    sizes = {"dim": 16, "depth": 3, "heads": 2, "max_len": 16, **shape}
    return build_model(Model(**sizes), factories, vocab_size=100, causal=True).train()


def compiled(model: torch.nn.Module) -> list[torch.nn.Module]:
    """Its parts that are compiled."""
    return [part for part in model.modules() if part._compiled_call_impl is not None]


def graphs(overrides: list[str], **shape: Any) -> int:
    """Graphs of a training step; fails if it warns or computes anything else."""
    torch._dynamo.reset()
    counter, both = CompileCounter(), []
    for compiled in (False, True):
        model = built(overrides, **shape)
        if compiled:
            compile_model(model, backend=counter)
        with warnings.catch_warnings(record=True) as heard:
            logits = model(IDS, draws=DRAWS).logits
        said = [str(each.message) for each in heard if ADVICE not in str(each.message)]
        assert not said
        logits.square().sum().backward()
        both.append((logits.detach(), [p.grad for p in model.parameters()]))
    torch.testing.assert_close(*both, rtol=1e-5, atol=1e-5)
    return counter.frame_count


def test_equal_blocks_share_a_graph() -> None:
    line = ["mixer=retnet", "norm=qdyt", "quant=bitnet158", "ffn=mlp", "position=none"]
    assert graphs(line, dropout=0.1, loops=2) == 1


@pytest.mark.slow
@pytest.mark.parametrize("mixer", zoo.names("mixer"))
def test_every_mixer(mixer: str) -> None:
    found = graphs([f"mixer={mixer}", "norm=layernorm", "quant=none", "position=none"])
    assert found > 1 if mixer in BREAKING else found == GRAPHS.get(mixer, 1)


@pytest.mark.slow
def test_more_layers_than_torch_allows_graphs(caplog: pytest.LogCaptureFixture) -> None:
    assert graphs(["mixer=differential", "quant=none", "position=none"], depth=10) == 10
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]  # of torch's limit


def test_names_of_weights_stay() -> None:
    model = built(["mixer=retnet"])
    names = list(model.state_dict())
    compile_model(model, backend="eager")
    assert list(model.state_dict()) == names
    whole = torch.nn.Linear(2, 2)
    compile_model(whole, backend="eager")
    assert whole._compiled_call_impl is not None  # type: ignore[attr-defined]


def test_auto_is_one_graph_on_a_gpu_and_none_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    line = ["mixer=retnet", "norm=qdyt", "quant=bitnet158", "ffn=mlp", "position=none"]
    model, plain_model = built(line, dropout=0.1), built(line, dropout=0.1)
    compile_as("auto", model, torch.device("cpu"))
    compile_as(False, model, torch.device("cpu"))
    assert not compiled(model)
    monkeypatch.setattr("chimera.model.compiled.AUTOMATIC", ("cpu",))
    counter = CompileCounter()
    compile_as("auto", model, torch.device("cpu"), backend=counter, options=None)
    assert compiled(model) == [model.backbone]
    found, wanted = (m(IDS, draws=DRAWS).logits for m in (model, plain_model))
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    assert counter.frame_count == 1


def test_auto_compiles_blocks_that_are_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chimera.model.compiled.AUTOMATIC", ("cpu",))
    model = built(["mixer=retnet"], gradient_checkpointing=True)
    compile_as("auto", model, torch.device("cpu"), backend="eager")
    assert compiled(model) == [*model.backbone.blocks]
