"""Bit operations and sizes of BitNet-QDyT's models at full size (QDYT 4.2)."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from torch import nn

from chimera.config.tables import load
from chimera.paths import EXPERIMENTS
from chimera.quant.hbit import HBit
from chimera.quant.none import FullPrecision
from chimera.quant.ternary_weight import TernaryWeight
from chimera.quant.uniform import Uniform
from chimera.tables import bits


@pytest.mark.parametrize(
    ("quantiser", "widths"),
    [
        (FullPrecision(), (32, 32)),
        (Uniform(), (8, 8)),
        (Uniform(weight_bits=None, activation_bits=4), (32, 4)),
        (TernaryWeight(), (math.log2(3), 32)),
        (HBit(), (math.log2(3), 4)),
    ],
)
def test_widths_are_those_of_the_papers_rows(quantiser: HBit, widths: tuple[float, float]) -> None:
    layer: nn.Module = quantiser.linear(16, 24, bias=False, role="up")
    assert bits.widths(layer) == widths


def test_products_of_bert_base() -> None:
    """12 layers of 12 d² and scores of 128 tokens; the head and the table, where masked."""
    found = bits.cost(load(bits.MODELS).rows[0])
    d, v, t, masked = 768, 30522, 128, 19 / 128
    body = 12 * (12 * d**2 + 2 * t * d)
    head = masked * (d**2 + v * d)
    assert found.total == pytest.approx(body + head, rel=0.01)
    assert set(found.macs) == {(32, 32)}


@pytest.mark.slow
def test_the_committed_table_is_that_of_its_command(tmp_path: Path) -> None:
    bits.main([f"to={tmp_path}"])
    for file in (EXPERIMENTS / "bitnet_qdyt/compute/results").iterdir():
        assert (tmp_path / file.name).read_bytes() == file.read_bytes(), file.name
