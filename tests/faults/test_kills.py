"""A command killed at any of its writes: the same command then ends well, and nothing is lost."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from chimera.cli import train
from chimera.cli.finished import export
from chimera.cli.folders import clean, records
from chimera.cli.table import report
from chimera.config.tables import jobs, load
from chimera.sweep.local import Local, Start
from tests.cli.test_clean import age, make, state
from tests.faults.kit import forked
from tests.rundir.kit import a_run
from tests.safety.kit import TEXT, line

TABLE = ["bitnet_qdyt/norms", "scale=smoke"]
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate"}


def kill_at(moment: int, root: Path) -> Callable[[], None]:
    """Plants a SIGKILL into this process, at its n-th change of what is below a folder.

    Each opened, renamed or removed file and folder is a change. A file that is written anew has two
    moments: before it is opened, and when it is there and empty. Those of processes that it starts
    do not count.
    """
    passed = 0
    own = 0

    def step() -> None:
        nonlocal passed
        passed += 1
        if passed == moment:
            os.kill(os.getpid(), signal.SIGKILL)

    def hook(event: str, given: tuple[Any, ...]) -> None:
        nonlocal passed
        changes = event in CHANGES or (event == "open" and given[2] & WRITES)
        if not changes or isinstance(given[0], int) or passed >= moment or os.getpid() != own:
            return
        path = os.path.join(os.getcwd(), os.fsdecode(given[0]))
        beside = event in ("os.remove", "os.rmdir") and given[-1] != -1  # of an opened folder
        if not (beside or path.startswith(str(root))):
            return
        step()
        if event == "open" and given[2] & os.O_TRUNC:
            if passed == moment - 1:
                passed += 1
                os.close(os.open(path, given[2] | os.O_CREAT))
                os.kill(os.getpid(), signal.SIGKILL)
            step()

    def plant() -> None:
        nonlocal own
        own = os.getpid()
        sys.addaudithook(hook)

    return plant


def _exports(root: Path) -> None:
    """Two runs, and what an export of the second one wrote."""
    (root / "text.txt").write_text("the cat sees a big red dog\n" * 300)
    words = ["tokenizer=sentencepiece", "tokenizer.vocab_size=300", "norm=rmsnorm", "ffn=swiglu"]
    words += ["position=rope", "model.head_transform=false"]
    for seed in (0, 1):
        given = [*line(root, f"run_dir={root}/{seed}"), f"seed={seed}", *words]
        assert forked(lambda given=given: train.main(given)) == 0
    for name in ("out", "out.gguf"):
        assert forked(lambda name=name: export([f"run={root}/1", f"to={root}/{name}"])) == 0


def _table(root: Path) -> None:
    for job in jobs(load(TABLE[0]), TABLE[1:], [0, 1]):
        a_run(root / "runs", job.overrides)
    assert forked(lambda: train.main(["table", *TABLE, "seed=0"])) == 0
    assert forked(lambda: report([*TABLE, "out=out"])) == 0


def _recorded(root: Path) -> None:
    a_run(root / "runs", ["scale=smoke", "mixer=retnet"])
    assert forked(lambda: records(["add"])) == 0
    a_run(root / "runs", ["scale=smoke", "mixer=gqa"])


def _surplus(root: Path) -> None:
    (root / "runs").mkdir()
    make(root / "runs/a-11111111")
    age(make(root / "runs/b-22222222", "STOPPED"), 40)


#: What is there before, and the command, which is run there.
SCENES: dict[str, tuple[Callable[[Path], None], Callable[[], int]]] = {
    "export": (_exports, lambda: export(["run=0", "to=out"])),
    "gguf": (_exports, lambda: export(["run=0", "to=out.gguf"])),
    "table": (_table, lambda: train.main(["table", *TABLE, "seed=0,1"])),
    "report": (_table, lambda: report([*TABLE, "seed=0,1", "out=out"])),
    "records": (_recorded, lambda: records(["add"])),
    "clean": (_surplus, lambda: clean(["stale=30", "yes=true"])),
}


def held(root: Path) -> dict[str, str]:
    """Everything below a folder but locks and what Python compiled."""
    return {n: text for n, text in state(root).items() if not n.endswith((".lock", ".pyc"))}


def kept(before: dict[str, str], now: dict[str, str], after: dict[str, str]) -> bool:
    """Whether all of the old is there, or all of the new, or each file is one of the two."""
    if any(set(complete.values()) <= set(now.values()) for complete in (before, after)):
        return True
    each = all(now.get(name) in (text, after.get(name)) for name, text in before.items())
    return each and "out/model.safetensors" not in before  # whose files belong together


EVERY = [pytest.param(name, 1, marks=pytest.mark.slow) for name in SCENES]


@pytest.mark.parametrize(("name", "each"), [("records", 3), ("clean", 7), *EVERY])
def test_killed_at_every_change(name: str, each: int, tmp_path: Path, monkeypatch: Any) -> None:
    (begin, command), root, saved = SCENES[name], tmp_path / "work", tmp_path / "saved"
    monkeypatch.delenv("CHIMERA_RECORDS", raising=False)
    for key in ("RUNS", "CACHE"):
        monkeypatch.setenv(f"CHIMERA_{key}", str(root / key.lower()))
    root.mkdir()
    monkeypatch.chdir(root)
    begin(root)
    shutil.copytree(root, saved, symlinks=True)
    before = held(root)
    assert forked(command) == 0
    after, wrong = held(root), []
    for moment in count(1, each):
        shutil.rmtree(root)
        shutil.copytree(saved, root, symlinks=True)
        os.chdir(root)
        code = forked(command, kill_at(moment, root))
        if code != -signal.SIGKILL:
            break
        if not kept(before, held(root), after):
            wrong.append(f"{moment}: something of the old is gone")
        if code := forked(command):
            wrong.append(f"{moment}: the same command gives {code}")
        elif odd := {name for name, _ in held(root).items() ^ after.items()}:
            wrong.append(f"{moment}: differs after a repeat: {sorted(odd)[:3]}")
    assert code == 0
    assert moment > 2 * each, "there was nothing to kill"
    assert not wrong, "\n".join(wrong)


class Fork:
    """A job in a fork of the sweep, which goes on when the sweep is killed; one takes a second."""

    def __init__(self, start: Start) -> None:
        self.where = "a fork"
        self.code: int | None = None
        self.pid = os.fork()
        if not self.pid:
            os.setsid()
            with start.log.open("ab") as file:
                os.dup2(file.fileno(), 1)
                os.dup2(file.fileno(), 2)
            os._exit(train.main([*start.overrides]))

    def poll(self) -> int | None:
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.code = os.waitstatus_to_exitcode(status) if pid else None
        return self.code


@pytest.mark.slow
def test_a_table_killed_while_it_trains_a_row(tmp_path: Path, monkeypatch: Any) -> None:
    root, saved = tmp_path / "work", tmp_path / "saved"
    monkeypatch.delenv("CHIMERA_RECORDS", raising=False)
    monkeypatch.setattr(Local, "_start", lambda _, start: Fork(start))
    for key in ("RUNS", "CACHE"):
        monkeypatch.setenv(f"CHIMERA_{key}", str(root / key.lower()))
    root.mkdir()
    monkeypatch.chdir(root)
    (root / "text.txt").write_text(TEXT * 300)
    words = line(root)[1:]
    first, *others = jobs(load(TABLE[0]), words, [0])
    for job in others:
        a_run(root / "runs", job.overrides)
    stop = ["trainer.max_time=00:00:00:00", *first.overrides]
    assert forked(lambda: train.main(stop)) == 130
    states = [json.loads(file.read_text())["state"] for file in root.glob("runs/*/status.json")]
    assert sorted(states) == [*["DONE"] * len(others), "STOPPED"]
    shutil.copytree(root, saved, symlinks=True)

    def command() -> int:
        return train.main(["table", TABLE[0], *words, "seed=0"])

    assert forked(command) == 0
    names, reports = set(held(root)), root.glob("reports/**/report.csv")
    values = [file.read_text().split(",")[:40] for file in reports]
    for moment in count(1, 3):
        shutil.rmtree(root)
        shutil.copytree(saved, root, symlinks=True)
        os.chdir(root)
        if (code := forked(command, kill_at(moment, root))) != -signal.SIGKILL:
            break
        assert forked(command) == 0, moment
        assert set(held(root)) == names, moment
        again = [file.read_text().split(",")[:40] for file in root.glob("reports/**/report.csv")]
        assert again == values, moment
    assert code == 0
    assert moment > 6, "there was nothing to kill"
