"""A sweep runs what is missing, and nothing that a job does to itself reaches the others."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

from chimera.rundir.directory import RunDir, process_start
from chimera.sweep.engine import State
from tests.sweep.kit import BEGIN, DONE, Scripts, Silent, job, run, starts, status

RAISE = "raise RuntimeError('no luck')"
EXIT = "sys.exit(3)"
QUIET_EXIT = "sys.exit(0)"
KILL = "os.kill(os.getpid(), 9)"


def test_what_fails_fails_alone_and_a_second_sweep_runs_what_is_missing(tmp_path: Path) -> None:
    ends = {"a": "", "raise": RAISE, "b": "", "exit": EXIT, "kill": KILL, "quiet": QUIET_EXIT}
    found = run([job(tmp_path, name, script) for name, script in ends.items()])
    assert {n: w.state for n, w in found.items()} == {
        n: State.DONE if n in "ab" else State.FAILED for n in ends
    }
    assert found["raise"].why == "RuntimeError: no luck; exit code 1"
    assert found["exit"].why == "exit code 3"
    assert found["quiet"].why == "exit code 0"
    assert found["kill"].why == "killed by SIGKILL (out of memory?)"
    assert found["a"].why == "val/perplexity 7"
    assert "no luck" in found["raise"].log.read_text()

    again = run([job(tmp_path, name) for name in ends])
    assert all(work.state is State.DONE for work in again.values())
    assert {n: starts(tmp_path, n) for n in ends} == {n: 1 if n in "ab" else 2 for n in ends}


def test_the_reason_is_what_the_run_said(tmp_path: Path) -> None:
    found = run(
        [job(tmp_path, "nan", "run.write_status('FAILED', why='loss is nan'); sys.exit(1)")]
    )
    assert found["nan"].why == "loss is nan"


def test_jobs_that_are_one_run_run_once(tmp_path: Path) -> None:
    found = run([job(tmp_path, "a"), job(tmp_path, "a"), job(tmp_path, "b")])
    assert len(found) == 2
    assert starts(tmp_path, "a") == 1


def test_as_many_at_once_as_there_are_workers(tmp_path: Path) -> None:
    for workers in (1, 3):
        launcher = Scripts(workers)
        run([job(tmp_path / str(workers), str(i), "time.sleep(.5)") for i in range(3)], launcher)
        assert launcher.most == workers


def test_a_done_run_is_repeated_once_if_asked(tmp_path: Path) -> None:
    run([job(tmp_path, "a")])
    run([job(tmp_path, "a", overwrite=True)])
    assert starts(tmp_path, "a") == 2


def test_a_job_waits_for_the_run_it_needs(tmp_path: Path) -> None:
    needing = "assert json.loads(Path(run.path.parent / 'teacher/status.json').read_text())"
    needing += "['state'] == 'DONE'"
    task = {"teacher_run": "identity of teacher"}
    jobs = [job(tmp_path, "student", needing, task=task), job(tmp_path, "teacher", "time.sleep(1)")]
    assert run(jobs)["student"].state is State.DONE


def test_a_job_fails_with_the_run_it_needs(tmp_path: Path) -> None:
    task = {"teacher_run": "identity of teacher"}
    found = run([job(tmp_path, "student", task=task), job(tmp_path, "teacher", RAISE)])
    assert found["student"].state is State.FAILED
    assert found["student"].why == "needs teacher, which failed"
    assert starts(tmp_path, "student") == 0


def test_two_sweeps_at_once_run_each_job_once(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from tests.sweep.kit import job, run;"
        "root = Path(sys.argv[1]);"
        "found = run([job(root, n, 'time.sleep(.5)') for n in 'abcd']);"
        "sys.exit(sum(w.state != 'done' for w in found.values()))"
    )
    both = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path)]) for _ in range(2)]
    assert [one.wait(60) for one in both] == [0, 0]
    assert [starts(tmp_path, name) for name in "abcd"] == [1, 1, 1, 1]


def test_a_run_that_is_alive_elsewhere_is_waited_for(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    other = subprocess.Popen(
        [sys.executable, "-c", BEGIN + "time.sleep(2)" + DONE, str(tmp_path / "a")]
    )
    while not RunDir(tmp_path / "a").is_running():
        time.sleep(0.02)
    seen = set[State]()
    jobs = [job(tmp_path, "a"), job(tmp_path, "b")]
    threading.Thread(target=other.wait).start()
    found = run(jobs, display=Silent(lambda: seen.add(State.ELSEWHERE)))
    assert [w.state for w in found.values()] == [State.DONE, State.DONE]
    assert starts(tmp_path, "a") == 1


def test_what_failed_elsewhere_just_now_is_not_tried_again(tmp_path: Path) -> None:
    here = {"host": socket.gethostname(), "pid": os.getpid(), "process": process_start(os.getpid())}
    status(tmp_path, "a", state="RUNNING", **here)

    def fail() -> None:
        now = datetime.now(UTC).isoformat()
        status(tmp_path, "a", state="FAILED", time=now, why="loss is nan", **here)

    found = run([job(tmp_path, "a")], display=Silent(fail))
    assert found["a"].why == "elsewhere: loss is nan"
    assert starts(tmp_path, "a") == 0


def test_a_dead_run_is_taken_up(tmp_path: Path) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    host = socket.gethostname()
    status(tmp_path, "a", state="RUNNING", host=host, pid=gone.pid, process="1")
    assert run([job(tmp_path, "a")])["a"].state is State.DONE


def test_stopping_asks_each_job_once_and_starts_no_more(tmp_path: Path) -> None:
    # A second SIGINT would end a run in the middle of its save.
    patient = """
import signal
def save(*_):
    (run.path / 'asked').open('a').write('x'); time.sleep(.5)
    run.write_status('STOPPED'); os._exit(130)
signal.signal(signal.SIGINT, save)
(run.path / 'ready').touch()
time.sleep(30)
"""
    jobs = [job(tmp_path, name, patient) for name in "abc"]

    def ask() -> None:
        ready = [(tmp_path / n / "ready").exists() for n in "ab"]
        if all(ready) and not (tmp_path / "sent").exists():
            (tmp_path / "sent").touch()
            os.kill(os.getpid(), signal.SIGINT)

    found = run(jobs, display=Silent(ask))
    assert [w.state for w in found.values()] == [State.STOPPED] * 3
    assert [w.why for w in found.values()] == ["saved", "saved", "not started"]
    assert [(tmp_path / n / "asked").read_text() for n in "ab"] == ["x", "x"]
    assert starts(tmp_path, "c") == 0


def test_a_second_stop_ends_them(tmp_path: Path) -> None:
    deaf = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); time.sleep(60)"
    sent: list[float] = []

    def ask() -> None:
        if starts(tmp_path, "a") and len(sent) < 2 and (not sent or time.time() > sent[0] + 0.5):
            sent.append(time.time())
            os.kill(os.getpid(), signal.SIGINT)

    began = time.monotonic()
    assert run([job(tmp_path, "a", deaf)], display=Silent(ask))["a"].state is State.STOPPED
    assert time.monotonic() - began < 15
