"""Passes that Inductor runs, so that a training step moves fewer bytes (`compiled.fusion`).

Autocast's products give gradients of weights in half precision, which are then read and written
again in float32; on a GPU the product can write float32. The gradient of a table that is both
embedding and head is made in two places; the few rows that were looked up are added to that of the
head, without a second table. Inductor sums the gradient of a bias over all tokens in a kernel that
reads them again; if each sequence is summed first, that is part of the kernel before. The gradient
of an α is summed by channel first, for the same reason. And the backward pass computes normalised
numbers again, from the input of the norm, which the residual stream has written already.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, cast

import torch
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch.fx import Graph, Node
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import CheckpointPolicy

from chimera.ops.precision import HALF

aten = torch.ops.aten
prims = torch.ops.prims
#: Devices whose products of half precision can write float32.
DEVICES = ("cuda",)
#: Operations that only look at a part of a tensor, or in another order.
VIEWS = {aten.slice.Tensor, aten.reshape.default, aten.view.default, aten.permute.default}
#: Numbers that a sum has to make at least, to keep a GPU busy.
SUMS = 2**15


class _Pass(CustomGraphPass):
    def uuid(self) -> Any:
        """Key of these passes in Inductor's cache."""
        return get_hash_for_files((__file__,))


class Recomputed(_Pass):
    """Over forward and backward pass together: normalised numbers are computed again."""

    def __call__(self, graph: Graph) -> None:
        for node in graph.find_nodes(op="call_function", target=aten.rsqrt.default):
            scale = node.meta["val"]
            for user in node.users:
                if user.target is not aten.mul.Tensor:
                    continue
                if user.meta["val"].numel() > scale.numel():
                    centred = [x for x in user.all_input_nodes if x.target is aten.sub.Tensor]
                    for one in (user, *centred):
                        one.meta["recompute"] = CheckpointPolicy.MUST_RECOMPUTE
                        one.meta["ac_graph_id"] = 0  # torch compares it between such nodes


class Gradients(_Pass):
    """Over the backward pass: weights, the table, and biases."""

    def __call__(self, graph: Graph) -> None:
        for node in list(graph.nodes):
            if node.target is aten.add.Tensor:
                _add_rows(graph, node)
            elif node.target is aten.sum.dim_IntList and not node.kwargs:
                if node.args[1] == [0]:
                    _sum_sequences(graph, node)
                elif node.args[1] == [0, 1, 2]:
                    _sum_channels(graph, node)
        results = _results(graph)
        for node in list(graph.nodes):
            if node.target is aten.mm.default and node.meta["val"].device.type in DEVICES:
                _widen(graph, node, results)


def _results(graph: Graph) -> Counter[Node]:
    """What a graph returns, and how often."""
    return Counter(x for x in tree_leaves(graph.output_node().args) if isinstance(x, Node))


def _add_rows(graph: Graph, add: Node) -> None:
    """table + scatter(zeros, rows) as scatter(table, rows), where nothing else reads either."""
    scatter = aten._unsafe_masked_index_put_accumulate.default
    both = add.all_input_nodes
    found = [node for node in both if node.target is scatter]
    if len(found) != 1 or len(both) != 2 or add.kwargs or any(len(x.users) > 1 for x in both):
        return
    if _results(graph)[add] != 1:
        return
    (table,) = {*both} - {*found}
    zeros, mask, places, rows = cast(tuple[Any, ...], found[0].args)
    if zeros.target is not aten.full.default or zeros.args[1] != 0:
        return
    with graph.inserting_before(add):
        known = graph.call_function(aten.where.ScalarOther, (mask, rows, 0.0))
        made = graph.call_function(aten.index_put.default, (table, places, known, True))
    add.replace_all_uses_with(made)
    for node in (add, found[0]):
        graph.erase_node(node)


def _sum_sequences(graph: Graph, total: Node) -> None:
    """Sum all tokens by sequence first, in float32; tensors laid side by side are summed apart."""
    rows: Any = total.args[0]
    if rows.target not in (aten.reshape.default, aten.view.default):
        return
    x = rows.args[0]
    shape = x.meta["val"].shape
    seen = rows.meta["val"].shape
    if len(shape) != 3 or len(seen) != 2 or x.meta["val"].dtype not in (torch.float32, *HALF):
        return
    if not statically_known_true(shape[2] == seen[1]) or not statically_known_true(
        shape[0] * shape[2] >= SUMS
    ):
        return

    def summed(x: Any, *args: Any, **kwargs: Any) -> Node:
        return graph.call_function(aten.sum.dim_IntList, (x, *args), kwargs)

    with graph.inserting_before(total):
        if x.target is aten.cat.default and (*x.args[1:], 0)[0] in (2, -1):
            parts = [summed(one, [1], dtype=torch.float32) for one in x.args[0]]
            each = graph.call_function(aten.cat.default, (parts, 1))
        else:
            each = summed(x, [1], dtype=torch.float32)
        whole = summed(each, [0], *total.args[2:])
        given = whole, total.meta["val"].dtype
        made = graph.call_function(prims.convert_element_type.default, given)
    total.replace_all_uses_with(made)
    graph.erase_node(total)


def _sum_channels(graph: Graph, total: Node) -> None:
    """Sum all numbers by channel first, as the gradients beside that of an α are summed."""
    x: Any = total.args[0]
    if x.meta["val"].dtype != torch.float32 or len(x.meta["val"].shape) != 3:
        return
    with graph.inserting_before(total):
        each = graph.call_function(aten.sum.dim_IntList, (x, [0, 1]))
        whole = graph.call_function(aten.sum.dim_IntList, (each, [0]))
        made = graph.call_function(aten.reshape.default, (whole, [*total.meta["val"].shape]))
    total.replace_all_uses_with(made)
    graph.erase_node(total)


def _widen(graph: Graph, product: Node, results: Counter[Node]) -> None:
    """Let a product write float32 if all that is done with it is to return it in float32.

    Parts of it may be the gradients of several weights, as long as they share no number.
    """
    casts = list(_casts(product, results))
    if not casts or None in casts or product.meta["val"].dtype not in HALF:
        return
    known = cast(list[Node], casts)
    if len(known) > 1 and not _apart(product, [one.all_input_nodes[0] for one in known]):
        return
    product.target = aten.mm.dtype
    product.args = (*product.args, torch.float32)
    for one in known:
        one.replace_all_uses_with(one.all_input_nodes[0])
        graph.erase_node(one)


def _casts(node: Node, results: Counter[Node]) -> Iterator[Node | None]:
    """Casts to float32 at the ends of a node's views, each returned once; None for other ends."""
    for user in node.users:
        if user.target in VIEWS and user not in results:
            yield from _casts(user, results)
            continue
        widens = user.target is prims.convert_element_type.default and user.args[1] == torch.float32
        added = [x for x in user.users if x.target is aten.index_put.default]
        others = [x for x in user.users if x not in added and x.op != "output"]
        once = results[user] + sum(results[x] for x in added) == 1  # as it is, or with rows added
        yield user if widens and once and not others else None


def _apart(product: Node, parts: list[Node]) -> bool:
    """Whether parts are rows of a product, no row in two of them."""
    rows: list[tuple[int, int]] = []
    for part in parts:
        given: Any = (*part.args, *(None, 0, 0, None, 1)[len(part.args) :])
        of, dim, start, end, step = given
        if part.target is not aten.slice.Tensor or (of, dim, step) != (product, 0, 1):
            return False
        if not (isinstance(start, int) and isinstance(end, int)):
            return False
        rows.append((start, end))
    rows.sort()
    return all(before[1] <= after[0] for before, after in pairwise(rows))


#: As Inductor's settings.
PASSES = {"joint_custom_post_pass": Recomputed(), "post_grad_custom_post_pass": Gradients()}
