"""Starting the processes of a run: refusals, exit codes, signals, what the first one decides."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from torch import distributed

from chimera import world
from chimera.errors import LostProcessError, UserError
from chimera.train import launch
from chimera.train.ranks import Ranks, _name_master, readable_lost_processes


def test_the_tasks_of_a_sweeps_launcher_are_the_processes() -> None:
    config: dict[str, Any] = {
        "trainer": {"devices": 1, "num_nodes": None, "strategy": None},
        "precision": "fp32",
        "data": {"batch_size": 12},
        "launcher": {"nodes": 2, "tasks_per_node": 4},
    }
    with pytest.raises(UserError, match=r"data\.batch_size=12 cannot be shared evenly by 8"):
        launch.check(config)
    config["data"]["batch_size"] = 16
    launch.check(config)
    config["trainer"] |= {"devices": 4, "num_nodes": 2}
    launch.check(config)
    with pytest.raises(UserError, match=r"trainer\.num_nodes=2 needs a launcher"):
        launch.launch(config, [])  # no sweep: nobody starts the processes of the other node
    config["trainer"]["num_nodes"] = 3
    with pytest.raises(UserError, match=r"is 12 processes, but launcher\.nodes .* is 8"):
        launch.check(config)


def test_a_launcher_that_started_other_numbers_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    config: dict[str, Any] = {
        "trainer": {"devices": 4, "num_nodes": None, "strategy": None},
        "precision": "fp32",
        "data": {"batch_size": 16},
    }
    for name, value in zip(world._TORCHRUN, ("0", "2", "0", "2"), strict=True):
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match=r"trainer.devices=4 .* torchrun has started 2"):
        launch.check(config)
    config["trainer"]["devices"] = 1  # whatever there is
    launch.check(config)
    config["data"]["batch_size"] = 15
    with pytest.raises(UserError, match=r"data\.batch_size=15 cannot be shared evenly by 2"):
        launch.check(config)


def test_the_variables_of_srun_become_those_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in zip(world._SRUN, ("5", "8", "1", "4(x2)"), strict=True):
        monkeypatch.setenv(name, value)
    assert world.launcher() == "srun"
    assert (world.rank(), world.world_size()) == (5, 8)
    assert (world.local_rank(), world.local_size()) == (1, 4)
    assert not world.is_first()
    with monkeypatch.context() as patch:
        patch.setenv("SLURM_STEP_NUM_TASKS", "1")  # a job of one process
        assert world.launcher() is None
    for name in (*world._TORCHRUN, "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "")  # restored after the test
        monkeypatch.delenv(name)
    monkeypatch.setenv("SLURM_JOB_ID", "123456")
    monkeypatch.setenv("SLURM_NODELIST", "node[3-4]")
    _name_master()
    assert [os.environ[name] for name in world._TORCHRUN] == ["5", "8", "1", "4"]
    assert (os.environ["GROUP_RANK"], os.environ["MASTER_ADDR"]) == ("1", "node3")
    assert int(os.environ["MASTER_PORT"]) > 1024
    assert (world.launcher(), world.rank(), world.local_size()) == ("torchrun", 5, 4)


SLEEP = "import time; time.sleep(60)"


def group(*programs: str) -> list[launch.Process]:
    """Processes that run Python programs."""
    return [subprocess.Popen([sys.executable, "-c", text]) for text in programs]


def test_the_others_end_when_one_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(launch, "FIRST_ENDS", 0.3)
    monkeypatch.setattr(launch, "OTHERS_END", 0.1)
    began = time.monotonic()
    assert launch.wait(group(SLEEP, "raise SystemExit(3)", SLEEP)) == 3
    assert launch.wait(group("", "import os; os.kill(os.getpid(), 9)")) == 128 + signal.SIGKILL
    assert time.monotonic() - began < 20
    assert "process 1 of 2 was ended by SIGKILL" in capsys.readouterr().err
    assert launch.wait(group("", "")) == 0


def test_the_first_process_has_time_to_save(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "OTHERS_END", 0.1)
    saving = "import time; time.sleep(0.5); raise SystemExit(7)"
    processes = group(saving, "raise SystemExit(1)", SLEEP)
    assert launch.wait(processes) == 1
    codes = [process.returncode for process in processes]
    assert codes == [7, 1, -signal.SIGKILL]


def test_a_signal_reaches_all_processes() -> None:
    stops = "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(130)); "
    processes = group(*[stops + "print(flush=True); time.sleep(60)"] * 2)
    timer = threading.Timer(1.0, lambda: signal.raise_signal(signal.SIGTERM))
    timer.start()
    assert launch.wait(processes) in (130, 128 + signal.SIGTERM)  # by the time it has come that far


def ranks(count: int) -> list[Ranks]:
    """Processes of a run that share a store; threads play them."""
    store = distributed.HashStore()
    found = [Ranks(store, 10.0) for _ in range(count)]
    for rank, one in enumerate(found):
        one.rank, one.size = rank, count
    return found


def at_once(work: Callable[[Ranks], Any], of: list[Ranks]) -> list[Any]:
    with ThreadPoolExecutor(len(of)) as pool:
        futures = [pool.submit(work, one) for one in of]
    return [future.exception() or future.result() for future in futures]


def test_the_first_process_decides_for_all() -> None:
    calls: list[int] = []

    def work(one: Ranks) -> list[Any]:
        def found(turn: int) -> dict[str, Any]:
            time.sleep(0.1)
            calls.append(one.rank)
            return {"turn": turn, "path": None}

        return [one.on_first(lambda: found(1)), one.on_first(lambda: found(2))]

    found = at_once(work, ranks(3))
    assert found == [[{"turn": 1, "path": None}, {"turn": 2, "path": None}]] * 3
    assert calls == [0, 0]


def test_an_error_of_the_first_process_ends_all_and_one_speaks() -> None:
    def work(one: Ranks) -> None:
        def fail() -> None:
            raise UserError("the disk is\nnot there")

        one.on_first(fail)

    of = ranks(3)
    found = at_once(work, of)
    assert all(isinstance(error, UserError) for error in found)
    assert [str(error) for error in found[1:]] == ["the disk is not there"] * 2
    assert sorted(one.speaks() for one in of) == [False, False, True]
    assert Ranks().speaks()


def test_a_process_speaks_when_the_one_with_the_store_has_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Stopped:
        def add(self, *_: Any) -> int:
            time.sleep(60)
            return 2

    monkeypatch.setattr("chimera.train.ranks.ANSWER", 0.1)
    assert Ranks(Stopped()).speaks()  # type: ignore[arg-type]


def test_processes_leave_together() -> None:
    of, left = ranks(2), []

    def work(one: Ranks) -> None:
        time.sleep(0.3 * one.rank)
        one.leave()
        left.append(time.monotonic())

    began = time.monotonic()
    at_once(work, of)
    assert min(left) - began >= 0.3


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[/gloo/transport/tcp/pair.cc:553] Connection closed by peer", "has ended"),
        ("gloo: Timed out waiting 5000ms for recv operation", "did not answer within"),
    ],
)
def test_a_lost_process_is_one_line(text: str, told: str) -> None:
    with pytest.raises(LostProcessError, match=told) as caught, readable_lost_processes(5):
        raise RuntimeError(text)
    assert "start the same command again" in str(caught.value)
    with pytest.raises(RuntimeError, match="other") as other, readable_lost_processes(5):
        raise RuntimeError("other")
    assert not isinstance(other.value, LostProcessError)
