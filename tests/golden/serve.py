"""Runs command lines of one tree, each in a process of its own; knows no module of any tree.

Started as a script: `python serve.py <job file>`. Torch and the other libraries are imported once;
a run is a fork of this process that executes the tree's `train.py` as `python train.py` would, so
that nothing is left of it for the next.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import runpy
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

#: What takes seconds to import; a library that is not there is left to the run itself.
LIBRARIES = (
    "torch",
    "lightning.pytorch",
    "hydra",
    "pydantic",
    "torchmetrics",
    "transformers",
    "tokenizers",
    "sentencepiece",
    "matplotlib.figure",
    "matplotlib.backends.backend_agg",
    "rich.console",
    "scipy.stats",
)
PATIENCE = 300.0


def child(command: list[str], tree: Path, folder: Path, log: Path, said: Path) -> int:
    """Start `python <script> <words>` of the tree in the folder; its process id."""
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    code = 70
    try:
        with log.open("ab") as err, said.open("wb") as out:
            os.dup2(out.fileno(), 1)
            os.dup2(err.fileno(), 2)
        os.chdir(folder)
        sys.argv = [str(tree / command[0]), *command[1:]]
        sys.path[0] = str(tree)
        runpy.run_path(sys.argv[0], run_name="__main__")
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - as the interpreter would at its top level
        traceback.print_exc()
        code = 1
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def finish(pid: int, runs: Path, number: int = 0, rows: int = 0) -> int:
    """Wait for it; with a signal's number, send that when the step log has so many rows."""
    began, sent = time.monotonic(), not number
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        logs = [] if sent else [*runs.glob("steps.csv"), *runs.glob("*/steps.csv")]
        if logs and logs[0].read_bytes().count(b"\n") > rows:
            os.kill(pid, number)
            sent = True
        if time.monotonic() - began > PATIENCE:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.01 if sent else 0.001)


def run(job: dict[str, Any], tree: Path, folder: Path) -> dict[str, Any]:
    """One combination with all that belongs to it: what is to be compared."""
    from gather import gather

    name, runs = job["name"], folder / "runs" / job["name"]
    os.environ["CHIMERA_RUNS"] = str(runs)
    log, said = folder / f"{name}.log.txt", folder / f"{name}.out.txt"
    log.unlink(missing_ok=True)
    train = ["train.py", *(job["line"] or ())]
    codes, more = [], {}
    if job["signal"]:
        number = signal.Signals[f"SIG{job['signal']}"]
        codes.append(finish(child(train, tree, folder, log, said), runs, number, job["rows"]))
    if job["line"] is not None:
        codes.append(finish(child(train, tree, folder, log, said), runs))
    place = folder / job["directory"] if job["directory"] else next(runs.glob("*-*"), None)
    found = gather(place, named=not job["directory"]) if place else {}
    for line in job["then"] if place else ():
        where = os.path.relpath(place, folder)
        words = [word.replace("{run}", where) for word in line]
        codes.append(finish(child(words, tree, folder, log, said), runs))
        text = said.read_text(encoding="utf-8").replace(where, "{run}")
        more[" ".join(line)] = text.splitlines()
    if place and (place / "exported").is_dir():
        from gather import weights_of_export

        found["exported"] = weights_of_export(place / "exported")
    if any(code not in (0, -signal.SIGKILL, 130) for code in codes):
        found["log"] = log.read_text(encoding="utf-8")[-1500:]
    return {"name": name, "codes": codes, "said": more, **found}


def main(file: Path) -> None:
    """Run all jobs of a file; a line of JSON for each goes to the file beside it."""
    task = json.loads(file.read_text(encoding="utf-8"))
    tree, folder = Path(task["tree"]), Path(task["folder"])
    # The environment may have another tree of this project installed; it must not be seen.
    mine = str(tree / "src")
    sys.path[:] = [p for p in sys.path if p == mine or not (Path(p) / "chimera").is_dir()]
    sys.path.insert(1, mine)
    for name in LIBRARIES if task["preload"] else ():
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    with file.with_suffix(".results").open("w", encoding="utf-8") as results:
        for job in task["jobs"]:
            results.write(json.dumps(run(job, tree, folder)) + "\n")
            results.flush()
            print(f"{task['label']}: {job['name']}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
