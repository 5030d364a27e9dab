"""Bit operations and sizes of the models of QDYT 4.2 at full size, counted without numbers.

    compute = Σ MACs · bits of the weights · bits of the activations, over BERT-Base's with 32 · 32

    chimera table bitnet_qdyt/compute [to=<folder>]

MACs are those of a forward pass of one sequence, as the FLOPs of a run. A ternary weight has log₂ 3
bits. Products outside quantised layers (scores of attention, the head tied to the table) have
32 · 32. Additions of the rotation are no products and do not count.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import nn

from chimera.config.compose import compose, plain
from chimera.config.tables import Row, load
from chimera.contract import Packable, Ternary
from chimera.model.assemble import unfilled
from chimera.ops.flops import Count
from chimera.quant.shared.layers import Linear
from chimera.quant.shared.packing import byte_report
from chimera.tables import Grid, place, publish
from chimera.tables.parameters import VOCABULARY
from chimera.train.build import build_task

TABLE = "bitnet_qdyt/compute"
#: Table of the models.
MODELS = "bitnet_qdyt/main"
FULL = 32.0


class Cost(NamedTuple):
    """Cost of a token, and bytes of the model as an export stores it.

    Args:
        macs: by (bits of the weights, bits of the activations).
        size: bytes.
    """

    macs: Counter[tuple[float, float]]
    size: int

    @property
    def total(self) -> float:
        return sum(self.macs.values())

    @property
    def bit_operations(self) -> float:
        return sum(macs * weight * activation for (weight, activation), macs in self.macs.items())


def widths(layer: nn.Module) -> tuple[float, float]:
    """Bits of a layer's weights and of its inputs."""
    packed = 8.0 if isinstance(layer, Packable) else FULL
    weight = math.log2(3) if isinstance(layer, Ternary) else packed
    found = [getattr(part, "bits", None) for part in layer.modules()]
    grids = [float(bits) for bits in found if isinstance(bits, int)]
    return weight, grids[-1] if grids else FULL


def cost(row: Row) -> Cost:
    """Cost of a row's model at scale=paper."""
    config = plain(compose([f"+{MODELS}={row.name}", "scale=paper", "task.teacher=null"]))
    length = config["model"]["max_len"]
    with torch.device("meta"), unfilled():
        task = build_task(config, VOCABULARY[config["choices"]["tokenizer"]])
    model = task.model
    macs = Counter[tuple[float, float]]()

    def observe(layer: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        assert isinstance(layer, Linear)
        macs[widths(layer)] += inputs[0].numel() * layer.out_features / length

    for module in model.modules():
        if isinstance(module, Linear):
            module.register_forward_pre_hook(observe)
    with Count() as counter, torch.no_grad():
        model(**task.example(length, torch.device("meta")))
    macs[FULL, FULL] += counter.products / 2 / length - sum(macs.values())
    return Cost(macs, byte_report(task.model)["total"].packed)


def grid() -> Grid:
    """A line for each model, with the paper's numbers."""
    table = load(MODELS)
    published = {(p.row, p.column): f"{p.value:g}" for p in table.published}
    costs = {row.name: cost(row) for row in table.rows}
    base = costs[table.reference]
    body = [
        [
            row.title,
            f"{published[row.name, 'weight_bits']}/{published[row.name, 'activation_bits']}",
            f"{found.total / 1e6:.1f}",
            f"{1 - found.macs[FULL, FULL] / found.total:.1%}",
            f"{found.total / base.total:.2f}",
            f"{found.bit_operations / base.bit_operations:.3f}",
            published[row.name, "compute"],
            f"{found.size / 1e6:.1f}",
            published[row.name, "size"],
        ]
        for row in table.rows
        for found in (costs[row.name],)
    ]
    head = ["model", "bits (W/A)", "10⁶ MACs a token", "of these in quantised layers"]
    head += ["MACs, × BERT-Base", "bit operations, × BERT-Base", "compute, paper"]
    return Grid("compute", "At scale=paper", [*head, "size, MB", "size, MB, paper"], body)


def main(arguments: Sequence[str]) -> None:
    """Print and write the table."""
    folder = place(TABLE, arguments)
    publish(TABLE, [grid()], {}, folder)
