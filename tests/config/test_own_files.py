"""Files of a user's folder are checked as strictly as command lines: one line says where."""

from __future__ import annotations

from pathlib import Path

import pytest

from chimera.config.compose import compose
from chimera.config.tables import load
from chimera.errors import UserError
from tests.config.folders_kit import folders

SCALE = "_target_: chimera.config.settings.Scale\n"
PRESET = "# @package _global_\n"
PATTERN = "_target_: chimera.mixer.pattern.pattern\n_partial_: true\ncycle: [retnet]\n"
TABLE = """table:
  title: Widths
  source: none
  metric: val/perplexity
  better: lower
  reference: a
  note: ours
"""
HEAD = "row,column,value,unit,source,note\n"
RATES = "scale,row,rate,seed,value,steps\n"
#: Words, a file, its text, what the line says.
CHOICES = [
    ("scale=mine", "values: {model.dimm: 3}", "sets model.dimm, .* did you mean 'model.dim'"),
    ("scale=mine", "bounds: {mdel.dim: 3}", "sets mdel.dim, which is no key"),
    ("scale=mine", "values: {model: 3}", "sets model, which is a mapping"),
    ("scale=mine", "bounds: [1]", r"mine: bounds=\[1\] is not allowed"),
    ("scale=mine", "bounds: {model.dim: x}", r"mine: bounds\.model\.dim=x is not allowed"),
    ("scale=mine", "valuess: {seed: 1}", "mine: valuess .* did you mean 'values'"),
    ("scale=mine", "choices: {dta: pydocs}", r"mine: choices\.dta .* did you mean 'data'"),
    ("scale=mine", "choices: {data: pydcs}", r"mine: choices\.data=pydcs .* did you mean 'pydocs'"),
    ("scale=mine", "bounds: {a: [", r"mine\.yaml.*line"),
    (
        "preset=mine",
        "at: {smal: {bounds: {model.dim: 3}}}",
        "mine: at.smal .* did you mean 'small'",
    ),
    ("preset=mine", "at: {small: 3}", "mine: at.small=3 is not allowed"),
    ("preset=mine", "at: {none: {bounds: {model.dimm: 3}}}", "sets model.dimm"),
    ("preset=mine", "with: {positon: rope}", r"mine: with\.positon .* did you mean 'position'"),
    ("preset=mine", "init_from: 3", "init_from=3 is not allowed"),
    ("preset=mine", "mixer: 3", "mixer.*names no class"),
    ("preset=mine", "model: {dim: 2024-13-45, depth: [}", r"mine\.yaml.*line"),
    ("mixer=mine", "gain: 1", "mixer.* names no class"),
]
TABLES = [
    ("t.yaml", "tabel: {}", "holds no mapping table:"),
    ("t.yaml", TABLE.replace("note", "nte"), "table.nte .* did you mean 'note'"),
    ("t.yaml", TABLE.replace("reference: a", "reference: zz"), "reference=zz is not known"),
    ("t.yaml", TABLE.replace("lower", "lowest"), "better=lowest .* did you mean 'lower'"),
    ("t.yaml", TABLE.replace("  title: Widths\n", ""), "table.title is missing"),
    ("t.yaml", "table: [", r"t\.yaml cannot be read"),
    ("t.csv", f"{HEAD}a,c,,u,s,n\n", "line 2, value"),
    ("t.csv", f"{HEAD}zz,c,1,u,s,n\n", "row=zz is not known"),
    ("t.csv", f"{HEAD}a,c,nan,u,s,n\n", "line 2, value"),
    ("t.csv", f"{HEAD}a,c,1,u,s,n,more\n", "is no column"),
    ("t.csv", HEAD.replace("value", "valeu"), "valeu is no column; did you mean 'value'"),
    ("t.rates.csv", f"{RATES}small,zz,1,0,1,1\n", "row=zz is not known"),
    ("t.rates.csv", f"{RATES}smal,a,1,0,1,1\n", "scale=smal .* did you mean 'small'"),
]


@pytest.mark.parametrize(("words", "text", "says"), CHOICES)
def test_a_mistake_in_a_choice_is_one_line(
    words: str, text: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = words.partition("=")[0]
    file = tmp_path / group / "mine.yaml"
    file.parent.mkdir()
    file.write_text({"scale": SCALE, "preset": PRESET, "mixer": ""}[group] + text + "\n")
    with folders(monkeypatch, tmp_path), pytest.raises(UserError, match=says) as error:
        compose([words])
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("name", "text", "says"), TABLES)
def test_a_mistake_in_a_table_is_one_line(
    name: str, text: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "p/t").mkdir(parents=True)
    for row in "ab":
        (tmp_path / f"p/t/{row}.yaml").write_text(f"{PRESET}# Row {row}\n")
    (tmp_path / "p/t.yaml").write_text(TABLE)
    with folders(monkeypatch, tmp_path):
        assert [row.name for row in load("p/t").rows] == ["a", "b"]
        (tmp_path / "p" / name).write_text(text)
        with pytest.raises(UserError, match=says) as error:
            compose(["+p/t=a"]) if name == "t.rates.csv" else load("p/t")
    assert "\n" not in str(error.value)


def test_a_member_of_a_pattern_without_a_class_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not another one, which is right."""
    from chimera.config.compose import plain
    from chimera.train.check import check_settings

    (tmp_path / "mixer").mkdir()
    (tmp_path / "mixer/mine.yaml").write_text(f"{PATTERN}members: {{retnett: {{heads: 2}}}}\n")
    with folders(monkeypatch, tmp_path), pytest.raises(UserError, match=r"members\.retnett names"):
        check_settings(plain(compose(["mixer=mine", f"run_dir={tmp_path}/run"])))


def test_a_mixer_needs_no_word_of_hydras(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mixer").mkdir()
    (tmp_path / "mixer/mine.yaml").write_text("_target_: chimera.mixer.retnet.Retention\n")
    with folders(monkeypatch, tmp_path):
        assert compose(["mixer=mine"]).mixer._partial_ is True
