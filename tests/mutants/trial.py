"""Run tests against a scratch copy of the sources, in a fork that has the libraries loaded."""

from __future__ import annotations

import compileall
import importlib
import json
import os
import shutil
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.mutants.concern import CONTRACT
from tests.mutants.mutate import ROOT

#: What nearly every test imports. Chimera itself must not be among it.
LIBRARIES = (
    "torch", "lightning.pytorch", "hydra", "einops", "jaxtyping", "pydantic", "hypothesis",
    "transformers", "tokenizers", "scipy", "datasets",
)  # fmt: skip


class Scratch:
    """A copy of src/ of which one file at a time is changed.

    Args:
        folder: is emptied.
        limit: seconds for all tests of one mutant.
    """

    def __init__(self, folder: Path, limit: float) -> None:
        self.src, self.answer, self.limit = folder / "src", folder / "answer.json", limit
        shutil.copytree(ROOT / "src", self.src, ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("conf", "experiments"):  # the sources look for them beside src/
            (folder / name).symlink_to(ROOT / name)
        compileall.compile_dir(self.src, quiet=1)
        for name in LIBRARIES:
            importlib.import_module(name)
        importlib.import_module("torch").set_num_threads(1)
        assert "chimera" not in sys.modules
        self._right: dict[str, bool] = {}
        self._red: list[str] = []  # fail whatever the sources are, and are left out

    def run(self, file: str, source: str, tests: tuple[str, ...], mixers: str) -> dict[str, Any]:
        """How the tests end with another text of `file`: caught, survived or timed out.

        A test that fails with the right text, too, is left out from then on.
        """
        path = self.src / "chimera" / file
        right = path.read_text()
        began = time.monotonic()
        try:
            path.write_text(source)
            shutil.rmtree(path.parent / "__pycache__", ignore_errors=True)  # may look up to date
            found = self._fork(tests, mixers)
        finally:
            path.write_text(right)
        found["seconds"] = round(time.monotonic() - began, 1)
        if found["result"] == "caught" and not self._passes(found["by"]):
            if found["by"] in self._red:
                return found | {"result": "broken test"}
            self._red.append(found["by"])
            return self.run(file, source, tests, mixers)
        return found

    def _passes(self, test: str) -> bool:
        if test not in self._right:
            self._right[test] = self._fork((test,), "")["result"] == "survived"
        return self._right[test]

    def _fork(self, tests: tuple[str, ...], mixers: str) -> dict[str, Any]:
        self.answer.unlink(missing_ok=True)
        if (child := os.fork()) == 0:
            os.setsid()
            code = 1
            try:
                self._child(tests, mixers)
                code = 0
            finally:
                os._exit(code)
        deadline = time.monotonic() + self.limit
        while os.waitpid(child, os.WNOHANG) == (0, 0):
            if time.monotonic() > deadline:
                with suppress(ProcessLookupError):
                    os.killpg(child, signal.SIGKILL)
                os.waitpid(child, 0)
                return {"result": "timed out", "by": ""}
            time.sleep(0.1)
        if not self.answer.exists():
            return {"result": "caught", "by": tests[0]}  # the process died
        found: dict[str, Any] = json.loads(self.answer.read_text())
        return found

    def _child(self, tests: tuple[str, ...], mixers: str) -> None:
        sys.dont_write_bytecode = True
        sys.path[:0] = [str(self.src), str(ROOT)]
        os.environ |= {
            "PYTHONPATH": f"{self.src}{os.pathsep}{ROOT}",
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_NUM_THREADS": "1",
        }
        null = os.open(os.devnull, os.O_WRONLY)
        for stream in (1, 2):
            os.dup2(null, stream)
        os.chdir(ROOT)
        runs = [[self._place(test) for test in tests]] if tests else []
        if mixers:
            runs.append([self._place(CONTRACT), "-k", mixers])
        for arguments in runs:
            first = _First()
            options = ["-x", "-n", "0", "-m", "not slow", "--tb=no"]
            options += [f"--deselect={test}" for test in self._red]
            status = pytest.main([*options, *arguments], plugins=[first])
            if first.failed or status not in (0, 5):  # 5: nothing was collected
                self._write("caught", first.failed or arguments[0])
                return
        import chimera

        right = Path(chimera.__file__ or "").is_relative_to(self.src)
        self._write("survived" if right else "tests ran other sources", "")

    def _place(self, test: str) -> str:
        """The contract tests are those of the copy: pytest puts the sources beside them first."""
        return str(self.src / test.removeprefix("src/")) if test.startswith("src/") else test

    def _write(self, result: str, by: str) -> None:
        self.answer.write_text(json.dumps({"result": result, "by": by}))


class _First:
    """Remembers the test that failed first."""

    failed = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not self.failed:
            self.failed = report.nodeid

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed and not self.failed:
            self.failed = report.nodeid
