"""What belongs to the identity of a run, and to its text: runs on other text are named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from chimera.config.compose import compose, plain
from chimera.errors import UserError
from chimera.report.comparison import collect, compare
from chimera.report.markdown import report
from chimera.report.table_results import read_results
from chimera.rundir.directory import RunDir
from chimera.rundir.identity import (
    SETTINGS,
    TOKENS,
    Text,
    apart,
    check_text,
    differences,
    identity,
    settings_hash,
    text_of,
)
from tests.rundir.kit import a_run

DATA = ("data=text", "data.path=README.md")


def test_a_callback_of_ones_own_belongs_to_the_run_and_ours_do_not() -> None:
    usual = plain(compose([*DATA]))
    quiet = plain(compose([*DATA, "callbacks.progress=null", "guard=skip"]))
    mine = plain(compose([*DATA, "+callbacks.mine._target_=mine.Ema", "+callbacks.mine.decay=0.9"]))
    assert identity(usual) == identity(quiet)
    assert identity(usual) != identity(mine)
    assert differences(usual, mine) == [
        "callbacks.mine._target_=None there, mine.Ema here",
        "callbacks.mine.decay=None there, 0.9 here",
    ]


TABLE = "bitnet_qdyt/norms"


def on(run: Path, tokens: str, settings: str = "s") -> Path:
    """The run with these hashes in its record."""
    record = json.loads((run / "run.json").read_text())
    record["data"] |= {TOKENS: tokens, SETTINGS: settings}
    (run / "run.json").write_text(json.dumps(record))
    return run


def test_only_runs_of_the_same_settings_are_compared() -> None:
    same = [Text("a", "1" * 64), Text("b", "2" * 64), None, Text("a", "1" * 64)]
    assert apart(same) == ""
    line = apart([*same, Text("a", "3" * 64)])
    assert "2 runs on 11111111 and 1 run on 33333333" in line
    assert "\n" not in line
    assert text_of({"data": {TOKENS: "x"}}) is None
    assert text_of({"data": [1]}) is None


def test_the_hash_is_of_what_decides_the_tokens() -> None:
    config = plain(compose(["scale=smoke"]))
    same = plain(compose(["scale=smoke", "data.batch_size=4", "norm=dyt", "data.num_workers=1"]))
    other = plain(compose(["scale=smoke", "tokenizer.vocab_size=500"]))
    assert settings_hash(config) == settings_hash(same) != settings_hash(other)


def test_reports_and_comparisons_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHIMERA_RUNS", str(tmp_path / "runs"))
    made = []
    for number, row in enumerate(("layernorm", "qdyt")):
        run = a_run(tmp_path / "runs", [f"+{TABLE}={row}", "scale=smoke", "seed=0"])
        made.append(on(run, str(number) * 64))
    sentence = "Runs with the same settings were trained on different text"
    assert sentence in report(read_results(TABLE, ["scale=smoke"], [0]))
    assert compare(collect(made)[0]).notes[-1].startswith(sentence)
    on(made[1], "0" * 64)
    assert sentence not in report(read_results(TABLE, ["scale=smoke"], [0]))
    assert not compare(collect(made)[0]).notes


def test_a_run_goes_on_with_its_text_only(tmp_path: Path) -> None:
    check_text(tmp_path, "1" * 64)
    RunDir(tmp_path).start(plain(compose(["scale=smoke"])), [], {TOKENS: "1" * 64})
    check_text(tmp_path, "1" * 64)
    with pytest.raises(UserError, match=r"began on other text \(tokens 11111111, here 22222222\)"):
        check_text(tmp_path, "2" * 64)
    assert "python" in json.loads((tmp_path / "environment.json").read_text())
