"""A forked command behaves as a new Python process: `tests/forks.py`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import forks

REPORT = """
import atexit, json, os, sys, threading, time
atexit.register(lambda: print("at exit"))
threading.Thread(target=lambda: (time.sleep(0.05), print("thread"))).start()
print(json.dumps([sys.argv[1:], os.getcwd(), os.environ.get("A"), os.environ.get("B")]))
print(__name__, sys.stdin.read() == "", sys.stdout.isatty(), file=sys.stderr)
"""


def test_arguments_folder_environment_and_output_are_those_of_a_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A", "of the test")
    words = ["-c", REPORT, "one", "two words"]
    forked = forks.run(*words, cwd=tmp_path, env={"B": "added"})
    real = subprocess.run(
        [sys.executable, *words],
        cwd=tmp_path,
        env=os.environ | {"B": "added"},
        capture_output=True,
        stdin=subprocess.DEVNULL,
        text=True,
    )
    assert (forked.returncode, forked.stdout) == (real.returncode, real.stdout)
    assert forked.stderr == real.stderr == "__main__ True False\n"
    assert "thread\nat exit\n" in forked.stdout


def test_a_command_changes_nothing_for_the_next() -> None:
    change = "import os, sys; os.environ['C'] = '1'; sys.left = 1; import random, torch"
    change += "; random.seed(7); torch.manual_seed(7); torch.set_default_dtype(torch.float64)"
    look = (
        "import os, random, sys, numpy, torch;"
        "print(os.environ.get('C'), hasattr(sys, 'left'), torch.get_default_dtype());"
        "print(random.random(), numpy.random.rand(), torch.rand(1).item())"
    )
    assert forks.run("-c", change).returncode == 0
    first, second = (forks.run("-c", look).stdout.splitlines() for _ in range(2))
    assert first[0] == second[0] == "None False torch.float32"
    pairs = zip(first[1].split(), second[1].split(), strict=True)
    assert all(a != b for a, b in pairs)  # as in two new processes


def test_another_checkout_has_its_own_package(tmp_path: Path) -> None:
    (tmp_path / "src/chimera").mkdir(parents=True)
    (tmp_path / "src/chimera/__init__.py").write_text("HERE = True\n")
    (tmp_path / "run.py").write_text("import chimera, sys; print(chimera.HERE, sys.argv[1:])\n")
    done = forks.run("run.py", "x", root=tmp_path)
    assert done.stdout == "True ['x']\n", done.stderr
