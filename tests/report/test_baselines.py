"""Trivial predictors as the last rows of a table; counts and single seeds are not tested."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any

import pytest

from chimera.config.tables import load
from chimera.report import markdown
from chimera.report.table_results import CONSTANT, OVERLAP, TableResults, read_results
from chimera.report.write import comma_separated
from tests.report.runs import Record, make

SMOKE = ["scale=smoke"]


@pytest.fixture(autouse=True)
def _runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHIMERA_RUNS", str(tmp_path))


def summary(table: str, values: dict[str, list[float]], **record: Any) -> TableResults:
    """A table whose runs have these values, row by row, and more in their records."""

    def told(row: str, seed: int, made: Record) -> Record:
        return {**made, **record, "metrics": made["metrics"] | record.get("metrics", {})}

    every = {(row, seed): v for row, each in values.items() for seed, v in enumerate(each)}
    make(table, every, told=told)
    return read_results(table, SMOKE, list(range(max(map(len, values.values())))))


def test_the_unigram_is_a_row_and_rows_below_it_are_named(tmp_path: Path) -> None:
    found = summary("bitnet_qdyt/norms", {"qdyt": [400.0, 402.0], "static_tanh": [622.2, 630.0]})
    (unigram,) = found.baselines
    assert (unigram.name, unigram.value.mean) == ("unigram", pytest.approx(622.2))
    assert found.below(unigram) == ["static_tanh"]
    report = markdown.report(found)
    assert "| *Unigram model, no network* |  | 622.2 ± 0 |" in report
    assert "Not better than «Unigram model, no network» (622.2 ± 0): `static_tanh`." in report
    rows = list(csv.DictReader(comma_separated(found).splitlines()))
    assert (rows[-1]["row"], rows[-1]["state"], rows[-1]["n"]) == ("unigram", "baseline", "0")
    assert float(rows[-1]["mean"]) == pytest.approx(622.2)


def test_the_unigram_of_a_loss_is_its_logarithm() -> None:
    found = summary("saidl/positions", {"rope": [5.2]})
    assert found.baselines[0].value.mean == pytest.approx(math.log(622.2))


def test_a_constant_prediction_is_read_from_the_record_or_known() -> None:
    nothing = {"val/unigram_perplexity": None}
    older = summary(
        "saidl/adapters", {"full": [0.1]}, metrics={**nothing, "val/majority_accuracy": 0.69}
    )
    assert [(b.name, b.value.mean) for b in older.baselines] == [("constant", 0.0)]
    recorded = {CONSTANT: {"val/score": 0.84}}
    found = summary("saidl/tasks", {"mrpc": [0.8]}, metrics=nothing, **recorded)
    assert [(b.name, b.value.mean) for b in found.baselines] == [("constant", 0.84)]
    assert found.below(found.baselines[0]) == ["mrpc"]


def test_the_overlap_of_pairs_is_read_from_the_record() -> None:
    recorded = {CONSTANT: {"val/score": 0.0}, OVERLAP: {"val/score": 0.61, "val/pearson": 0.6}}
    nothing = {"val/unigram_perplexity": None}
    found = summary("titan/stsb", {"transformer": [0.2]}, metrics=nothing, **recorded)
    values = {b.name: b.value.mean for b in found.baselines}
    assert values == {"constant": 0.0, "overlap": 0.61}
    assert [found.below(b) for b in found.baselines] == [[], ["transformer"]]


def test_counts_are_not_tested() -> None:
    assert load("saidl/lambda").counts
    found = summary("saidl/lambda", {"lr_lambda_001": [8.0, 7.9], "lr_lambda_02": [5.8, 5.7]})
    assert found.resolvable is None
    assert "The metric is a count, so differences are not tested." in markdown.report(found)
    assert "counts are not tested" in markdown.report(found)
    head, body = markdown.rows(found)
    assert "difference" in head
    assert not {"p", "95% interval"} & set(head)
    assert any("-2.200 ± 0" in cell for row in body for cell in row)


def test_a_single_seed_is_said_to_resolve_nothing() -> None:
    found = summary("bitnet_qdyt/norms", {"qdyt": [400.0], "layernorm": [390.0]})
    report = markdown.report(found)
    assert "With one seed, differences are not tested and prove nothing." in report
    assert "paired t-test" not in report
