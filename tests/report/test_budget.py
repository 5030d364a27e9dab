"""Loss against FLOPs and time: what a step costs, and how far each row's line goes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from chimera.report import markdown
from chimera.report.figures import FLOPS, SECONDS, budget, costs, costs_known
from chimera.report.table_results import TableResults, read_results
from tests.report.runs import make

TABLE, SMOKE = "bitnet_qdyt/norms", ["scale=smoke"]
FLOPS_PER_TOKEN = {"layernorm": 1e6, "qdyt": 3e6}


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TableResults:
    monkeypatch.setenv("CHIMERA_RUNS", str(tmp_path))
    make(TABLE, {(row, seed): 400.0 for row in FLOPS_PER_TOKEN for seed in (0, 1)})
    for cell in read_results(TABLE, SMOKE, [0, 1]).cells:
        if cell.record:
            flops = {"training": FLOPS_PER_TOKEN[cell.row]}
            (cell.directory / "run.json").write_text(json.dumps({**cell.record, "flops": flops}))
    return read_results(TABLE, SMOKE, [0, 1])


def test_every_step_costs_the_same(table: TableResults) -> None:
    cell = next(cell for cell in table.cells if cell.row == "qdyt")
    data, trainer = cell.config["data"], cell.config["trainer"]
    tokens = data["batch_size"] * data["seq_len"] * trainer["accumulate_grad_batches"]
    assert costs(cell) == {FLOPS: 3e6 * tokens, SECONDS: tokens / 12345.6}
    unfinished = next(cell for cell in table.cells if cell.row == "static_tanh")
    assert costs(unfinished) == {}
    assert costs_known(table)
    flops, seconds = budget(table).axes
    ends = {line.get_label(): line.get_xdata()[-1] for line in flops.lines}
    assert len(ends) == 2
    last = 12  # steps of the invented runs
    assert sorted(ends.values()) == pytest.approx([1e6 * tokens * last, 3e6 * tokens * last])
    times = [line.get_xdata()[-1] for line in seconds.lines]
    assert times == pytest.approx([last * tokens / 12345.6] * 2)
    assert len(flops.collections) == 2  # a band for each row
    assert "](budget.png)" in markdown.report(table)
