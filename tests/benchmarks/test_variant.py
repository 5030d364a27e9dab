"""Mixers with options in profiles and cards: names, refusals, rows, sections, published scores."""

from __future__ import annotations

import copy
import re
from pathlib import Path

import pytest
from benchmarks.card import choose, page
from benchmarks.card.published import MEAN, Source, matched, ranks, sources
from benchmarks.card.records import Profiles, gather
from benchmarks.card.stored import read

from benchmarks import profile, variant
from chimera.config.compose import compose, plain
from chimera.errors import UserError
from chimera.paths import ROOT
from chimera.report.stats import paired
from chimera.rundir.identity import identity

from .test_cards import ATTENTION, DELTA, FACTS, RETNET, runs
from .test_cards_store import record

CONV = "delta+conv=4"
SCORES = {"mqar": [0.99, 0.97, 0.98, 0.99], "copy": [0.95, 0.96, 0.94, 0.96]}


@pytest.fixture
def profiles() -> Profiles:
    mixers = {"attention": ATTENTION, "delta": DELTA, "retnet": RETNET, CONV: SCORES}
    return gather(runs(**mixers))


@pytest.fixture
def _unrotated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Positions as `profile.position` finds them by building the mixers."""
    monkeypatch.setattr(profile, "_POSITIONS", {"delta": "none", CONV: "none"})


@pytest.mark.usefixtures("_unrotated")
def test_words_of_plain_runs_stay_and_variants_are_others() -> None:
    own = profile.overrides("delta", "parity", 3e-3, 1)
    assert own[:4] == ["preset=profile", "data=mad/parity", "mixer=delta", "position=none"]
    assert own[-2:] == ["name=profile-parity-delta", "tags=[profile,report,'lr=0.003']"]
    more = profile.overrides(CONV, "parity", 3e-3, 1)
    assert set(more) ^ set(own) == {"mixer.conv=4", own[-2], "name=profile-parity-delta+conv.4"}
    first, second = plain(compose(own)), plain(compose(more))
    assert identity(first) != identity(second)
    assert second["name"] == "profile-parity-delta+conv.4"  # Hydra reads it without quotes
    assert variant.of_node("delta", first["mixer"]) == "delta"
    assert variant.of_node("delta", second["mixer"]) == CONV
    kept = [p.name for p in paths(ROOT / "store") if p.name.startswith("profile-parity-delta-")]
    if not kept:
        pytest.skip("this copy of the project has no records of the profile of delta")
    found = set()
    for rate in profile.RATES:
        for seed in (profile.CHOICE, *profile.SEEDS):
            config = copy.deepcopy(first)
            config["optim"]["lr"], config["seed"] = rate, seed
            found.add(f"{config['name']}-{identity(config)}")
    assert set(kept) <= found


def test_options_are_checked_and_written_in_one_way() -> None:
    assert variant.checked("delta+conv=0") == "delta"
    assert variant.checked("delta+order=2+conv=4+decay=False") == "delta+conv=4+order=2"
    for text, said in {
        "delta+cnov=4": "cnov is no option of delta; its options are heads, order,",
        "delta+conv=3": "mixer.conv=3 is not allowed; it takes one of 0, 4",
        "delta+conv": "cannot be read at '+conv'",
        "delta+conv=0+conv=4": "names conv twice",
        "dleta+conv=4": "mixer=dleta is not known",
    }.items():
        with pytest.raises(UserError, match=re.escape(said)) as caught:
            profile.main([f"mixer={text}"])
        assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("_unrotated")
def test_records_are_told_apart_by_their_configuration(tmp_path: Path) -> None:
    for mixer in ("delta", CONV):
        config = plain(compose(profile.overrides(mixer, "parity", 3e-3, 0)))
        for seed in (0, 1):
            record(config, tmp_path / "made", tmp_path / "store", 3e-3, seed)
    found = read(tmp_path / "store")
    assert list(found.by_mixer) == ["delta", CONV]
    assert found.plain == ["delta"]
    assert [p.mixer for p in found.variants("delta")] == [CONV]


def test_a_variant_has_a_row_and_a_section(
    profiles: Profiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "described", lambda name: f"mixer={name}")
    text = page.page(profiles.by_mixer["delta"], profiles, FACTS)
    section = text[text.index("## With conv=4\n") : text.index("## State and cost")]
    assert "`mixer=delta mixer.conv=4`" in section
    assert "score less delta's" in section
    row = next(line for line in section.splitlines() if line.startswith("| copy |"))
    scores = (profiles.by_mixer[m].scores["copy"] for m in (CONV, "delta"))
    difference = paired(*scores)
    assert difference is not None
    assert row.endswith(
        f"| {difference.mean:+.2f} | {page.interval(difference.interval, sign=True)} |"
    )
    assert "better than one of `delta` with probability" in section
    assert "## With" not in page.page(profiles.by_mixer["retnet"], profiles, FACTS)
    link = f"[`{CONV}`](cards/mixer-delta.md#with-conv4)"
    compared = choose.page(profiles, [], FACTS)
    assert "3 mixers and 1 variant with options" in compared
    assert f"| copy | {link} | 0.94 |" in compared
    (row,) = (line for line in compared.splitlines() if line.startswith(f"| {link} |"))
    assert row.endswith("| – | – |")


def test_a_variant_without_its_mixer_is_left_out_and_named() -> None:
    found = gather(runs(**{"attention": ATTENTION, CONV: SCORES}))
    assert list(found.by_mixer) == ["attention"]
    assert found.left_out == (f"{CONV}: delta itself, which has the card, has no record",)


def test_sources_are_compared_with_the_variant_that_they_used(profiles: Profiles) -> None:
    there = {"delta": 0.9, "attention": 0.8, "retnet": 0.1}
    source = Source("S", "s", "n", {"copy": there, MEAN: there}, {"delta": CONV})
    used, instead = matched(profiles, source)
    assert instead == {}
    assert [set(one.mixers) for one in ranks(profiles, used)] == [{"attention", CONV, "retnet"}] * 2
    text = choose.page(profiles, [source], FACTS)
    assert f"3 of its mixers are here: `attention`, `{CONV}`, `retnet`." in text
    without = gather(runs(attention=ATTENTION, delta=DELTA, retnet=RETNET))
    assert matched(without, source) == (source, {"delta": ["copy", MEAN]})
    said = f"Its `delta` was `{CONV}`, which has no record here: plain `delta` stands in."
    assert said in choose.page(without, [source], FACTS)
    part = gather(runs(**{"delta": DELTA, CONV: {"copy": SCORES["copy"]}}))
    assert matched(part, source)[1] == {"delta": [MEAN]}
    assert " on mean: plain" in choose.page(part, [source], FACTS)
    for one in sources():
        assert all(variant.checked(v) == v for v in one.variants.values())
