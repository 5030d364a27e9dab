"""A job's W&B run, read back from the offline file by W&B's own tool."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests import forks
from tests.train.wandb_file import of, read_back

pytestmark = pytest.mark.slow  # its run takes seconds; tests/callback have each part


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Records of one row of a table, with experts in it, trained for a few steps."""
    root = tmp_path_factory.mktemp("runs")
    text = root / "text.txt"
    text.write_text("\n".join(f"The cat number {i} sees house {i % 7}.\n" for i in range(400)))
    words = ["+bitnet_qdyt/norms=qdyt", "ffn=moe", "scale=smoke", "seed=3", "model.dim=32"]
    words += ["data=text", f"data.path={text}", f"data.cache_dir={root / 'cache'}"]
    words += [
        "trainer.max_steps=4",
        "trainer.val_check_interval=2",
        "model.depth=1",
        "tokenizer=sentencepiece",
    ]
    words += ["callbacks.pictures.shortest=0"]
    ran = forks.run("train.py", *words, env={"CHIMERA_RUNS": str(root / "runs")})
    assert ran.returncode == 0, ran.stderr
    (file,) = (root / "runs").glob("*/wandb/offline-run-*/*.wandb")
    return read_back(file)


def test_a_job_says_what_it_is_a_row_of(records: list[dict[str, Any]]) -> None:
    (run,) = of(records, "run")
    assert run["run_group"] == "bitnet_qdyt/norms"
    assert run["job_type"] == "qdyt"
    config = run["config"]["update"]
    expected = {"table": "bitnet_qdyt/norms", "row": "qdyt", "seed": 3, "norm": "qdyt"}
    expected |= {"ffn": "moe", "mixer": "attention", "scale": "smoke", "trainer.max_steps": 4}
    assert {key: config[key] for key in expected} == expected
    assert config["parameters"] > config["parameters.norm"] > 0
    assert config["bytes"] > config["bytes.embedding.packed"] > 0
    doubled = ("parameters.total", "bytes.total.packed", "choices.mixer")
    assert not [key for key in doubled if key in config]
    assert run["tags"] == ["mlm", "attention", "scale=smoke"]
    assert run["display_name"].endswith(config["identity"])
    nested = [k for k, v in config.items() if isinstance(v, dict) and v and k != "_wandb"]
    assert not nested  # W&B groups and filters by flat keys only


def test_a_job_is_finished(records: list[dict[str, Any]]) -> None:
    (end,) = of(records, "exit")
    assert end.get("exit_code", 0) == 0


def test_charts_of_gradients_rates_experts_and_skipped_steps(records: list[dict[str, Any]]) -> None:
    points = [point["item"] for point in of(records, "history")]
    training = [point for point in points if "train/loss" in point]
    assert [point["trainer/global_step"] for point in training] == [1, 2, 3, 4]
    for point in training:
        by_component = [v for k, v in point.items() if k.startswith("grad_norm/")]
        assert len(by_component) > 3
        total = sum(norm**2 for norm in by_component) ** 0.5
        assert total == pytest.approx(point["train/grad_norm"], rel=1e-4)
        assert {k.removeprefix("grad_norm/") for k in point if k.startswith("grad_norm/")} == {
            k.removeprefix("lr/") for k in point if k.startswith("lr/")
        }
        assert any("load" in k for k in point if k.startswith("stats/"))
        assert point["guard/skipped"] == point["guard/scaler_skipped"] == 0
        assert "epoch" not in point  # train/epoch has it
    validated = [point["trainer/global_step"] for point in points if "val/loss" in point]
    assert validated == [2, 4]


def test_parts_and_samples_are_there(records: list[dict[str, Any]]) -> None:
    expected = {
        "model/parameters": "table-file",
        "model/settings": "table-file",
        "pictures/activations": "image-file",
        "pictures/weights": "image-file",
        "pictures/maps": "image-file",
        "samples": "table-file",
    }
    points = [point["item"] for point in of(records, "history")]
    kinds = {k.removesuffix("._type"): p[k] for p in points for k in p if k.endswith("._type")}
    assert kinds == expected
    summary = {key for each in of(records, "summary") for key in each.get("update", {})}
    assert {"val/perplexity", "test/perplexity", "val/unigram_perplexity"} <= summary


def test_a_job_of_a_sweep_is_grouped_by_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from chimera.rundir.directory import RunDir
    from tests.train.test_loggers import start

    monkeypatch.setenv("CHIMERA_SWEEP", "sweep-12345678:mixer,optim.lr")
    _, group, job = start(RunDir(tmp_path))
    assert group == "sweep-12345678"
    assert job == "mixer=attention optim.lr=0.002"
