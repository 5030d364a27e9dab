"""A sweep runs the unfinished jobs; a job that fails, exits or is killed stops no other job."""

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
from chimera.sweep.job import State
from tests.sweep.kit import BEGIN, DONE, Scripts, Silent, job, run, starts, status

RAISE = "raise RuntimeError('no luck')"
EXIT = "sys.exit(3)"
QUIET_EXIT = "sys.exit(0)"
KILL = "os.kill(os.getpid(), 9)"


def test_a_failed_job_stops_no_other_and_a_second_sweep_runs_failed_jobs(tmp_path: Path) -> None:
    scripts = {"a": "", "raise": RAISE, "b": "", "exit": EXIT, "kill": KILL, "quiet": QUIET_EXIT}
    work = run([job(tmp_path, name, script) for name, script in scripts.items()])
    assert {n: w.state for n, w in work.items()} == {
        n: State.DONE if n in "ab" else State.FAILED for n in scripts
    }
    assert work["raise"].why == "RuntimeError: no luck; exit code 1"
    assert work["exit"].why == "exit code 3"
    assert work["quiet"].why == "exit code 0"
    assert work["kill"].why == "killed by SIGKILL (out of memory?)"
    assert work["a"].why == "val/perplexity 7"
    assert "no luck" in work["raise"].log.read_text()

    again = run([job(tmp_path, name) for name in scripts])
    assert all(w.state is State.DONE for w in again.values())
    assert {n: starts(tmp_path, n) for n in scripts} == {n: 1 if n in "ab" else 2 for n in scripts}


def test_the_reason_of_a_failure_comes_from_status_json(tmp_path: Path) -> None:
    work = run([job(tmp_path, "nan", "run.write_status('FAILED', why='loss is nan'); sys.exit(1)")])
    assert work["nan"].why == "loss is nan"


def test_duplicate_jobs_run_once(tmp_path: Path) -> None:
    work = run([job(tmp_path, "a"), job(tmp_path, "a"), job(tmp_path, "b")])
    assert len(work) == 2
    assert starts(tmp_path, "a") == 1


def test_as_many_jobs_at_once_as_workers(tmp_path: Path) -> None:
    for workers in (1, 3):
        launcher = Scripts(workers)
        run([job(tmp_path / str(workers), str(i), "time.sleep(.5)") for i in range(3)], launcher)
        assert launcher.most == workers


def test_overwrite_repeats_a_done_run_once(tmp_path: Path) -> None:
    run([job(tmp_path, "a")])
    run([job(tmp_path, "a", overwrite=True)])
    assert starts(tmp_path, "a") == 2


def test_a_job_waits_for_its_prerequisite(tmp_path: Path) -> None:
    script = "assert json.loads(Path(run.path.parent / 'teacher/status.json').read_text())"
    script += "['state'] == 'DONE'"
    task = {"teacher_run": "identity of teacher"}
    jobs = [job(tmp_path, "student", script, task=task), job(tmp_path, "teacher", "time.sleep(1)")]
    assert run(jobs)["student"].state is State.DONE


def test_a_job_fails_if_its_prerequisite_fails(tmp_path: Path) -> None:
    task = {"teacher_run": "identity of teacher"}
    work = run([job(tmp_path, "student", task=task), job(tmp_path, "teacher", RAISE)])
    assert work["student"].state is State.FAILED
    assert work["student"].why == "needs teacher, which failed"
    assert starts(tmp_path, "student") == 0


def test_two_sweeps_at_once_run_each_job_once(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from tests.sweep.kit import job, run;"
        "root = Path(sys.argv[1]);"
        "work = run([job(root, n, 'time.sleep(.5)') for n in 'abcd']);"
        "sys.exit(sum(w.state != 'done' for w in work.values()))"
    )
    sweeps = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path)]) for _ in range(2)]
    assert [process.wait(60) for process in sweeps] == [0, 0]
    assert [starts(tmp_path, name) for name in "abcd"] == [1, 1, 1, 1]


def test_the_sweep_waits_for_a_run_of_another_process(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    other = subprocess.Popen(
        [sys.executable, "-c", BEGIN + "time.sleep(2)" + DONE, str(tmp_path / "a")]
    )
    while not RunDir(tmp_path / "a").is_running():
        time.sleep(0.02)
    seen = set[State]()
    jobs = [job(tmp_path, "a"), job(tmp_path, "b")]
    threading.Thread(target=other.wait).start()
    work = run(jobs, display=Silent(lambda: seen.add(State.ELSEWHERE)))
    assert [w.state for w in work.values()] == [State.DONE, State.DONE]
    assert starts(tmp_path, "a") == 1


def test_a_run_that_failed_in_another_process_is_not_repeated(tmp_path: Path) -> None:
    here = {"host": socket.gethostname(), "pid": os.getpid(), "process": process_start(os.getpid())}
    status(tmp_path, "a", state="RUNNING", **here)

    def fail() -> None:
        now = datetime.now(UTC).isoformat()
        status(tmp_path, "a", state="FAILED", time=now, why="loss is nan", **here)

    work = run([job(tmp_path, "a")], display=Silent(fail))
    assert work["a"].why == "elsewhere: loss is nan"
    assert starts(tmp_path, "a") == 0


def test_a_run_whose_process_is_dead_is_started_again(tmp_path: Path) -> None:
    dead = subprocess.Popen(["true"])
    dead.wait()
    host = socket.gethostname()
    status(tmp_path, "a", state="RUNNING", host=host, pid=dead.pid, process="1")
    assert run([job(tmp_path, "a")])["a"].state is State.DONE


def test_a_stop_interrupts_each_job_once_and_starts_no_more(tmp_path: Path) -> None:
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

    work = run(jobs, display=Silent(ask))
    assert [w.state for w in work.values()] == [State.STOPPED] * 3
    assert [w.why for w in work.values()] == ["saved", "saved", "not started"]
    assert [(tmp_path / n / "asked").read_text() for n in "ab"] == ["x", "x"]
    assert starts(tmp_path, "c") == 0


def test_a_second_stop_kills_the_jobs(tmp_path: Path) -> None:
    ignoring = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); time.sleep(60)"
    sent: list[float] = []

    def ask() -> None:
        if starts(tmp_path, "a") and len(sent) < 2 and (not sent or time.time() > sent[0] + 0.5):
            sent.append(time.time())
            os.kill(os.getpid(), signal.SIGINT)

    began = time.monotonic()
    stopped = run([job(tmp_path, "a", ignoring)], display=Silent(ask))["a"]
    assert (stopped.state, stopped.why) == (State.STOPPED, "it has no checkpoint yet")
    assert time.monotonic() - began < 15
