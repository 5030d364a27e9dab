"""`init_row=`: settings of the row that a run starts from."""

from __future__ import annotations

from pathlib import Path

import pytest

from chimera.config import scratch
from chimera.config.compose import compose, plain
from chimera.config.rows_before import row_overrides, teacher_overrides
from chimera.config.tables import load
from chimera.errors import UserError
from chimera.report import cells
from chimera.rundir.identity import identity
from chimera.sweep.plan import plan, prerequisites
from tests.config.kit import everything

TABLE, BODY = "titan/spanish", "titan/baselines"
ROW = f"+{TABLE}=transformer_stsb"
TEXT = ["data=text", "data.path=a folder/novels.txt", "optim.lr=0.003", "data.deduplicate=true"]
OWN = "init_row={data:text,data.path:'a folder/novels.txt',optim.lr:0.003,data.deduplicate:true}"


def test_the_row_that_a_run_starts_from_has_the_settings_and_the_scale() -> None:
    config = plain(compose([ROW, "scale=medium", "seed=2", OWN]))
    body = plain(compose([f"+{BODY}=transformer", "scale=medium", *map(_quoted, TEXT)]))
    assert config["init_run"] == identity(body)
    assert body["data"]["path"] == "a folder/novels.txt"
    assert config["data"] == plain(compose([ROW, "scale=medium"]))["data"]
    assert config["optim"]["lr"] != 0.003


def test_settings_of_the_row_win_over_what_it_shares_with_the_run() -> None:
    words = row_overrides(f"row:{BODY}/transformer", ["scale=small", "init_row={scale:smoke}"])
    assert words == [f"+{BODY}=transformer", "scale=smoke"]


def test_a_run_is_another_if_its_row_is() -> None:
    without, with_text = (compose([ROW, "scale=smoke", *more]) for more in ([], [OWN]))
    assert identity(plain(without)) != identity(plain(with_text))
    own = plain(compose([f"+{BODY}=transformer", "scale=smoke"]))["optim"]["lr"]
    same = compose([ROW, "scale=smoke", f"init_row={{optim.lr:{own}}}"])
    assert identity(plain(without)) == identity(plain(same))  # it says what the row has anyway


def test_a_sweep_trains_the_row_with_its_settings_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    everything(tmp_path)
    (tmp_path / "a folder").mkdir()
    (tmp_path / "text.txt").rename("a folder/novels.txt")
    words = [ROW, "scale=smoke", OWN, f"data.path={tmp_path}/es_glue"]
    (first,) = prerequisites(plan([words], keep=False))
    assert first.config["data"]["path"] == "a folder/novels.txt"
    assert first.identity == plain(compose(words))["init_run"]


def test_rows_that_start_from_no_row_do_not_get_it(capsys: pytest.CaptureFixture[str]) -> None:
    scratch._say.cache_clear()
    planned = cells._planned(load(TABLE), ["scale=smoke", OWN], [0])
    without = {job.row for job in planned if OWN not in job.overrides}
    assert without == {row.name for row in load(TABLE).rows if row.name[:4] in ("beto", "mari")}
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(OWN)
    assert all(row in line for row in without)
    assert "transformer_stsb" not in line


@pytest.mark.parametrize(
    ("value", "word"),
    [
        ('"it\'s"', r"data.path='it\'s'"),
        ("[a,b]", "data.path=['a','b']"),
        ("null", "data.path=null"),
        ("1.5", "data.path=1.5"),
        ("a/b-c.txt", "data.path=a/b-c.txt"),
    ],
)
def test_values_are_written_as_the_command_line_takes_them(value: str, word: str) -> None:
    words = row_overrides(f"row:{BODY}/transformer", [f"init_row={{data.path:{value}}}"])
    assert words == [f"+{BODY}=transformer", word]


def test_a_teacher_has_no_part_in_the_row_that_its_student_starts_from() -> None:
    words = teacher_overrides("row:bitnet_qdyt/main/bert_base", ["seed=1", OWN])
    assert words == ["+bitnet_qdyt/main=bert_base", "seed=1"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([f"+{TABLE}=beto_stsb", OWN], r"starts? from none; leave it out"),
        (["mixer=retnet", "init_row={data:text}"], r"init_row= \(data\).*starts? from none"),
        ([f"init_from=row:{BODY}/nope"], rf"^the row of init_from=row:{BODY}/nope.* is not known"),
        ([ROW, "init_row=text"], r"init_row=text has no keys with values; write 'init_row={data:"),
        ([ROW, "init_row={data:txet}"], rf"row:{BODY}/transformer: data=txet.*did you mean 'text'"),
        ([ROW, "init_row={dta.path:a}"], rf"row:{BODY}/transformer: dta\.path.*'data\.path'"),
    ],
)
def test_what_it_cannot_be_is_one_line(words: list[str], said: str) -> None:
    with pytest.raises(UserError, match=said) as error:
        compose(words)
    assert "\n" not in str(error.value)


def _quoted(word: str) -> str:
    key, _, value = word.partition("=")
    return f"{key}='{value}'" if " " in value else word
