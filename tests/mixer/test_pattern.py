"""Mixers cycled over the layers (SPEC M16)."""

from __future__ import annotations

from functools import partial

import pytest

from chimera.contract_tests import zoo
from chimera.mixer.attention import Attention
from chimera.mixer.linear import LinearAttention
from chimera.mixer.pattern import pattern
from chimera.mixer.retnet import Retention
from tests.kit import parts, site

MEMBERS = {"a": partial(Attention, kv_heads=1), "r": Retention, "l": LinearAttention}


def test_the_member_itself_stands_at_its_layer() -> None:
    cycle = ["r", "a", "r", "l"]
    made = [
        pattern(site(layer=i, depth=6), parts(), cycle=cycle, members=MEMBERS) for i in range(6)
    ]
    assert [type(m) for m in made] == [
        Retention,
        Attention,
        Retention,
        LinearAttention,
        Retention,
        Attention,
    ]
    assert made[1].heads.g == 1


def test_a_cycle_that_names_no_member_is_refused_with_the_members() -> None:
    with pytest.raises(ValueError, match="cycle names x, y; the members are a, r, l"):
        pattern(site(), parts(), cycle=["a", "x", "y", "x"], members=MEMBERS)
    with pytest.raises(ValueError, match=r"mixer\.cycle is empty: name at least one mixer"):
        pattern(site(), parts(), cycle=[], members=MEMBERS)


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("pattern", ["retnet", "attention"]),
        ("titan6", ["retnet", "attention", "retnet", "mamba", "attention", "ode"]),
        ("interleaved", ["attention", "attention"]),
        ("best_combo", ["attention", "attention"]),
        ("kimi_linear", ["kda", "kda", "kda", "attention"]),
        ("mamba2_hybrid", ["mamba2"] * 4 + ["attention"] + ["mamba2"] * 3),
        ("modernbert", ["attention"] * 3),
        ("gemma3", ["attention"] * 6),
        ("hymba", ["parallel"]),
    ],
)
def test_the_shipped_patterns_build(name: str, kinds: list[str]) -> None:
    make = zoo.choices(mixer=name).mixer
    where = [site(layer=i, depth=len(kinds)) for i in range(len(kinds))]
    assert [make(here, parts()).component for here in where] == kinds


@pytest.mark.parametrize(
    ("name", "windows"),
    [("modernbert", [None, 65, 65] * 2), ("gemma3", [1024] * 5 + [None])],
)
def test_windows_stand_between_global_layers(name: str, windows: list[int | None]) -> None:
    make = zoo.choices(mixer=name).mixer
    layers = [make(site(layer=i, depth=6), parts()) for i in range(6)]
    assert [getattr(layer, "window", None) for layer in layers] == windows


def test_best_combo_is_blocks_throughout() -> None:
    make = zoo.choices(mixer="best_combo").mixer
    plain, convolved = (make(site(layer=i, depth=2), parts()) for i in range(2))
    assert type(convolved.inner) is type(plain)
    assert type(plain).__name__ == "SparseBlock"
