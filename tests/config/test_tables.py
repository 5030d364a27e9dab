"""Every table of `experiments/` is found and complete, and each of its rows can be run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from chimera import dotted
from chimera.cli.train import main as train
from chimera.config.compose import compose, plain
from chimera.config.groups import groups
from chimera.config.start_model import pending, row_overrides
from chimera.config.tables import RowRun, jobs, load, load_computed, tables, title_of
from chimera.errors import UserError
from chimera.paths import EXPERIMENTS
from chimera.report.table_results import metric
from chimera.rundir.directory import RunDir
from chimera.rundir.identity import identity
from chimera.train.check import check
from tests.config.folders_kit import folders
from tests.config.kit import everything, here


def composed(job: RowRun) -> dict[str, Any]:
    return plain(compose(job.overrides))


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return everything(tmp_path_factory.mktemp("labelled"))


@pytest.mark.parametrize("name", tables())
def test_the_table_is_complete(name: str) -> None:
    table = load(name)
    rows, published = {row.name for row in table.rows}, table.published
    assert table.path == name
    assert table.reference in rows
    assert table.reference == table.rows[0].name or table.reference in {p.row for p in published}
    assert table.better in ("lower", "higher")
    assert table.title
    assert table.source
    assert rows == set(groups()[name])  # what Hydra's glob(*) finds
    assert all(title_of(EXPERIMENTS / name / f"{row}.yaml") != row for row in rows)
    text = (EXPERIMENTS / f"{name}.yaml").read_text()
    assert f"\n  rows: {len(rows)}\n" in text  # so that a lost or an additional row is noticed
    assert {p.row for p in published} <= rows
    assert len({(p.row, p.column) for p in published}) == len(published)
    assert all(p.source for p in published)
    if (file := EXPERIMENTS / f"{name}.csv").exists():
        assert published
        assert file.read_text().startswith("row,column,value,unit,source,note\n")


SCALES = ("smoke", "small", "medium", "paper")


def validated(config: dict[str, Any]) -> tuple[object, ...]:
    """What decides of which tokens a loss is: rows that are compared must agree in it."""
    data, trainer = config["data"], config["trainer"]
    batches, size = trainer["limit_val_batches"], data["batch_size"]
    sequences = batches * size if isinstance(batches, int) else (batches, size)
    return sequences, data.get("seq_len"), data["max_bytes"]


#: A table of each paper at the smallest scale.
FEW = list({name.split("/")[0]: name for name in tables()}.values())


@pytest.mark.parametrize(
    ("name", "scale", "every"),
    [
        *((name, "smoke", 0) for name in FEW),
        *(pytest.param(n, s, 1, marks=pytest.mark.slow) for n in tables() for s in SCALES),
    ],
)
def test_rows_compose_check_and_build(
    name: str,
    scale: str,
    every: int,
    labelled: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In any folder. With every=0 only the first and the last row; the slow tests have all rows."""
    monkeypatch.chdir(tmp_path)
    table = load(name)
    configs = {}
    planned = jobs(table, [f"scale={scale}"], [0])
    for job in planned if every else {job.row: job for job in (planned[0], planned[-1])}.values():
        configs[job.row] = composed(job)
        if words := here(configs[job.row], scale, labelled):
            configs[job.row] = plain(compose([*job.overrides, *words]))
    for row, config in configs.items():
        assert config["table"] == {"name": name, "row": row}
        check(config)  # builds on the meta device, too
        if config["choices"]["task"] == "causal_lm" and "dim" in config["model"]:
            length, most = config["data"]["seq_len"], config["model"]["max_len"]
            assert length <= most
            reach = length * max(config["task"]["longer"] or [1])
            assert reach <= most or config["choices"]["position"] != "learned"
    # Every row is a run of its own.
    assert len({identity(config) for config in configs.values()}) == len(configs)
    assert not every or len(configs) == len(table.rows)
    if table.metric in ("val/perplexity", "val/loss"):
        assert len({validated(config) for config in configs.values()}) == 1


def test_equal_rows_of_several_tables_are_one_run() -> None:
    def of(row: str) -> str:
        return identity(plain(compose([f"+{row}", "scale=small"])))

    full = ["main=bitnet_qdyt_base", "hadamard=all", "norms=qdyt", "ste=lsq", "ffn=swiglu"]
    assert len({of(f"bitnet_qdyt/{row}") for row in full}) == 1
    stable = ["ablations_first=full", "pattern=stable", "baselines=titan_first"]
    assert len({of(f"titan/{row}") for row in stable}) == 1
    assert of("titan/ablations_first=single_mixer") == of("titan/pattern=titan_attention")


def test_presets_have_the_published_configuration() -> None:
    for line in load("titan/config").published:
        if line.column != "parameters":
            assert dotted.get(plain(compose([f"preset={line.row}"])), line.column) == line.value


def test_there_is_a_job_for_each_row_and_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHIMERA_RUNS", str(tmp_path))
    found = jobs(load("bitnet_qdyt/norms"), ["scale=smoke"], [0, 1])
    assert [(job.row, job.seed) for job in found] == [
        (row, seed) for row in ("layernorm", "static_tanh", "qdyt") for seed in (0, 1)
    ]
    assert len({RunDir.of(composed(job)).path for job in found}) == 6
    with pytest.raises(UserError, match="no override of a table"):
        jobs(load("bitnet_qdyt/norms"), ["seed=3"], [0])
    with pytest.raises(UserError, match=r"did you mean 'bitnet_qdyt/norms'"):
        load("bitnet_qdyt/norm")


def test_a_misspelt_key_in_a_row_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row with `quant.hadamrd`, in another folder of experiments, of a preset with hadamard."""
    row = tmp_path / "paper" / "table"
    row.mkdir(parents=True)
    (row / "typo.yaml").write_text(
        "# @package _global_\ndefaults:\n  - override /preset: bitnet_qdyt_base\n"
        "quant:\n  hadamrd: none\n"
    )
    with (
        folders(monkeypatch, tmp_path),
        pytest.raises(UserError, match=r"hadamrd.*quant\.hadamard"),
    ):
        compose(["+paper/table=typo"])


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of all tables' runs: a row of several tables, or that others start from, runs once."""
    return tmp_path_factory.mktemp("runs")


@pytest.mark.slow
@pytest.mark.parametrize("name", tables())
def test_every_row_of_a_table_runs_at_smoke(
    name: str, runs: Path, monkeypatch: pytest.MonkeyPatch, labelled: Path
) -> None:
    monkeypatch.setenv("CHIMERA_RUNS", str(runs))
    monkeypatch.chdir(runs)  # as a user of the wheel does, outside of the checkout
    for job in jobs(load(name), ["scale=smoke", "logger=none", "trainer.progress=none"], [0]):
        words = [*job.overrides, *here(composed(job), "smoke", labelled)]
        config = plain(compose(words))
        if pending(config) is not None:
            assert train(row_overrides(config["init_from"], words)) == 0, job
        assert train(words) == 0, job
        assert metric(RunDir.of(config).record(), load(name).metric) is not None, job


def test_a_computed_table_names_a_module_of_ours_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder of tables may be a stranger's: its files choose no other program."""
    file = tmp_path / "mine.yaml"
    file.write_text("table: {title: t, source: s, computed: subprocess}\n")
    monkeypatch.setattr("chimera.config.tables.find", lambda name: file)
    with pytest.raises(UserError, match=r"computed=subprocess is no module of chimera\.tables"):
        load_computed("mine/table")
