"""Faults in a run: kills, damaged checkpoints, numbers that are not finite, full disks.

Each run ends in the numbers of the run that nothing happened to, bit by bit, or says in one line
why it does not.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
import time
import zipfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from chimera.rundir.checkpoint_io import load, write
from chimera.rundir.checkpoints import announce, read_sidecar, sidecar_path
from tests import forks
from tests.torture import job
from tests.train import tiny


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("torture")


#: An epoch has 7 micro-batches: 1, 3, 5 are within an accumulation, 7, 14, 21 end an epoch.
KILLS: dict[str, tuple[int, ...]] = {
    "micro-batch": (1, 2, 3, 6, 7, 8, 13, 14, 15, 21, 22, 25),
    "update": (5, 9),
    "row": (1, 4, 7),
    "validation": (1, 2, 3),
    "save, writing": (1, 2, 4, 5, 6),
    "save, between": (2, 5),
    "save, named": (3, 6),
    "test": (1,),
}
#: That of `make test`.
FAST = ("save, between", 5, 2)
CASES = [
    pytest.param(moment, number, workers, marks=[pytest.mark.slow] * (case != FAST))
    for workers in (0, 2)
    for moment, numbers in KILLS.items()
    for number in numbers
    for case in [(moment, number, workers)]
]


@pytest.mark.parametrize(("moment", "number", "workers"), CASES)
def test_a_killed_run_goes_on(moment: str, number: int, workers: int, folder: Path) -> None:
    command = job.new(folder, "killed", f"data.num_workers={workers}")
    assert job.train(command, f"faults.kill_at({moment!r}, {number})")[0] == -signal.SIGKILL
    job.resumed(command, job.whole(folder))


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGTERM,
        *(pytest.param(s, marks=pytest.mark.slow) for s in (signal.SIGINT, signal.SIGHUP)),
    ],
)
def test_an_interrupted_run_saves_and_goes_on(number: signal.Signals, folder: Path) -> None:
    if signal.getsignal(number) == signal.SIG_IGN:
        pytest.skip("under nohup the signal is ignored, in the run too")
    command, run = job.new(folder, "interrupted"), folder / "interrupted"
    process, deadline = forks.start("train.py", *command), time.monotonic() + 120
    while not (run / "steps.csv").exists() or len(job.rows(run)) < 4:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(number)
    code = process.wait().returncode
    if len(job.rows(run)) < 14:
        assert (code, tiny.state(run)) == (130, "STOPPED")
    job.resumed(command, job.whole(folder))


@pytest.mark.slow
def test_ten_kills(folder: Path) -> None:
    """Each about a step later than the one before; no row comes twice."""
    command = job.new(folder, "ten", "trainer.checkpoint_every_n_steps=1")
    moments = [("micro-batch", 3), ("update", 2), ("save, between", 2), ("micro-batch", 4)]
    moments.append(("save, writing", 2))
    for moment in moments * 2:
        assert job.train(command, f"faults.kill_at{moment}")[0] == -signal.SIGKILL
    job.resumed(command, job.whole(folder))
    steps = [row["global_step"] for row in job.rows(folder / "ten")]
    assert len(steps) == len(set(steps)) == 14


@pytest.mark.slow
def test_a_bad_step_is_skipped_and_counted_and_changes_no_weight(folder: Path) -> None:
    more = ("guard=skip", "guard.max_skips=2", "trainer.checkpoint_every_n_steps=1")
    command = job.new(folder, "skip", *more, "trainer.checkpoint_keep=99")
    code, said = job.train(command, "faults.poison('loss', 'nan', micro_batch=11)")
    assert code == 0, said
    run = folder / "skip"
    skipped = json.loads((run / "run.json").read_text())["skipped"]
    assert skipped == {"not_finite": 1, "scaler": 0}
    before, after, later = (job.load(run, f"rolling-{n}")["state_dict"] for n in (5, 6, 7))
    # α and the warm-up buffer are functions of the step and change in a skipped step too.
    same = [n for n in before if "alpha" not in n and "warm" not in n]
    assert all(job.equal(before[n], after[n]) for n in same)
    assert not job.equal(after, later)
    rows = job.rows(run)
    assert len(rows) == 14
    assert rows[5]["loss"] == "nan"


@pytest.mark.slow
def test_one_bad_step_more_than_may_be_skipped_stops_the_run(folder: Path) -> None:
    command = job.new(folder, "many", "guard=skip", "guard.max_skips=2", "optim.lr=1e-3")
    code, said = job.train(command, "faults.poison('loss', 'inf')")
    assert code == 1
    assert "2 steps were skipped before" in said
    assert len(list((folder / "many").glob("nan_report-*.json"))) == 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "number"), [("checkpoint", 1), ("checkpoint", 4), ("row", 5), ("sidecar", 3)]
)
def test_a_full_disk_is_one_line_and_damages_no_other_file(
    file: str, number: int, folder: Path
) -> None:
    """With free space the run goes on."""
    command, run = job.new(folder, "full"), folder / "full"
    code, said = job.train(command, f"faults.full_at({file!r}, {number})")
    assert code == 2
    assert said.count("error: no space left") == 1
    assert "Traceback" not in said
    json.loads((run / "status.json").read_text())
    assert not [p for p in run.rglob(".*") if p.name != ".lock"]
    assert (run / "steps.csv").read_bytes().endswith(b"\n")
    job.resumed(command, job.whole(folder))


@pytest.mark.slow
def test_after_an_exception_the_run_resumes_from_before_the_step(folder: Path) -> None:
    command = job.new(folder, "crash")  # in step 8; step 6 is saved
    fault = "faults.plant(faults.MaskedLM, 'training_step', 14, faults.fail)"
    assert job.train(command, fault)[0] == 1
    job.resumed(command, job.whole(folder), says="emergency.ckpt at step 7")


NEWEST = ("rolling-12.ckpt", "epoch-2.ckpt")


def truncate(folder: Path, share: float) -> None:
    file = folder / NEWEST[0]
    with file.open("r+b") as stream:  # in place, because the file has two names
        stream.truncate(int(file.stat().st_size * share))


def flip(folder: Path, record: int | None) -> None:
    """Flip a bit in the middle of the n-th tensor, weights first; None: in the header."""
    file, offset = folder / NEWEST[0], 10
    if record is not None:
        with zipfile.ZipFile(file) as archive:
            stored = [i for i in archive.infolist() if re.search(r"/data/\d+$", i.filename)]
        stored.sort(key=lambda i: int(i.filename.rpartition("/")[2]))
        offset = stored[record].header_offset + 128 + stored[record].file_size // 2
    data = bytearray(file.read_bytes())
    data[offset] ^= 4
    with file.open("r+b") as stream:
        stream.write(data)


def missing(folder: Path, link: bool) -> None:
    """The files are gone, not their checksums; or they are links to nothing."""
    for name in NEWEST:
        (folder / name).unlink()
        if link:
            (folder / name).symlink_to("/nowhere/at-all.ckpt")


def checksum(folder: Path, wrong: bool) -> None:
    """The checksums are gone, or one digit of each is another."""
    for file in (sidecar_path(folder / name) for name in NEWEST):
        text = file.read_text()
        digit = re.search(r'"sha256": \["(.)', text)
        assert digit
        file.unlink()
        if wrong:
            at = digit.start(1)
            file.write_text(text[:at] + ("1" if digit[1] == "0" else "0") + text[at + 1 :])


DAMAGES: dict[str, Callable[[Path], None] | None] = {
    **{f"truncated to {s:.0%}": partial(truncate, share=s) for s in (0, 0.01, 0.5, 0.99)},
    "bit flipped in the header": partial(flip, record=None),
    "bit flipped in a weight": partial(flip, record=0),
    "bit flipped in the optimiser's state": partial(flip, record=-1),
    "file missing": partial(missing, link=False),
    "link to nothing": partial(missing, link=True),
    "wrong checksum": partial(checksum, wrong=True),
    "no checksum": partial(checksum, wrong=False),
    "killed within the last save": None,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_run_goes_on_from_the_checkpoint_before(name: str, folder: Path) -> None:
    command, damage = job.new(folder, "damaged"), DAMAGES[name]
    if damage is None:
        job.train(command, "faults.kill_at('save of step', 12)")
    else:
        if not (folder / "broken").exists():
            job.train(job.new(folder, "broken"), "faults.kill_at('micro-batch', 22)")
        shutil.copytree(folder / "broken", folder / "damaged", symlinks=True)
        first, *others = (folder / "damaged/checkpoints" / name for name in NEWEST)
        for other in others:  # still two names of one file
            other.unlink()
            other.hardlink_to(first)
        damage(folder / "damaged/checkpoints")
    assert "rejected" in job.resumed(command, job.whole(folder), says="best-10.ckpt at step 10")


#: What else a checkpoint with a valid checksum may hold, by the key that is changed.
ODD = {
    "state_dict": {"model.body.norm.weight": torch.ones(3)},
    "loops": {"fit_loop": 3},
    "optimizer_states": [{"state": {0: "x"}, "param_groups": []}],
    "lr_schedulers": [7],
    "callbacks": {"Steps": {"tokens": "many"}},
}


@pytest.mark.slow
@pytest.mark.parametrize("key", ODD)
def test_a_checkpoint_of_something_else_is_refused_in_one_line(key: str, folder: Path) -> None:
    command = job.new(folder, "odd")
    if not (folder / "broken").exists():
        job.train(job.new(folder, "broken"), "faults.kill_at('micro-batch', 22)")
    shutil.copytree(folder / "broken", folder / "odd", symlinks=True)
    for name in NEWEST:
        file = folder / "odd/checkpoints" / name
        changed = {**load(file), key: ODD[key]}
        file.unlink()
        announce(file, replace(read_sidecar(file), sha256=[write(changed, file)]))
    code, said = job.train(command)
    assert (code, "Traceback" in said) == (2, False), said
    (line,) = [each for each in said.splitlines() if each.startswith("error: ")]
    assert ".ckpt" in line


PARTS = ["learning_rates", "gradients_not_finite", "gradients_large", "weights_not_finite"]
PARTS += ["batch", "memory", "configuration"]
VALUES = {"loss": "inf", "gradient": "nan", "weight": "nan"}


@pytest.mark.slow
@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_it_stops_the_run_before_the_update(precision: str, kind: str, folder: Path) -> None:
    more = (f"precision={precision}", "trainer.checkpoint_every_n_steps=1")
    reference = job.whole(folder, f"whole-{precision}", *more, "trainer.checkpoint_keep=99")
    # Under fp16 the scaler first attributes infinite gradients to its scale: it skips the step and
    # halves the scale, sixteen times from 65536 to 1.
    scaled = precision == "fp16" and kind == "gradient"
    run = folder / "nan"
    command = job.new(folder, "nan", *more, *(["trainer.max_steps=30"] if scaled else []))
    fault = f"{kind!r}, {VALUES[kind]!r}"
    # The 6th step's second micro-batch: 7 in the first epoch's 4 steps, then 4.
    code, said = job.train(command, f"faults.poison({fault}, micro_batch=11)")
    assert code == 1, said
    assert "Traceback" not in said
    (report,) = run.glob("nan_report-*.json")
    facts = json.loads(report.read_text())
    assert facts["kind"] == kind
    assert facts.keys() >= set(PARTS)
    assert report.with_suffix(".md").read_text().count("\n## ") == len(PARTS)
    assert facts["what"] in said
    assert report.with_suffix(".npz").exists()
    assert facts["step"] == 6 + 16 * scaled

    replay = [f"replay={report}"]
    code, said = job.train(replay, f"faults.poison({fault}, samples={facts['indices'][-1]})")
    assert code == 0, said
    # In the replay, a broken weight is broken from the first micro-batch of the step on.
    assert kind == "weight" or "to the bit" in said
    # Without the fault: the record contains these two.
    assert job.train(replay)[0] == (0 if kind == "weight" else 1)

    emergency = job.load(run, "emergency")
    assert all(t.isfinite().all() for t in emergency["state_dict"].values())
    assert emergency["global_step"] == facts["step"] - 1
    if not scaled:
        good = job.load(reference, f"rolling-{facts['step'] - 1}")
        for state in (emergency["state_dict"], good["state_dict"]):
            for name in [n for n in state if n.endswith("alpha")]:
                del state[name]  # a function of the step, and set before the fault
        for key in ("state_dict", "optimizer_states", "loops"):
            assert job.equal(emergency[key], good[key]), key
    for file in (run / "checkpoints").glob("*"):
        if not file.name.startswith("emergency"):
            file.unlink()
    job.resumed(command, None if scaled else reference, says="emergency.ckpt at step")
