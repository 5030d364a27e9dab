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
from chimera.errors import UserError
from chimera.model.assemble import build_model, choose
from chimera.model.compiled import compile_as, compile_model
from chimera.train.build import build_task
from chimera.train.check import _check_graphs

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


def a_task(*overrides: str) -> Any:
    torch.manual_seed(0)
    sizes = ["model.dim=16", "model.depth=3", "model.heads=2", "model.max_len=16"]
    return build_task(plain(compose(["mixer=retnet", *sizes, *overrides])), 100).train()


def graphs(overrides: list[str], **shape: Any) -> int:
    """Graphs of a training step; fails if it warns or computes anything else.

    In float64, as a compiled graph has joint products, which add in another order.
    """
    torch._dynamo.reset()
    counter, both = CompileCounter(), []
    for compiled in (False, True):
        model = built(overrides, **shape).double()
        if compiled:
            compile_model(model, backend=counter)
        with warnings.catch_warnings(record=True) as heard:
            logits = model(IDS, draws=DRAWS).logits
        said = [str(each.message) for each in heard if ADVICE not in str(each.message)]
        assert not said
        logits.square().sum().backward()
        both.append((logits.detach(), [p.grad for p in model.parameters()]))
    torch.testing.assert_close(*both, rtol=1e-9, atol=1e-9)
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
    """One graph from the ids to the loss, in a step of both tasks of language."""
    monkeypatch.setattr("chimera.model.compiled.AUTOMATIC", ("cpu",))
    for name in ("mlm", "causal_lm"):
        torch._dynamo.reset()
        line = (f"task={name}", "norm=qdyt", "quant=bitnet158", "ffn=mlp", "model.dropout=0.1",
                "model.depth=2")  # fmt: skip
        task, eager = a_task(*line), a_task(*line)
        compile_as("auto", eager, torch.device("meta"))
        compile_as(False, eager, torch.device("cpu"))
        assert not eager.compiled
        counter = CompileCounter()
        compile_as("auto", task, torch.device("cpu"), backend=counter, options=None)
        assert task.compiled
        batch = task.training_batch(2, 16, torch.device("cpu")) | {"draws": DRAWS}
        found, wanted = (one.training_step(batch, 0)["loss"] for one in (task, eager))
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
        assert (counter.frame_count, task.state_dict().keys()) == (1, eager.state_dict().keys())


def test_graphs_are_those_of_auto_with_cuda_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """That is for the first sizes; others may be many, and each would be recorded."""
    asked: list[tuple[dict[str, Any], Any]] = []
    monkeypatch.setattr(
        "torch.compile", lambda _, options, dynamic=None: asked.append((options, dynamic))
    )
    for setting in ("auto", "graphs"):
        task = a_task()
        compile_as(setting, task, torch.device("cuda"))
        assert task.compiled
        assert task.graphs == (setting == "graphs")
    auto, of_any_size, graphs, other = asked
    own = {"triton.cudagraphs": True}
    assert (auto[1], graphs) == (False, (auto[0] | own, False))
    assert of_any_size == other == (auto[0], None)
    assert own.keys() <= set(torch._inductor.list_options())


@pytest.mark.parametrize(
    ("group", "key", "value", "named"),
    [
        ("trainer", "accumulate_grad_batches", 2, "accumulate_grad_batches"),
        ("trainer", "devices", 2, "several processes"),
        ("model", "gradient_checkpointing", True, "gradient_checkpointing"),
        ("task", "teacher", "a run", "teacher"),
    ],
)
def test_graphs_are_refused_where_they_would_hold_more_than_a_step(
    group: str, key: str, value: object, named: str
) -> None:
    config = plain(compose(["task=mlm", "trainer.compile=graphs"]))
    _check_graphs(config, gpu=True)
    config[group][key] = value
    with pytest.raises(UserError, match=named):
        _check_graphs(config, gpu=True)


def test_other_sizes_take_no_graph_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of fixed sizes for the first, one for the second, and one for all others."""
    monkeypatch.setattr("chimera.model.compiled.AUTOMATIC", ("cpu",))
    torch._dynamo.reset()
    task, counter = a_task("task=mlm", "quant=none", "model.depth=1"), CompileCounter()
    compile_as("auto", task, torch.device("cpu"), backend=counter, options=None)
    for masked in (4, 3, 2, 4, 6):
        batch = task.training_batch(2, 16, torch.device("cpu"))
        task.training_step({k: v[:masked] if k in ("index", "targets") else v
                            for k, v in batch.items()}, 0)  # fmt: skip
    assert counter.frame_count == 3


def test_auto_compiles_blocks_that_are_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chimera.model.compiled.AUTOMATIC", ("cpu",))
    task = a_task("model.gradient_checkpointing=true")
    compile_as("auto", task, torch.device("cpu"), backend="eager")
    parts = [part for part in task.model.modules() if part._compiled_call_impl is not None]
    assert parts == [*task.model.backbone.blocks]
    assert task.compiled
