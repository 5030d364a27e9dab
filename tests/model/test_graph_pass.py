"""The pass over graphs of gradients: float32 from products, rows added to a head's table.

A CPU has no product of half precision that writes float32; here one is lent to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._inductor import lowering
from torch.fx import Graph

from chimera.model import graph_pass

aten = torch.ops.aten


def wide_product(a: Tensor, b: Tensor, out_dtype: torch.dtype) -> Tensor:
    return a.to(out_dtype) @ b.to(out_dtype)


@pytest.fixture
def lent(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    library = torch.library.Library("aten", "IMPL", "CPU")
    library.impl("mm.dtype", wide_product)
    monkeypatch.setattr(graph_pass, "DEVICES", ("cpu",))
    fallback = lowering.fallback_handler(aten.mm.dtype, False)
    monkeypatch.setitem(lowering.lowerings, aten.mm.dtype, fallback)
    yield
    library._destroy()


class Seen(graph_pass.Gradients):
    """Keeps what the last graph has."""

    def __call__(self, graph: Graph) -> None:
        super().__call__(graph)
        self.targets = [node.target for node in graph.nodes]

    def uuid(self) -> Any:
        return None


class Model(nn.Module):
    """Embedding, a normalised residual stream with joined projections, and a head, tied or not."""

    def __init__(self, tied: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Parameter(torch.randn(50, 16))
        self.own = nn.Parameter(torch.randn(50, 16))
        self.tied = tied
        self.norms = nn.ModuleList([nn.LayerNorm(16) for _ in range(3)])
        self.layers = nn.ModuleList([nn.Linear(16, width) for width in (16, 8, 8)])

    def forward(self, ids: Tensor) -> Tensor:
        x = F.embedding(ids, self.table, padding_idx=3)
        for norm in self.norms:
            weights, biases = ([getattr(layer, name).to(torch.bfloat16) for layer in self.layers]
                               for name in ("weight", "bias"))  # fmt: skip
            y = F.linear(norm(x), torch.cat(weights), torch.cat(biases))
            a, b, c = y.split([16, 8, 8], -1)
            x = x + a.float() * torch.cat([b, c], -1).sigmoid()
        logits = F.linear(x, self.table if self.tied else self.own)
        return F.cross_entropy(logits.float().flatten(0, -2), ids.roll(1).flatten())


def test_batches_of_any_size_are_compiled(lent: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_pass, "SUMS", 0)
    torch._dynamo.reset()
    layer = nn.Linear(4, 6)

    def loss(x: Tensor) -> Tensor:
        a, b = layer(x).chunk(2)  # joined along the batch in the backward pass
        return (a.sin() * b.cos()).sum()

    compiled = torch.compile(loss, options={**graph_pass.PASSES})
    for batch, length in ((4, 3), (6, 5)):
        x = torch.randn(batch, length, 4)
        found: list[list[Tensor]] = []
        for f in (loss, compiled):
            layer.zero_grad()
            f(x).backward()
            assert layer.weight.grad is not None
            assert layer.bias.grad is not None
            found.append([layer.weight.grad.clone(), layer.bias.grad.clone()])
        torch.testing.assert_close(*found)


def gradients(tied: bool, ids: Tensor, **options: Any) -> dict[str, Tensor]:
    torch._dynamo.reset()
    model = Model(tied)
    compiled = torch.compile(model, options=options, dynamic=False)
    with torch.autocast("cpu", torch.bfloat16):
        loss = compiled(ids)
    loss.backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("tied", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_gradients_are_those_without_it_but_for_roundings(
    lent: None, monkeypatch: pytest.MonkeyPatch, tied: bool
) -> None:
    monkeypatch.setattr(graph_pass, "SUMS", 0)
    ids = torch.randint(0, 50, (4, 12), generator=torch.Generator().manual_seed(1))
    ids[0, :3] = 3  # padding has no gradient as an input
    seen = Seen()
    both = {"joint_custom_post_pass": graph_pass.Recomputed(), "post_grad_custom_post_pass": seen}
    plain, wide = gradients(tied, ids), gradients(tied, ids, **both)
    assert seen.targets.count(aten.mm.dtype) == 1  # of the head; joined weights are added first
    alone = aten._unsafe_masked_index_put_accumulate.default in seen.targets
    assert (alone, aten.index_put.default in seen.targets) == (not tied, tied)
    assert plain.keys() == wide.keys()
    for name, g in wide.items():
        assert g.dtype == torch.float32
        assert g.shape == plain[name].shape
        assert g.is_contiguous()
        assert torch.allclose(g, plain[name], atol=2**-6 * float(g.abs().max())), name


def made(*steps: Any) -> Graph:
    """A graph that returns what each step makes of the product of two inputs in half precision."""
    graph = Graph()
    a, b = graph.placeholder("a"), graph.placeholder("b")
    a.meta["val"] = torch.empty(4, 6, dtype=torch.bfloat16)
    b.meta["val"] = torch.empty(6, 4, dtype=torch.bfloat16)
    y = graph.call_function(aten.mm.default, (a, b))
    y.meta["val"] = torch.empty(4, 4, dtype=torch.bfloat16)
    graph.output(tuple(step(graph, y) for step in steps))
    return graph


def cast(graph: Graph, x: Any, dtype: torch.dtype = torch.float32) -> Any:
    return graph.call_function(torch.ops.prims.convert_element_type.default, (x, dtype))


def part(start: int, end: int) -> Any:
    """Cast of some rows."""
    return lambda g, y: cast(g, g.call_function(aten.slice.Tensor, (y, 0, start, end)))


@pytest.mark.parametrize(
    ("steps", "wide"),
    [
        ([cast], True),
        ([lambda g, y: cast(g, g.call_function(aten.slice.Tensor, (y, 0, 0, 2)))], True),
        ([cast, lambda g, y: y], False),
        ([cast, lambda g, y: g.call_function(aten.relu.default, (y,))], False),
        ([lambda g, y: g.call_function(aten.relu.default, (cast(g, y),))], False),
        ([lambda g, y: cast(g, y, torch.float64)], False),
        ([lambda g, y: y], False),
        ([part(0, 2), part(2, 4)], True),
        ([part(0, 3), part(2, 4)], False),
        ([part(0, 2), cast], False),
        ([cast, lambda g, y: next(iter(y.users))], False),
    ],
    ids=[
        "cast",
        "slice",
        "also half",
        "also read",
        "read in float32",
        "float64",
        "half",
        "two parts",
        "parts with a row in common",
        "a part and all",
        "one cast of two weights",
    ],
)
def test_only_products_that_are_returned_in_float32_write_it(
    steps: list[Any], wide: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = made(*steps)
    graph_pass.Gradients()(graph)
    assert aten.mm.default in {node.target for node in graph.nodes}  # none on a CPU
    monkeypatch.setattr(graph_pass, "DEVICES", ("cpu",))
    graph_pass.Gradients()(graph)
    assert (aten.mm.dtype in {node.target for node in graph.nodes}) == wide
    graph.lint()


def test_biases_are_summed_by_sequence_and_what_lies_side_by_side_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x = [torch.randn(5, 7, width).bfloat16() for width in (4, 2)]
    graph = Graph()
    parts = [graph.placeholder(f"x{n}") for n in range(2)]
    rows = graph.call_function(aten.cat.default, (parts, 2))
    rows.meta["val"] = torch.cat(x, 2)
    flat = graph.call_function(aten.reshape.default, (rows, [35, 6]))
    flat.meta["val"] = rows.meta["val"].flatten(0, 1)
    total = graph.call_function(aten.sum.dim_IntList, (flat, [0], True))
    total.meta["val"] = flat.meta["val"].sum(0, True)
    other = graph.call_function(aten.sum.dim_IntList, (flat, [1]))
    other.meta["val"] = flat.meta["val"].sum(1)
    graph.output((total, other))
    for least, count in ((31, 2), (30, 4)):
        monkeypatch.setattr(graph_pass, "SUMS", least)
        graph_pass.Gradients()(graph)
        assert sum(node.target is aten.sum.dim_IntList for node in graph.nodes) == count
        found = torch.fx.Interpreter(torch.fx.GraphModule(nn.Module(), graph)).run(*x)
        exact = torch.cat(x, 2).double().sum((0, 1))[None]
        assert found[0].shape == (1, 6)
        assert torch.allclose(found[0].double(), exact, atol=2**-8 * float(exact.abs().max()))
        assert torch.equal(found[1], other.meta["val"])


def test_normalised_numbers_are_computed_again() -> None:
    graph = Graph()
    x = graph.placeholder("x")
    x.meta["val"] = torch.randn(3, 4)
    mean = graph.call_function(aten.mean.dim, (x, [1], True))
    centred = graph.call_function(aten.sub.Tensor, (x, mean))
    scale = graph.call_function(aten.rsqrt.default, (mean,))
    normal = graph.call_function(aten.mul.Tensor, (centred, scale))
    cube = graph.call_function(aten.mul.Tensor, (scale, mean))
    graph.output((normal, cube, scale))
    for node, width in ((mean, 1), (centred, 4), (scale, 1), (normal, 4), (cube, 1)):
        node.meta["val"] = torch.empty(3, width)
    graph_pass.Recomputed()(graph)
    assert {node for node in graph.nodes if "recompute" in node.meta} == {centred, normal}


def test_a_sum_of_all_numbers_is_one_of_sums_by_channel() -> None:
    graph = Graph()
    x = graph.placeholder("x")
    x.meta["val"] = torch.randn(3, 5, 4)
    total = graph.call_function(aten.sum.dim_IntList, (x, [0, 1, 2], True))
    graph.output((total,))
    numbers = torch.randn(3, 5, 4)
    total.meta["val"] = numbers.sum((0, 1, 2), True)
    graph_pass.Gradients()(graph)
    sums = [node.args[1] for node in graph.nodes if node.target is aten.sum.dim_IntList]
    assert sums == [[0, 1], [0]]
    (found,) = torch.fx.Interpreter(torch.fx.GraphModule(nn.Module(), graph)).run(numbers)
    torch.testing.assert_close(found, total.meta["val"])


def test_sums_of_other_numbers_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_pass, "SUMS", 0)
    graph = Graph()
    x = graph.placeholder("x")
    x.meta["val"] = torch.ones(2, 3, 4, dtype=torch.int64)
    rows = graph.call_function(aten.reshape.default, (x, [6, 4]))
    rows.meta["val"] = x.meta["val"].view(6, 4)
    graph.output((graph.call_function(aten.sum.dim_IntList, (rows, [0])),))
    before = str(graph)
    graph_pass.Gradients()(graph)
    assert str(graph) == before
