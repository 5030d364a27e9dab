"""Sizes of the presets, counted on the meta device, against the papers' numbers."""

from __future__ import annotations

import pytest

from chimera.config.compose import compose, plain
from chimera.config.groups import groups
from chimera.tables.parameters import PARTS, count, main, published

ULTRA = ["preset=titan_bert_ultra"]


@pytest.mark.parametrize("name", ["titan_bert_ultra", "tormented_bert"])
def test_eq_53_within_two_per_cent(name: str) -> None:
    found = count([f"preset={name}"])
    assert found.total == pytest.approx(303e6, rel=0.02)
    assert found.total == 305_506_305
    formula = 12 * (20 * 1024**2 + 7 * 1024) + 50_000 * 1024
    assert found.total - formula == sum(
        found.parts[part] - 12 * size
        for part, size in zip(PARTS, (4 * 1024**2, 16 * 1024**2, 4096, 3072), strict=True)
    ) + sum(n for part, n in found.outside.items() if part != "embeddings")


def test_table_6_by_component() -> None:
    layers = count(ULTRA).layers
    kinds = [kind for kind, _ in layers]
    assert kinds == 2 * ["retnet", "attention", "retnet", "mamba", "attention", "ode"]
    square = 1024**2
    for kind, parts in layers:
        assert parts["experts"] == 16 * square
        assert parts["gating"] == 4 * 1024
        assert parts["norm"] == 2 * 3 * 1024
        expected = {"retnet": 5.0, "attention": 2.5, "mamba": 6.18, "ode": 4.0}[kind]
        assert parts["mixer"] / square == pytest.approx(expected, abs=0.01)
    mean = sum(parts["mixer"] for _, parts in layers) / len(layers)
    assert mean / square == pytest.approx(4.2, abs=0.01)


@pytest.mark.parametrize(
    ("name", "millions"),
    [
        ("bert_base", 109.218),  # 437 MB in fp32; QDYT prints 440
        ("bitnet_qdyt_base", 250.730),
        ("bitnet_qdyt_large", 326.252),
        ("bert_tiny", 0.946),
        ("titan_bert_ultra_2048", 1924.402),
    ],
)
def test_sizes(name: str, millions: float) -> None:
    words = [f"preset={name}"]
    assert count(words).total / 1e6 == pytest.approx(millions, abs=0.001)


def test_large_has_the_published_ratio_of_sizes() -> None:
    base, large = (count([f"preset=bitnet_qdyt_{size}"]).total for size in ("base", "large"))
    assert large / base == pytest.approx(70 / 54, rel=0.01)


def test_every_preset_composes() -> None:
    assert {"none", "encoder_small", "bert_tiny"} <= set(groups()["preset"])
    plain_one, small = plain(compose([])), plain(compose(["preset=encoder_small"]))
    for config in (plain_one, small):
        config.pop("choices")
    assert plain_one == small


def test_the_table_is_printed_and_written(
    capsys: pytest.CaptureFixture[str], tmp_path: pytest.TempPathFactory
) -> None:
    main(ULTRA)
    assert "305,506,305" in capsys.readouterr().out
    file = f"{tmp_path}/table.md"
    main([*ULTRA, f"out={file}"])
    with open(file, encoding="utf-8") as opened:
        assert "| total | 305,506,305 | 302,944,256 | +2,562,049 | +0.85% |" in opened.read()
    assert published(ULTRA)[0]["mixer"] == 4 * 1024**2
