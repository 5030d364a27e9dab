"""docs/effects.md from made-up records, and the command that trains them."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest
from benchmarks.effect import page, runs
from benchmarks.effect.plan import Plan
from benchmarks.effect.runs import Measured, measured
from benchmarks.effect.squares import cells

from benchmarks import __main__ as command
from benchmarks import effects, profile
from chimera.config.compose import compose, plain
from chimera.errors import UserError
from chimera.rundir.identity import identity

FACTORS = (("layernorm", "dyt", "none"), ("none", "int8", "hbit"), ("mlp", "moe", "none"))
CELLS = cells(FACTORS, 2)
#: Effects of norms on scores; on the loss they are the other way round.
NORMS = {"layernorm": 0.2, "dyt": 0.0, "none": -0.2}


def record(cell: tuple[str, ...]) -> dict[str, Any]:
    """Twice the parameters and the time of the mlp with moe; `none` has no ffn."""
    size = {"mlp": 2.0, "moe": 4.0, "none": 1.0}[cell[2]]
    facts: dict[str, Any] = {"parameters": {"total": 1e4 * size}}
    facts["bytes"] = {"total": {"packed": 4e4 * size / (10 if cell[1] == "hbit" else 1)}}
    return {**facts, "tokens_per_second": 6e4 / size}


def made(task: str, seeds: int) -> Measured:
    """Runs in which dyt with hbit is 0.3 above the sum of its parts."""
    found = Measured(task, commits={"abcdef12"}, processors={"Test CPU"}, seconds=[36.0] * 100)
    for number, cell in enumerate(CELLS[:-1]):
        found.records[cell] = [record(cell)]
        found.rates[cell] = 1e-3
        for seed in range(1, seeds + 1):
            shift = 0.002 * (-1) ** (number * seed)
            score = 0.5 + NORMS[cell[0]] + 0.3 * (cell[:2] == ("dyt", "hbit")) + shift
            found.responses.setdefault(cell, {})[seed] = 6 - score if found.text else score
    found.missing[CELLS[-1]] = "no rate trains"
    return found


@pytest.fixture(scope="module")
def text() -> str:
    plan = Plan("python -m benchmarks effects to=docs", "attention", FACTORS, CELLS, 2)
    return page.page(plan, [made("regbench", 2), made("mlm", 1)])


def test_the_page_has_effects_pairs_and_costs(text: str) -> None:
    row = re.search(r"\| `layernorm` \| \*\*\+0\.(\d\d) ± 0\.\d\d \(0\.\d\d\)\*\* \| (\S+) ", text)
    assert row
    assert 10 < int(row[1]) < 25  # the pair, in two of six cells of dyt, moves the mean
    assert row[2].startswith("**-0.1")  # a loss falls
    assert "18 of their 27 combinations (2 Latin squares), with `mixer=attention`" in text
    assert "1 to 2 seeds report. 2.0 hours on one core of Test CPU; code abcdef12" in text
    assert re.search(r"\| `norm=dyt` × `quant=hbit` \| \+0\.\d\d ± 0\.\d\d \| 2 \|", text)
    assert "Each pair has 2 cells" in text
    assert "confounded" not in text
    assert "| `moe` | 2.00 × | 2.00 × | 2.00 × | 2.00 × |" in text
    assert "| `hbit` | 1.00 × | 0.10 × | 1.00 × | 1.00 × |" in text
    assert "Without a second seed there is no such test for mlm." in text
    assert f"- regbench, no rate trains: {', '.join(f'`{x}`' for x in CELLS[-1])}\n" in text
    assert "\n\n\n" not in text


def test_one_square_is_said_to_be_confounded_and_a_bare_task_is_missing() -> None:
    one = made("regbench", 1)
    plan = Plan("c", "attention", FACTORS, cells(FACTORS), 1)
    for cell in set(one.responses) - set(plan.cells):
        del one.responses[cell]
    said = page.page(plan, [one, Measured("mlm")])
    assert "**In one Latin square the pairs are confounded:**" in said
    assert "- mlm: 0 cells do not tell" in said
    with pytest.raises(UserError, match="mlm: 0 cells do not tell"):
        page.page(plan, [Measured("mlm")])


@pytest.mark.parametrize("task", ["memorisation", "mlm"])
def test_runs_differ_in_rate_and_seed_only(task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """So the page finds the runs of a cell by one composed configuration; a profile's count too."""
    monkeypatch.setitem(profile._POSITIONS, "attention", "rope")
    cell = ("rmsnorm", "none", "swiglu")
    config = plain(compose(runs.words("attention", task, cell, 2e-3, 1)))
    other = compose(runs.words("attention", task, cell, 1e-2, 7))
    own = copy.deepcopy(config)
    own["optim"]["lr"], own["seed"] = 1e-2, 7
    assert identity(own) == identity(plain(other)) != identity(config)
    first = "profile" if task == "memorisation" else "effects"
    assert config["tags"] == [first, "report", "lr=0.002"]
    if task == "memorisation":  # its name too, by which cards find it
        words = runs.words("attention", task, cell, 1e-2, 7)
        profiled = profile.overrides("attention", task, 1e-2, 7)
        assert words[-2:] == profiled[-2:]
        assert words[-2] == f"name=profile-{task}-attention"
        assert identity(plain(compose(profiled))) == identity(own)


@pytest.mark.parametrize("task", ["memorisation", "mlm"])
def test_qdyt_warms_up_for_about_a_tenth_of_a_run(
    task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(profile._POSITIONS, "attention", "rope")
    config = plain(compose(runs.words("attention", task, ("qdyt", "none", "mlp"), 2e-3, 1)))
    warm = config["norm"]["callbacks"]["qdyt"]["warmup_steps"]
    assert 0.1 <= warm / config["trainer"]["max_steps"] <= 0.125


def test_mistakes_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = {
        ("mixer=atention",): "error: mixer=atention",
        ("mixer=attention", "norms=layernorm,dty,none"): "error: norms=dty",
        ("mixer=attention", "tasks=s6"): "error: tasks=s6",
        ("mixer=attention", "norms=layernorm,dyt,none"): "error: a Latin square needs",
        ("mixer=attention", "squares=6"): "error: squares=6",
        ("mixer=attention", "share=3,2"): "error: share= is n,of",
        ("squares=2",): "error: mixer= is missing",
    }
    for words, beginning in lines.items():
        assert command.main(["effects", *words]) == 2
        said = capsys.readouterr().err
        assert said.startswith(beginning), said
        assert said.count("\n") == 1


@pytest.mark.slow
def test_two_cells_are_trained_kept_and_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CHIMERA_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("CHIMERA_STORE", str(tmp_path / "store"))
    monkeypatch.setattr(profile, "STEPS", 4)
    monkeypatch.setattr(profile, "RATES", (1e-3, 3e-3))
    monkeypatch.setattr(runs, "SCALE", "smoke")
    design = ["norms=layernorm,qdyt,static_tanh", "quants=none,hbit,mxfp4", "ffns=moe,mlp,none"]
    words = ["mixer=attention", "tasks=memorisation,mlm", *design]
    effects.main([*words, "share=2,5"])  # cells 2 and 7 of 9
    stored = [check(path) for path in paths(tmp_path / "store")]
    assert len(stored) == 2 * (2 + 2) + 2 * 1
    assert {path.name.rpartition("-")[0] for path in paths(tmp_path / "store")} == {
        f"effects-{task}-{cell}"
        for task in ("memorisation", "mlm")
        for cell in ("layernorm-hbit-mlp", "static_tanh-none-none")
    }
    assert not any((tmp_path / "runs").glob("effects*"))
    capsys.readouterr()

    def never(*words: str) -> None:
        raise AssertionError("a finished run was trained again")

    monkeypatch.setattr("chimera.api.runs.train", never)
    effects.main([*words, "share=2,5"])
    assert not capsys.readouterr().out
    with pytest.raises(UserError, match="memorisation: 2 cells do not tell 4 effects apart"):
        effects.main([*words, f"to={tmp_path / 'docs'}"])
    assert not (tmp_path / "docs").exists()
    cell = ("layernorm", "hbit", "mlp")
    found = measured("attention", "mlm", [cell], [2e-3], [1])
    config = plain(compose(runs.words("attention", "mlm", cell, 2e-3, 1)))
    record = Store().find(config, identity(config))
    assert record is not None
    loss = record.record()["metrics"]["test/loss"]
    assert found.responses[cell] == {1: loss}
    assert 1 < loss < 20
