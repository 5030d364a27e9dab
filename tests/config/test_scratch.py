"""One `init_from=` of a table is for its rows that start from a model, and for no others."""

from __future__ import annotations

import pytest

from chimera.config import scratch
from chimera.config.compose import compose, plain
from chimera.config.scratch import applicable
from chimera.config.tables import load
from chimera.errors import UserError
from chimera.report import cells
from chimera.rundir.identity import identity
from chimera.sweep.plan import plan

FROM_SCRATCH = {"xlstm_sora", "mamba_sora"}
MODEL = "init_from=runs/body"


@pytest.mark.parametrize("table", ["saidl/adapters", "saidl/targets"])
def test_rows_of_a_table_that_train_from_scratch_do_not_get_its_model(
    table: str, capsys: pytest.CaptureFixture[str]
) -> None:
    scratch._say.cache_clear()
    rows = [row.name for row in load(table).rows]
    kept = applicable([[f"+{table}={row}", MODEL, "scale=medium"] for row in rows])
    without = {row for row, texts in zip(rows, kept, strict=True) if MODEL not in texts}
    assert without == FROM_SCRATCH & set(rows)
    for texts in kept:
        assert "scale=medium" in texts
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith(f"{MODEL} is not for ")
    assert all(row in lines[0] for row in without)


def test_a_row_keeps_its_identity_whatever_model_its_table_starts_from() -> None:
    row = ["+saidl/adapters=xlstm_sora", "scale=smoke"]
    config = plain(compose(row))
    assert config["init_from"] is None
    (job,) = plan([[*row, MODEL]])
    assert job.identity == identity(config)
    assert MODEL not in job.overrides


def test_the_report_looks_for_the_runs_that_the_sweep_trains() -> None:
    table = load("saidl/adapters")
    planned = cells._planned(table, ["scale=smoke", MODEL], [0])
    with_model = {job.row for job in planned if MODEL in job.overrides}
    assert with_model == {row.name for row in table.rows} - FROM_SCRATCH


def test_a_single_run_of_such_a_row_refuses_a_model() -> None:
    with pytest.raises(UserError, match=r"xlstm_sora trains a model from scratch.*leave"):
        compose(["+saidl/adapters=xlstm_sora", "scale=smoke", MODEL])
    with pytest.raises(UserError, match=r"saidl_sequence trains a model from scratch"):
        compose(["preset=saidl_sequence", MODEL])
