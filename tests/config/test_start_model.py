"""`needs:` of a row, `init_from=` and `needs.<key>=` of a command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from chimera.config.compose import compose, plain
from chimera.config.start_model import applicable, row_overrides, teacher_overrides
from chimera.config.tables import jobs, load
from chimera.errors import UserError
from chimera.rundir.identity import identity
from chimera.sweep.compose_jobs import compose_jobs, prerequisites
from tests.config.kit import everything

TABLE, BODY = "titan/xnli", "titan/baselines"
ROW = f"+{TABLE}=transformer"
TEXT = ["data=text", "data.path='a folder/novels.txt'", "optim.lr=0.003", "data.deduplicate=true"]
OWN = [f"needs.{text}" for text in TEXT]
MODEL = "init_from=runs/body"


def test_the_row_that_a_run_starts_from_has_the_settings_and_the_scale() -> None:
    config = plain(compose([ROW, "scale=medium", "seed=2", *OWN]))
    body = plain(compose([f"+{BODY}=transformer", "scale=medium", *TEXT]))
    assert config["init_run"] == identity(body)
    assert body["data"]["path"] == "a folder/novels.txt"
    assert config["data"] == plain(compose([ROW, "scale=medium"]))["data"]
    assert config["optim"]["lr"] != 0.003


def test_settings_of_the_row_win_over_what_it_shares_with_the_run() -> None:
    row = f"row:{BODY}/transformer"
    assert row_overrides(row, ["scale=small", "needs.scale=smoke", "+needs.callbacks.mine=1"]) == [
        f"+{BODY}=transformer",
        "scale=smoke",
        "+callbacks.mine=1",
    ]
    teacher = teacher_overrides("row:bitnet_qdyt/main/bert_base", ["seed=1", *OWN])
    assert teacher == ["+bitnet_qdyt/main=bert_base", "seed=1"]


def test_a_run_is_another_if_its_row_is() -> None:
    without, with_text = (compose([ROW, "scale=smoke", *more]) for more in ([], OWN))
    assert identity(plain(without)) != identity(plain(with_text))
    own = plain(compose([f"+{BODY}=transformer", "scale=smoke"]))["optim"]["lr"]
    same = compose([ROW, "scale=smoke", f"needs.optim.lr={own}"])
    assert identity(plain(without)) == identity(plain(same))  # it says what the row has anyway


def test_a_sweep_trains_the_row_with_its_settings_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    everything(tmp_path)
    (tmp_path / "a folder").mkdir()
    (tmp_path / "text.txt").rename("a folder/novels.txt")
    words = [ROW, "scale=smoke", *OWN, f"data.path={tmp_path}/es_glue"]
    (first,) = prerequisites(compose_jobs([words]))
    assert first.config["data"]["path"] == "a folder/novels.txt"
    assert first.identity == plain(compose(words))["init_run"]


@pytest.mark.parametrize(
    ("table", "word", "without", "said"),
    [
        (TABLE, OWN[0], {"beto", "maria"}, "starts from none; leave"),
        ("saidl/adapters", MODEL, {"xlstm_sora", "mamba_sora"}, "from scratch.*leave"),
        ("saidl/targets", MODEL, {"xlstm_sora", "mamba_sora"}, "from scratch.*leave"),
    ],
)
def test_rows_without_a_start_model_do_not_get_what_is_said_of_it(
    table: str, word: str, without: set[str], said: str
) -> None:
    """Neither in a sweep nor in a report: such a row keeps its identity."""
    rows = [row.name for row in load(table).rows]
    listed = jobs(load(table), ["scale=smoke", word], [0])
    planned = {job.row: applicable(job.overrides) for job in listed}
    left_out = {row for row, overrides in planned.items() if word not in overrides}
    assert left_out == {row for row in rows if row in without or row.split("_")[0] in without}
    assert all("scale=smoke" in overrides for overrides in planned.values())
    alone = [f"+{table}={min(left_out)}", word]
    with pytest.raises(UserError, match=said):
        compose(alone)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["preset=saidl_sequence", MODEL], r"saidl_sequence trains a model from scratch"),
        (["mixer=retnet", "needs.data=text"], r"needs\.data= .*starts from none"),
        ([f"init_from=row:{BODY}/nope"], rf"^the row of init_from=row:{BODY}/nope.* is not known"),
        ([ROW, "needs.data=txet"], rf"row:{BODY}/transformer: data=txet.*did you mean 'text'"),
        ([ROW, "needs.dta.path=a"], rf"row:{BODY}/transformer: dta\.path.*'data\.path'"),
        ([ROW, "init_row={data:text}"], r"init_row is no key .*needs\.data=text"),
    ],
)
def test_a_mistake_is_one_line(words: list[str], said: str) -> None:
    with pytest.raises(UserError, match=said) as error:
        compose(words)
    assert "\n" not in str(error.value)
