"""A directory and its configuration belong together: refused, resumed, extended.

One run is trained. Its copies stand for the states in which a command may find a directory.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import yaml

from chimera.cli.train import main
from tests.safety.kit import digest
from tests.train import tiny
from tests.train.tiny import losses, same

STEPS = 8
LINE = [*tiny.LINE, tiny.CONSTANT]
SHORT = f"trainer.max_steps={STEPS}"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the text, its cache, the run of 8 steps and one of 12 steps."""
    return tiny.trained(tmp_path_factory.mktemp("home"), finished=STEPS, long=12)


@pytest.fixture
def there(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fresh folder with `finished/`, `stopped/` and `killed/`."""
    for name in ("text.txt", "cache"):
        (tmp_path / name).symlink_to(home / name)
    for name in ("finished", "stopped", "killed"):
        shutil.copytree(home / "finished", tmp_path / name, symlinks=True)
    for name in ("stopped", "killed"):
        run = tmp_path / name
        (run / "run.json").unlink()
        for file in (run / "checkpoints").glob("*-[68].ckpt*"):
            file.unlink()
        status = json.loads((run / "status.json").read_text())
        state = {"state": "STOPPED"} if name == "stopped" else {"state": "RUNNING", "process": "1"}
        (run / "status.json").write_text(json.dumps(status | state))
    monkeypatch.chdir(tmp_path)
    return tmp_path


LONGER = "trainer.max_steps=12"
OWN = [*LINE, SHORT]
#: Directory, command, and what its one line says.
NOT_BELONGING: list[tuple[str, list[str], str]] = [
    ("finished", [*OWN, "mixer=attention"], "mixer=retnet there, attention here"),
    ("finished", [*OWN, "optim.lr=0.5"], "optim.lr=0.002 there, 0.5 here"),
    ("finished", [*LINE, LONGER], "trainer.max_steps=8 there, 12 here"),
    ("finished", [*LINE, "trainer.max_steps=4", "extend=true"], "not more than the 8 steps"),
    ("finished", [*OWN, "extend=true"], "not more than the 8 steps"),
    ("finished", [*LINE, LONGER, "extend=true", "optim.lr=0.5"], "optim.lr=0.002 there, 0.5 here"),
    ("finished", [*LINE, LONGER, "extend=true", "overwrite=true"], "choose one of them"),
    ("finished", [*LINE, "trainer.max_epochs=2", "extend=true"], "counts in trainer.max_steps"),
    ("stopped", [*OWN, "quant=bitnet158"], "quant=none there, bitnet158 here"),
    ("stopped", [*LINE, LONGER, "extend=true"], "is STOPPED; leave extend=true out"),
    ("killed", [*OWN, "optim.schedule._target_=chimera.optim.schedule.wsd"], "optim.schedule"),
    ("killed", [*LINE, LONGER, "extend=true"], "is RUNNING; leave extend=true out"),
    ("empty", [*OWN, "extend=true"], "holds none; name its directory"),
]


@pytest.mark.parametrize(("name", "command", "says"), NOT_BELONGING)
def test_a_pair_that_does_not_belong_together_is_refused_before_a_byte_changes(
    name: str, command: list[str], says: str, there: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = digest(there)
    assert main([*command, f"run_dir={name}"]) == 2
    line = capsys.readouterr().err
    assert line.startswith("error: ")
    assert line.count("\n") == 1
    assert says in line
    assert digest(there) == before


@pytest.mark.parametrize(
    "change",
    [
        ["name=other", "guard=skip", "trainer.checkpoint_keep=1", "launcher.threads=1"],
        *(
            pytest.param(change, marks=pytest.mark.slow)
            for change in (
                ["data.num_workers=1", "workers=2"],
                ["trainer.accelerator=auto", "trainer.devices=1", "trainer.threads=1"],
                ["logger=csv", "trainer.log_every_n_steps=1", "trainer.progress=lines"],
            )
        ),
    ],
    ids=lambda change: change[0],
)
def test_a_run_resumes_to_the_same_bits_with_other_workers_devices_loggers_names(
    change: list[str], there: Path
) -> None:
    assert main([*OWN, *change, "run_dir=stopped"]) == 0
    assert same(there / "stopped", there / "finished")
    assert json.loads((there / "stopped/status.json").read_text())["state"] == "DONE"


def test_a_finished_run_is_extended_to_the_bits_of_the_longer_run(
    there: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [*LINE, LONGER, "extend=true", "run_dir=finished"]
    before = (there / "finished/run.json").read_text()
    assert main(command) == 0
    assert "extending from 8 to 12 steps" in capsys.readouterr().err
    run = there / "finished"
    assert same(run, home / "long")  # the rates are constant
    record, config = json.loads((run / "run.json").read_text()), (run / "config.yaml").read_text()
    (extension,) = record["extended"]
    assert (extension["from"], extension["to"], record["steps"]) == (8, 12, 12)
    assert yaml.safe_load(config)["extended"] == record["extended"]
    assert yaml.safe_load(config)["trainer"]["max_steps"] == 12
    assert (run / "run-8.json").read_text() == before
    done = digest(run)
    assert main(command) == 0  # the same command again shows the run
    said = capsys.readouterr().err
    assert "done already" in said
    assert "other text" not in said
    text = (there / "text.txt").read_text()
    (there / "text.txt").write_text(f"{text}\n\nOne more.")
    assert main(command) == 0
    assert "it was trained on other text than its settings give now" in capsys.readouterr().err
    (there / "text.txt").write_text(text)
    assert digest(run) == done
    # It is neither the run of 8 steps nor the one of 12.
    for steps in (SHORT, LONGER):
        assert main([*LINE, steps, "run_dir=finished"]) == 2
        assert "extended=" in capsys.readouterr().err
    assert record["identity"] not in (
        json.loads(text)["identity"] for text in (before, (home / "long/run.json").read_text())
    )


def test_an_extension_that_was_stopped_goes_on_by_the_same_command(there: Path, home: Path) -> None:
    command = [*LINE, LONGER, "extend=true", "run_dir=finished"]
    assert main([*command, "trainer.max_time=00:00:00:00"]) == 130
    run = there / "finished"
    assert tiny.state(run) == "STOPPED"
    assert len(losses(run)) == 9
    (extension,) = yaml.safe_load((run / "config.yaml").read_text())["extended"]
    assert main(command) == 0
    assert same(run, home / "long")
    assert tiny.record(run)["extended"] == [extension]
    assert tiny.record(run)["steps"] == 12


def test_an_extension_has_the_rates_of_the_longer_schedule(
    there: Path, home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cosine = [*LINE[:-1], "run_dir=cosine"]
    assert main([*cosine, "trainer.max_steps=4"]) == 0
    assert main([*cosine, "trainer.max_steps=8", "extend=true"]) == 0
    assert "from step 5 on" in (said := capsys.readouterr().err)
    assert "their factor goes from 0 to 0.5" in said
    rates = [float(row["learning_rate"]) / 2e-3 for row in losses(there / "cosine")]
    assert rates[:4] == pytest.approx([1.0, 0.853553, 0.5, 0.146447], abs=1e-6)
    assert rates[4:] == pytest.approx([0.5, 0.308658, 0.146447, 0.03806], abs=1e-6)
    # Whoever looks for the run of 4 steps by its identity does not find this one.
    (there / "runs").mkdir()
    monkeypatch.setenv("CHIMERA_RUNS", str(there / "runs"))
    from chimera.config.compose import compose, plain
    from chimera.rundir.directory import RunDir
    from chimera.rundir.identity import identity

    short = plain(compose([*LINE[:-1], "trainer.max_steps=4"]))
    (there / "cosine").rename(there / f"runs/x-{identity(short)}")
    assert RunDir.of(short).path.name == f"{short['name']}-{identity(short)}"
