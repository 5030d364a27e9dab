"""The diagram of a composed model."""

from __future__ import annotations

from dataclasses import replace

import pytest

from chimera.config.compose import compose, plain
from chimera.config.groups import ZOO
from chimera.contract_tests import zoo
from chimera.model.diagram import mermaid
from chimera.paths import ROOT
from chimera.train.check import checked_model


def diagram(settings: object = zoo.TINY, **chosen: str) -> str:
    return mermaid(zoo.model(settings, **chosen), {**zoo.PLAIN, **chosen})  # type: ignore[arg-type]


def test_choices_and_depth_are_named() -> None:
    text = diagram(mixer="retnet", norm="qdyt", quant="bitnet158", ffn="swiglu", position="rope")
    for part in ("Retention", "qdyt", "linear: bitnet158", "SwiGLU", "position: rope", "2 blocks"):
        assert part in text
    assert "times" not in text


def test_loops_adapters_and_experts_are_drawn() -> None:
    text = diagram(replace(zoo.TINY, loops=3), adapter="lora", ffn="moe")
    assert '-. "3 times" .->' in text
    assert "adapter: lora" in text
    assert "4 × " in text
    assert "top 2" in text


def test_a_pattern_that_repeats_is_drawn_once() -> None:
    text = diagram(replace(zoo.TINY, depth=4), mixer="interleaved")
    assert "4 blocks = 2 × 2" in text
    assert text.count("subgraph b") == 2


@pytest.mark.parametrize("name", ["attention", "mamba", "routed", "conv_attention"])
def test_every_box_is_defined_and_closed(name: str) -> None:
    lines = diagram(mixer=name).splitlines()
    assert lines[0] == "flowchart TB"
    assert sum("subgraph" in line for line in lines) == sum(line.strip() == "end" for line in lines)
    assert all(line.count('"') % 2 == 0 for line in lines)


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("docs/choosing.md", ["mixer=retnet", "quant=bitnet158", "norm=qdyt"]),
        ("docs/zoo.md", ["preset=titan_bert_ultra"]),
    ],
)
def test_the_documents_are_in_date(file: str, line: list[str]) -> None:
    config = plain(compose(line))
    parts = {group: config[group] for group in ("model", "task", "choices", *ZOO)}
    shown = mermaid(checked_model(parts), config["choices"]).rstrip()
    mark = f"<!-- diagram: python train.py show {' '.join(line)} format=mermaid -->"
    assert f"{mark}\n```mermaid\n{shown}\n```" in (ROOT / file).read_text(encoding="utf-8")
