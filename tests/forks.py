"""Run commands as forks of a server process that has imported the libraries.

A new Python process takes five seconds of processor time for `import lightning`; a fork takes
none. A command has its own arguments, folder, environment, output, signals and exit code, as
`subprocess.run([sys.executable, ...])` gives them. It changes nothing in the server. Tests of
start-up (what a command imports, how long it takes) use real processes: tests/cli, tests/train.

Each pytest process starts a server at its first command and ends it by closing its input. The
server has one thread, so that a fork cannot inherit a lock that another thread holds.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import random
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
#: What the server imports; a command that needs more imports it itself.
LIBRARIES = (
    "lightning.pytorch",
    "torchmetrics",
    "transformers",
    "matplotlib.backends.backend_agg",
    "rich.console",
    "scipy.stats",
    "chimera.train.check",
    "chimera.train.run",
    "chimera.evaluate",
    "chimera.generate.text",
)
#: Packages of a checkout. Another checkout has packages of the same names.
OWN = {"chimera", "tests"}
#: Environment before a test changes it: libraries read some variables when they are imported.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", **os.environ, "PYTHONPATH": f"{ROOT}/src:{ROOT}"}
#: Seconds after which a command is killed.
TIMEOUT = 240.0


class Command:
    """A running command.

    Attributes:
        words: the command line without `python`.
        pid: process id.
    """

    def __init__(self, words: Sequence[str], root: Path, cwd: Path, env: Mapping[str, str]) -> None:
        self.words = list(words)
        self._output = [Path(tempfile.mkstemp(prefix="chimera-")[1]) for _ in range(2)]
        task = {"words": self.words, "root": str(root), "cwd": str(cwd), "env": dict(env)}
        self.pid = _ask({**task, "output": [str(path) for path in self._output]})

    def send_signal(self, number: int) -> None:
        """Send the process a signal."""
        os.kill(self.pid, number)

    def wait(self) -> subprocess.CompletedProcess[str]:
        """Wait for the end; return the exit code (or minus the signal's number) and the output."""
        code = _ask({"wait": self.pid})
        out, err = (path.read_text(encoding="utf-8", errors="replace") for path in self._output)
        for path in self._output:
            path.unlink()
        return subprocess.CompletedProcess(self.words, code, out, err)


def start(
    *words: str,
    root: Path = ROOT,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> Command:
    """Start `python <words>`: a script of the checkout, `-m module` or `-c code`, and arguments.

    Args:
        words: the first one a script, relative to the checkout, or `-m` or `-c`.
        root: the checkout; the default is this one.
        cwd: folder in which it runs; None is the folder of this process.
        env: environment variables to add.
    """
    changed = os.environ | {"COLUMNS": "120", "PYTHONPATH": f"{root}/src:{root}"} | (env or {})
    changed.pop("WANDB_SERVICE", None)  # of a run in this process; a command has one of its own
    return Command(words, root, cwd or Path.cwd(), changed)


def run(
    *words: str,
    root: Path = ROOT,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run `python <words>` to its end; the arguments are the same as in `start`."""
    return start(*words, root=root, cwd=cwd, env=env).wait()


@cache
def _server() -> subprocess.Popen[str]:
    words, pipe = [sys.executable, str(Path(__file__).resolve())], subprocess.PIPE
    server = subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True, env=ENVIRONMENT, cwd=ROOT)
    atexit.register(server.communicate)  # closes its input and waits for its end
    return server


def _ask(task: dict[str, Any]) -> int:
    """Send the server a task; return its answer, one number."""
    server = _server()
    assert server.stdin is not None
    assert server.stdout is not None
    server.stdin.write(json.dumps(task) + "\n")
    server.stdin.flush()
    return int(server.stdout.readline())


def _serve() -> None:
    """Answer each task of standard input: start a command, or wait for one."""
    import importlib

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what an import prints is no answer
    for name in LIBRARIES:
        importlib.import_module(name)
    tasks = Path("/proc/self/task")
    if threading.active_count() > 1 or (tasks.exists() and len(list(tasks.iterdir())) > 1):
        raise RuntimeError("an import started a thread: a fork of this process may block")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # pytest handles Ctrl-C
    for line in iter(sys.stdin.readline, ""):
        task = json.loads(line)
        if "wait" in task:
            answer = _finish(task["wait"])
        else:
            answer = os.fork()
            if not answer:
                answers.close()
                _become(task)
        print(answer, file=answers, flush=True)


def _finish(pid: int) -> int:
    """Wait for a child and return its exit code; kill it after TIMEOUT seconds."""
    deadline = time.monotonic() + TIMEOUT
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)


def _become(task: dict[str, Any]) -> None:
    """Run the command in this process, then end the process."""
    code = 70
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for number, path in enumerate([os.devnull, *task["output"]]):
            os.dup2(os.open(path, os.O_RDWR), number)
        sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115 - the server's is a pipe
        os.environ.clear()
        os.environ.update(task["env"])
        os.chdir(task["cwd"])
        _reseed()
        _execute(task["words"], task["root"])
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:  # noqa: BLE001 - as the interpreter does at its top level
        traceback.print_exc()
        code = 1
    finally:
        with contextlib.suppress(OSError, ValueError):
            threading._shutdown()  # type: ignore[attr-defined]  # joins threads, as at an end
            atexit._run_exitfuncs()  # W&B ends its run there
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _reseed() -> None:
    """Give the process random numbers of its own where a new process has them."""
    import numpy
    import torch

    random.seed()
    numpy.random.seed()
    torch.seed()


def _execute(words: Sequence[str], root: str) -> None:
    """Do what `python <words>` does, with the package of that checkout."""
    if root != str(ROOT):
        for name in [n for n in sys.modules if n.partition(".")[0] in OWN]:
            del sys.modules[name]
        sys.path[:0] = [root, f"{root}/src"]
    sys.path[0] = root
    first, *rest = words
    if first == "-c":
        sys.argv = [first, *rest[1:]]
        exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})
    elif first == "-m":
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = [f"{root}/{first}", *rest]
        runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    _serve()
