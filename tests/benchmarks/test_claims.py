"""Verdicts on the papers' claims come from intervals over seeds."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from scipy.stats import ttest_rel

from benchmarks import claims
from chimera.config.tables import load

HEAD = "row,title,published,mean,seeds,values,state"
CLAIM = claims.Claim("QDyT", "bitnet_qdyt/norms", "qdyt", "layernorm")


def made(folder: Path, qdyt: list[float], layernorm: list[float]) -> Path:
    """A folder with a report of these perplexities."""
    place = folder / "bitnet_qdyt/norms/results/small"
    place.mkdir(parents=True)
    lines = [HEAD]
    for row, published, values in (("qdyt", 19.3, qdyt), ("layernorm", 23.1, layernorm)):
        seeds = ";".join(str(seed) for seed in range(len(values)))
        mean = sum(values) / len(values)
        states = ";".join(["done"] * len(values))
        lines.append(
            f"{row},{row},{published},{mean},{seeds},{';'.join(map(str, values))},{states}"
        )
    (place / "report.csv").write_text("\n".join(lines))
    return folder


@pytest.mark.parametrize(
    ("qdyt", "verdict"),
    [
        ([18.0, 19.0, 20.0], claims.HOLDS),
        ([22.0, 23.0, 24.5], claims.FAILS),
        ([18.0, 21.0, 24.0], claims.OPEN),
    ],
)
def test_a_verdict_is_read_from_the_interval(
    qdyt: list[float], verdict: str, tmp_path: Path
) -> None:
    layernorm = [20.0, 21.0, 22.0]
    found = claims.finding(CLAIM, made(tmp_path, qdyt, layernorm))
    assert found is not None
    assert found.verdict == verdict
    assert found.published == pytest.approx(19.3 / 23.1)
    logs = [[math.log(value) for value in values] for values in (qdyt, layernorm)]
    theirs = ttest_rel(*logs)
    interval = theirs.confidence_interval(0.95)
    assert found.ratio.interval == pytest.approx((math.exp(interval.low), math.exp(interval.high)))
    assert found.ratio.value == pytest.approx(math.exp(sum(logs[0]) / 3 - sum(logs[1]) / 3))
    assert (theirs.pvalue < 0.05) == (verdict != claims.OPEN)


def test_one_seed_has_no_verdict(tmp_path: Path) -> None:
    assert claims.finding(CLAIM, made(tmp_path, [18.0], [20.0])) is None
    assert claims.finding(CLAIM, tmp_path / "nothing") is None


def test_claims_are_of_rows_that_there_are_and_follow_the_paper() -> None:
    for claim in claims.CLAIMS:
        table = load(claim.table)
        assert {claim.row, claim.than} <= {row.name for row in table.rows}, claim
        assert table.metric.startswith("val/"), claim
    for found in claims.findings():  # a claim is the paper's: its own figure is below one
        assert found.published is None or found.published < 1, found.claim


def test_a_row_of_ours_stands_beside_the_number_of_the_row_that_it_stands_for(
    tmp_path: Path,
) -> None:
    folder = made(tmp_path, [18.0, 19.0, 20.0], [20.0, 21.0, 22.0])
    place = folder / "bitnet_qdyt/norms/results/small/report.csv"
    ours = "better,better,,19.5,0;1;2,19.0;19.5;20.0,done;done;done"
    place.write_text(f"{place.read_text()}\n{ours}")
    own = claims.Claim("QDyT", "bitnet_qdyt/norms", "better", "layernorm")
    found = claims.finding(own, folder)
    assert found is not None
    assert found.published is None
    own = claims.Claim("QDyT", "bitnet_qdyt/norms", "better", "layernorm", {"better": "qdyt"})
    found = claims.finding(own, folder)
    assert found is not None
    assert found.published == pytest.approx(19.3 / 23.1)


def test_a_line_says_whether_each_row_has_its_own_rate() -> None:
    said = claims.all_claims().splitlines()
    own = {
        path: [line for line in said if f"{path}/results" in line and "own rates" in line]
        for path in ("saidl/attention", "tptt/variants")
    }
    assert own["saidl/attention"]
    assert not own["tptt/variants"]
