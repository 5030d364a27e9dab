"""`chimera compare`: what differs, the order, the curves, and strangers' files."""

from __future__ import annotations

import copy
import csv
import json
import math
import os
import re
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from chimera.callback.log.steps import FIELDS
from chimera.cli.folders import compare as main
from chimera.config.compose import compose, plain
from chimera.report.comparison import Run, collect, compare, differing, directories
from tests.rundir.kit import write_run


def run(folder: Path, words: list[str], value: float | None) -> Path:
    """Write a run with invented results; without a value it is not finished."""
    return write(folder, plain(compose(["scale=smoke", *words])), value)


def write(folder: Path, config: dict[str, Any], value: float | None, steps: int = 30) -> Path:
    record = {
        "metrics": {"val/perplexity": value, "val/accuracy": 0.5},
        "tokens_per_second": 1000.0,
        "peak_memory_gb": 0.5,
        "flops": {"training": 2.0},
    }
    status = {"state": "DONE" if value else "FAILED"}
    return write_run(folder, config, record if value else None, status=status, steps=steps)


@pytest.fixture
def three(tmp_path: Path) -> list[Path]:
    """Two seeds of a mixer and one of another."""
    root = tmp_path / "runs"
    return [
        run(root / "a0", ["mixer=retnet"], 12.0),
        run(root / "a1", ["mixer=retnet", "seed=1"], 14.0),
        run(root / "b0", ["mixer=gqa"], 10.0),
    ]


def test_groups_are_by_what_differs_best_first(three: list[Path]) -> None:
    runs, broken = collect(three)
    (found,) = compare(runs).tables
    assert (found.keys, found.metric, found.better, broken) == (
        ("mixer",), "val/perplexity", "lower", {},
    )  # fmt: skip
    best, second = found.groups
    assert best.values == {"mixer": "gqa"}
    assert best.result is not None
    assert (best.result.mean, best.result.std) == (10.0, None)
    assert second.result is not None
    assert (second.result.mean, second.result.n) == (13.0, 2)
    assert second.result.std == pytest.approx(math.sqrt(2))
    assert [group.values for group in compare(runs, better="higher").groups] == [
        second.values, best.values,
    ]  # fmt: skip


def test_keys_of_a_choice_count_where_runs_of_it_differ(tmp_path: Path) -> None:
    words = [["mixer=retnet"], ["mixer=gqa"], ["mixer=gqa", "mixer.kv_heads=1", "optim.lr=0.01"]]
    runs, _ = collect(run(tmp_path / str(n), w, 9.0 + n) for n, w in enumerate(words))
    assert differing([run.settings for run in runs]) == ["mixer", "optim.lr", "mixer.kv_heads"]
    by_mixer = compare(runs, by=["mixer"])
    assert [len(group.runs) for group in by_mixer.groups] == [1, 2]


def test_only_finished_runs_of_one_task_data_and_budget_are_averaged(
    three: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = three[0].parent
    causal = run(root / "causal", ["mixer=retnet", "task=causal_lm"], 100.0)
    run(root / "text", ["mixer=retnet", "data.max_bytes=200000"], 3.0)
    run(root / "long", ["mixer=gqa", "trainer.max_steps=60"], 2.0)
    run(root / "large", ["mixer=gqa", "data.batch_size=16"], 1.0)
    halves = ["mixer=gqa", "data.batch_size=4", "trainer.accumulate_grad_batches=2"]
    run(root / "halves", halves, 20.0)  # as many tokens
    for seed in (2, 3):
        run(root / f"failed{seed}", ["mixer=retnet", f"seed={seed}"], None)
    assert main([str(root), "by=mixer", f"out={tmp_path}/out"]) == 0
    said = capsys.readouterr().out
    differ = "task, tokens per step, data.max_bytes, trainer.max_steps"
    line = f"6 tables: runs that differ in {differ} or are not finished are not averaged or ranked"
    assert line in said
    rows = list(csv.DictReader((tmp_path / "out/compare.csv").open()))
    first = "task=mlm, tokens per step=512, data.max_bytes=300000, trainer.max_steps=12"
    found = [(row["mixer"], row["val/perplexity"], row["runs"]) for row in rows]
    assert found[:2] == [("retnet", "13.0", "2"), ("gqa", "15.0", "2")]
    assert sorted(found[2:6]) == [("gqa", "1.0", "1"), ("gqa", "2.0", "1"),
                                  ("retnet", "100.0", "1"), ("retnet", "3.0", "1")]  # fmt: skip
    assert found[6:] == [("retnet", "", "failed")] * 2
    assert [row["table"] for row in rows[:2]] == [first, first]
    assert [row["table"] for row in rows[6:]] == ["not finished"] * 2
    page = (tmp_path / "out/compare.html").read_text()
    assert line in page
    assert page.count('<table class="rows">') == 6
    drawn = json.loads(re.search(r'id="data">(.*?)</script>', page)[1])["series"]  # type: ignore[index]
    assert [each["shown"] for each in drawn] == [first in each["label"] for each in drawn]
    assert any(each["shown"] for each in drawn)
    assert len(compare(collect([causal])[0]).tables) == 1


def test_runs_that_differ_in_more_than_the_seed_are_not_called_seeds(
    three: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = three[0].parent
    run(root / "half", ["mixer=gqa", "precision=bf16"], 11.0)
    assert main([str(root), "by=mixer", f"out={tmp_path}/out"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "2 seeds" in said
    assert "2 runs that differ in precision" in said
    assert "average runs that differ in precision: their ± is not that of seeds alone" in said
    page = (tmp_path / "out/compare.html").read_text()
    assert page.count("2 runs that differ in precision") == 2  # in the table and in the legend
    rows = {row["mixer"]: row for row in csv.DictReader((tmp_path / "out/compare.csv").open())}
    assert {name: row["differ in"] for name, row in rows.items()} == {
        "gqa": "precision", "retnet": "",
    }  # fmt: skip
    apart = compare(collect([*three, root / "half"])[0])
    assert [group.differ for group in apart.groups] == [[], [], []]
    assert not apart.notes


def test_copies_of_a_run_and_repeats_of_a_seed_are_no_more_seeds(
    three: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, *_, other = three
    shutil.copytree(one, tmp_path / "backup/a0")
    (tmp_path / "link").symlink_to(one)
    places = [str(one), str(tmp_path / "link"), str(tmp_path / "backup"), str(other)]
    assert main([*places, f"out={tmp_path}/out"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "2 runs, lower" in said
    assert f"{tmp_path}/backup/a0, a copy of {one}, are left out" in said
    record = json.loads((one / "run.json").read_text())
    record["metrics"]["val/perplexity"] = 12.5  # another machine
    (tmp_path / "backup/a0/run.json").write_text(json.dumps(record))
    found = compare(collect(directories([tmp_path / "backup", *three]))[0])
    assert {group.count for group in found.groups} == {"1 seed", "3 runs of 2 seeds"}


def test_the_better_side_is_that_of_the_table_or_of_whole_words(three: list[Path]) -> None:
    runs, _ = collect(three)
    for each in runs:
        each.metrics.update({"val/glossary_accuracy": 0.5, "val/bits_per_byte": 1.0})
    for name, better in (("val/glossary_accuracy", "higher"), ("val/bits_per_byte", "lower")):
        assert compare(runs, metric=name).tables[0].better == better


def test_the_command_writes_a_page_that_loads_nothing(
    three: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert main([str(three[0].parent), f"out={out}"]) == 0
    assert "3 runs, lower val/perplexity first" in capsys.readouterr().out
    rows = list(csv.DictReader((out / "compare.csv").open()))
    assert [row["mixer"] for row in rows] == ["gqa", "retnet"]
    assert float(rows[1]["val/perplexity"]) == 13.0
    page = (out / "compare.html").read_text()
    assert not re.findall(r'(?:src|href)="(?:https?:)?//', page)
    assert '<a href="../runs/a0/"' in page
    data = json.loads(page.partition('id="data">')[2].partition("</script>")[0])
    assert [len(each["curves"]["steps"]) > 0 for each in data["series"]] == [True, True]
    steps, tokens, flops = (
        data["series"][0]["curves"][axis][-1][0] for axis in ("steps", "tokens", "FLOPs")
    )
    assert (steps, tokens, flops) == (30, 30 * 8 * 64, 2 * 30 * 8 * 64)
    assert (out / "compare.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (out / "compare.svg").read_text()


def test_strangers_text_is_text(tmp_path: Path) -> None:
    bad = "</script><script>alert(1)</script>"
    paths = []
    for number, lr in enumerate((bad, "=cmd|'/c calc'!A0", "\x1b[31m$x$")):
        config = plain(compose(["scale=smoke"]))
        config["optim"]["lr"] = lr
        config["seed"] = '"><img src=x onerror=alert(1)>'
        name = tmp_path / "runs" / f"<b>&{number}"
        paths.append(write(name, config, 5.0 + number, steps=3))
    (paths[0] / "status.json").write_text(json.dumps({"state": "<i>DONE"}))
    out = tmp_path / "out"
    assert main([str(tmp_path / "runs"), f"out={out}"]) == 0
    page = (out / "compare.html").read_text()
    assert page.count("<script") == 2
    assert not re.search(r"<(?:img src=x|b>|i>)", page)
    assert "\x1b" not in page
    cells = [row["optim.lr"] for row in csv.DictReader((out / "compare.csv").open())]
    assert "'=cmd|'/c calc'!A0" in cells


def test_keys_pipes_and_links_of_strangers_are_text_and_are_not_followed(
    three: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    odd, linked, piped = three
    config = yaml.safe_load((odd / "config.yaml").read_text())
    (odd / "config.yaml").write_text(yaml.safe_dump(config | {"\x1b[31mred": 1, 7: "\x1b"}))
    (linked / "run.json").unlink()
    (linked / "run.json").symlink_to(tmp_path / "secret.json")
    (tmp_path / "secret.json").write_text('{"metrics": {"val/perplexity": 1.0}}')
    (linked.parent / "device").mkdir()
    (linked.parent / "device/config.yaml").write_text("a: 1")
    (linked.parent / "device/status.json").write_text("{}")
    (linked.parent / "device/steps.csv").symlink_to("/dev/zero")
    (piped / "steps.csv").unlink()
    os.mkfifo(piped / "steps.csv")
    assert main([str(odd.parent), f"out={tmp_path}/out"]) == 0
    said = capsys.readouterr().out
    assert "?[31mred" in said
    assert said.count("is a link out of its directory") == 2
    written = [(tmp_path / f"out/compare.{kind}").read_text() for kind in ("csv", "html", "svg")]
    assert not any("\x1b" in text for text in [said, *written])


def test_a_damaged_run_hides_no_other(three: list[Path], tmp_path: Path) -> None:
    (three[0] / "run.json").write_text("{")
    (three[1] / "config.yaml").write_text("data: &a [1]\nx: *a\n")
    huge = json.loads((three[2] / "run.json").read_text()) | {"peak_memory_gb": 10**400}
    huge["metrics"] |= {"odd\nname": math.nan}
    (three[2] / "run.json").write_text(json.dumps(huge))
    with (three[2] / "steps.csv").open("a") as file:
        file.write("2026-01-01T00:00:00,0,1e999,1e999,inf,0,0,0,1,0,0\n")
    runs, broken = collect(three)
    assert [each.path.name for each in runs] == ["b0"]
    assert "peak_memory_gb" not in runs[0].facts
    assert runs[0].log[-1][0] == 30
    assert "alias" in broken[three[1]]
    assert main([str(three[0].parent), f"out={tmp_path}/out"]) == 0
    assert "alias" in (tmp_path / "out/compare.html").read_text()


def test_pauses_and_torn_rows_are_left_out(tmp_path: Path) -> None:
    log = tmp_path / "steps.csv"
    times = [0, 1, 2, 4000, 4001]
    rows = [f"2026-01-01T{t // 3600:02}:{t // 60 % 60:02}:{t % 60:02}+00:00" for t in times]
    lines = [f"{at},0,{n},{n},{5 - n},0,0,0,1,0,0" for n, at in enumerate(rows, 1)]
    log.write_text("\n".join([",".join(FIELDS), *lines, "2026-01-01T02:0"]))
    points = Run(tmp_path, "DONE", {}).log
    assert points[:, 0].tolist() == [1, 2, 3, 4, 5]
    assert points[2][2] == 2
    assert points[-1][2] < 60
    assert not len(Run(tmp_path / "missing", "DONE", {}).log)


def test_files_of_runs_elsewhere_are_beside_them(three: list[Path]) -> None:
    assert main([str(path) for path in three]) == 0
    (folder,) = (three[0].parent / "compare").iterdir()
    assert folder.name.startswith("mixer-")
    assert (folder / "compare.html").is_file()


def test_folders_and_runs_can_be_named_together(three: list[Path]) -> None:
    root = three[0].parent
    assert directories([three[2], root]) == [three[2], *three[:2]]


@pytest.mark.slow
def test_a_thousand_runs_in_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHIMERA_RUNS", str(tmp_path / "runs"))
    base = {m: plain(compose([f"mixer={m}", "scale=small"])) for m in ("gqa", "retnet")}
    for number in range(1000):
        config = copy.deepcopy(base["gqa" if number % 2 else "retnet"])
        config["seed"], config["optim"]["lr"] = number % 5, 1e-3 * (1 + number // 10)
        write(tmp_path / "runs" / f"r{number}", config, 5 + number % 7, steps=1000)
    began = time.process_time()
    assert main([str(tmp_path / "runs"), f"out={tmp_path}/out"]) == 0
    assert time.process_time() - began < 60
    page = (tmp_path / "out/compare.html").read_text()
    assert page.count("<tr>") == 201
