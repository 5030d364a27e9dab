"""The fit of losses against FLOPs finds the exponent that the losses were made with."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import laws, scaling
from chimera.report.cells import Cell

#: FLOPs of a run by size.
FLOPS = {1: 1e11, 2: 1e12, 3: 1e13, 4: 1e14}


def runs(
    mixer: str, by_seed: dict[int, float], sizes: tuple[int, ...] = (1, 2, 3, 4)
) -> list[laws.Run]:
    """Runs that follow a law with these exponents."""
    return [
        laws.Run(mixer, size, seed, FLOPS[size], 40.0 * FLOPS[size] ** -b, math.log(600))
        for seed, b in by_seed.items()
        for size in sizes
    ]


def record(row: str, rate: float, seed: int, loss: float) -> tuple[dict[str, Any], dict[str, Any]]:
    """Configuration and run.json of a run of 10 steps of 32 tokens."""
    config = {
        "table": {"name": scaling.TABLE, "row": row},
        "choices": {"scale": scaling.SCALE},
        "optim": {"lr": rate},
        "seed": seed,
        "data": {"batch_size": 2, "seq_len": 8},
        "trainer": {"accumulate_grad_batches": 2},
    }
    metrics = {"val/loss": loss, "val/unigram_perplexity": 600.0}
    return config, {
        "flops": {"training": 5.0 * 10 ** int(row[-1])},
        "steps": 10,
        "metrics": metrics,
    }


def lines_of(text: str, part: int) -> dict[str, list[str]]:
    """Cells by mixer of the first or second table of a page."""
    lines = text.split("| mixer |")[part + 1].splitlines()
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if "| `" in line]
    return {first.strip("`"): rest for first, *rest in cells}


def test_flops_are_those_of_all_steps() -> None:
    one = scaling.run(*record("gated_delta_2", 1e-3, 7, 5.0))
    assert (one.mixer, one.size, one.seed) == ("gated_delta", 2, 7)
    assert one.flops == 5.0 * 100 * 10 * 2 * 2 * 8
    assert one.unigram == pytest.approx(math.log(600))


def test_the_exponent_is_found_over_the_sizes_that_all_seeds_have() -> None:
    found = laws.fitted(
        [
            *runs("gated_delta", {0: 0.10, 1: 0.12}),
            *runs("mamba2", {0: 0.10}),
            *runs("mamba2", {1: 0.11}, (1, 2, 3)),
            *runs("retnet", {0: 0.1}, (1,)),
        ]
    )
    assert set(found) == {"gated_delta", "mamba2"}
    assert found["gated_delta"].b == pytest.approx({0: 0.10, 1: 0.12})
    assert found["gated_delta"].fits[0][0] == pytest.approx(40.0)
    assert found["mamba2"].sizes == (1, 2, 3)
    assert set(found["mamba2"].losses[4]) == {0}
    # The law of both seeds is their geometric mean.
    assert found["gated_delta"].at(1e14) == pytest.approx(40.0 * 1e14**-0.11)


def test_the_page_has_intervals_and_the_largest_size_as_the_smaller_ones_predict_it() -> None:
    found = [
        *runs("attention", {0: 0.05, 1: 0.06, 2: 0.07}),
        *runs("mamba2", {0: 0.06, 1: 0.07, 2: 0.08}),
    ]
    # One mixer falls off the line at its largest size, by a tenth.
    off = [
        laws.Run(r.mixer, r.size, r.seed, r.flops, 1.1 * r.loss, r.unigram)
        if (r.mixer, r.size) == ("mamba2", 4)
        else r
        for r in found
    ]
    straight, bent = scaling.page(found), scaling.page(off)
    half = 4.303 * 0.01 / math.sqrt(3)
    assert f"0.0600 ({0.06 - half:.4f} to {0.06 + half:.4f})" in straight
    losses, exponents = (lines_of(straight, part) for part in (0, 1))
    assert losses["attention"][-1].lstrip("+-").startswith("0.0% (")
    assert list(losses) == list(exponents) == ["mamba2", "attention"], "the best and largest first"
    by_law = 40.0 * math.exp(-0.07 * math.log(1e14))
    assert lines_of(bent, 0)["mamba2"][-2:] == [f"{by_law:.3f}", "+10.0% (+10.0% to +10.0%)"]


def test_a_law_is_paired_with_that_of_the_reference() -> None:
    """In the middle of all runs, too, where the laws have losses of their own."""
    text = scaling.page(
        [
            *runs("attention", {0: 0.05, 1: 0.08, 2: 0.06}),
            *runs("mamba2", {0: 0.061, 1: 0.09, 2: 0.0705}),
        ]
    )
    assert "loss at 3.16 TFLOPs by the law" in text
    _, _, _, exponent, _, loss = lines_of(text, 1)["mamba2"]
    # The seeds' spread is far larger than that of the differences.
    assert exponent.startswith("+0.0105 (")
    assert exponent.endswith("p <0.001")
    middle = math.sqrt(1e12 * 1e13)
    pairs = ((0.061, 0.05), (0.09, 0.08), (0.0705, 0.06))
    gaps = [40.0 * (middle**-b - middle**-a) for b, a in pairs]
    assert loss.startswith(f"{sum(gaps) / 3:+.4f} (")


def test_what_cannot_be_compared_is_left_empty() -> None:
    """One seed has no interval, other sizes no difference, two sizes nothing to predict from."""
    assert scaling.page(runs("attention", {0: 0.1}, (1,))) == "No runs yet.\n"
    text = scaling.page(
        [
            *runs("attention", {0: 0.05, 1: 0.06}, (1, 2)),
            *runs("mamba2", {0: 0.06, 1: 0.07}),
            *runs("retnet", {0: 0.04}, (1, 2)),
        ]
    )
    lines = lines_of(text, 1)
    assert lines["mamba2"][:2] == ["2", "1, 2, 3, 4"]
    assert lines["mamba2"][3] == lines["mamba2"][5] == ""
    assert lines["retnet"][:4] == ["1", "1, 2", "0.0400", ""]
    assert lines_of(text, 0)["attention"][-2:] == ["", ""]


def test_the_block_has_each_row_at_its_own_rate_on_other_seeds_than_those_that_chose(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rates = {f"attention_{size}": 1e-3 for size in FLOPS}
    kept = [record(row, 1e-3, seed, 5.0 - int(row[-1]) / 9) for row in rates for seed in (0, 1)]
    others = ((2e-3, 0), (1e-3, 100))
    more = [record(row, rate, seed, 9.0) for row in rates for rate, seed in others]
    other = record("attention_1", 1e-3, 0, 9.0)
    other[0]["table"]["name"] = "saidl/attention"
    monkeypatch.setattr(scaling, "chosen", lambda _table, row, _scale: rates[row])
    line = type("Line", (), {"seed": 100})
    monkeypatch.setattr(scaling, "lines_at", lambda _table, _scale: [line])
    monkeypatch.setattr(scaling, "records", lambda _start: iter([*more, *kept, other]))
    assert scaling.scaling_law() == scaling.page([scaling.run(*pair) for pair in kept])
    monkeypatch.setattr(scaling, "records", lambda _start: iter([*kept, kept[0]]))
    with pytest.raises(AssertionError, match="two runs"):
        scaling.scaling_law()


def test_finished_runs_are_fitted_and_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []

    def summary(table: str, overrides: list[str], seeds: list[int]) -> Any:
        asked.append((table, overrides, seeds))
        pairs = [record(f"attention_{n}", 1e-3, seed, 6 - n) for n in FLOPS for seed in seeds]
        cells = [
            Cell(c["table"]["row"], c["seed"], "done", "", 1.0, Path(), c, r, {}) for c, r in pairs
        ]
        missing = Cell("mamba2_1", 0, "missing", "", None, Path(), {}, {}, {})
        return SimpleNamespace(cells=[*cells, missing])

    monkeypatch.setattr(scaling, "summarise", summary)
    out = tmp_path / "new"
    assert scaling.main(["scale=small", "seed=3,4", "data=mad", f"out={out}"]) == {}
    assert asked == [(scaling.TABLE, ["scale=small", "data=mad"], [3, 4])]
    assert (out / "scaling.png").stat().st_size > 1000
    assert "| `attention` |" in capsys.readouterr().out


def test_without_runs_the_command_that_trains_them_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(scaling, "summarise", lambda *_: SimpleNamespace(cells=[]))
    assert scaling.main() == {}
    assert "run: python train.py -m +ours=scaling scale=medium" in capsys.readouterr().out
