"""R5: bad input of thirty kinds gives one line and exit code 2 in three seconds, writes nothing."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from chimera.paths import ROOT

#: Seconds in which the command must end.
LIMIT = 3.0
#: Arguments of train.py, and parts of the error line. `{here}` is the folder of the test.
BAD: list[tuple[str, list[str]]] = [
    # choices
    ("mixer=retnett", ["mixer=retnett", "did you mean 'retnet'"]),
    ("scale=tiny", ["scale=tiny", "smoke", "small"]),
    ("preset=bert_bas", ["preset=bert_bas", "bert_base"]),
    ("+bitnet_qdyt/norms=layer", ["layer", "layernorm"]),
    ("+bitnet_qdyt=norms", ["is a table", "-m"]),
    ("launcher=slurm", ["launcher=slurm", "submitit"]),
    ("model=[encoder_small,x]", ["not one name"]),
    # keys
    ("optm.lr=1", ["optm.lr", "did you mean 'optim.lr'"]),
    ("mixer=retnet mixer.kv_heads=2", ["mixer.kv_heads"]),
    ("+optim.lrr=1", ["optim.lrr", "optim.lr"]),
    ("~mixer", ["~mixer deletes"]),
    ("garbage", ["cannot read", "group=name"]),
    ("--verbose", ["--verbose", "--help"]),
    # types and ranges
    ("optim.lr=fast", ["optim.lr=fast", "a number above 0"]),
    ("optim.lr=-1", ["optim.lr=-1", "above 0"]),
    ("trainer.max_steps=2.5", ["trainer.max_steps=2.5", "an integer"]),
    ("task.mask_ratio=2", ["task.mask_ratio=2", "at most 1"]),
    ("norm=qdyt norm.callbacks.qdyt.warmup_steps=soon", ["warmup_steps=soon", "an integer"]),
    ("workers=0", ["workers=0", "at least 1"]),
    # pairs
    ("mixer=retnet position=alibi", ["position=alibi", "mixer=retnet", "rope"]),
    ("model.heads=3", ["model.heads=3", "model.dim=128"]),
    ("mixer.kv_heads=3", ["kv_heads=3", "heads=2"]),
    ("precision=fp8", ["precision=fp8", "fp32, bf16, fp16"]),
    # files
    ("data=text data.path=/nowhere/at/all", ["/nowhere/at/all"]),
    ("tokenizer=bert tokenizer.path=/nowhere/vocab.txt", ["/nowhere/vocab.txt"]),
    ("run_dir={here}/other", ["other files"]),
    ("replay={here}/nothing", ["replay", "nothing"]),
    ("task.teacher={here}/nothing", ["nothing"]),
    # sweeps and tables
    ("-m mixer=retnet,attentoin", ["attentoin", "did you mean 'attention'"]),
    ("-m seed=range(0,0)", ["no jobs", "seed=range(0,0)"]),
    ("-m seed=0,x", ["seed=x", "an integer"]),
    ("-m mixer=retnet,attention position=alibi", ["position=alibi", "[mixer=retnet]"]),
    ("-m seed=0,1 run_dir={here}/one", ["several jobs"]),
    ("-m seed=0,1 launcher=submitit launcher.timeout_min=0", ["launcher.timeout_min=0"]),
    ("table qdyt/norm", ["qdyt/norm", "bitnet_qdyt/norms"]),
    ("table", ["name a table", "bitnet_qdyt/norms"]),
]


def tree(*folders: Path) -> dict[str, int]:
    """Time of the last write (ns) of every file below the folders."""
    return {
        str(path): path.stat().st_mtime_ns
        for folder in folders
        if folder.is_dir()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


#: Runs a command line in a folder with some environment variables added.
Run = Callable[[Sequence[str], Path, Mapping[str, str]], subprocess.CompletedProcess[str]]


def process(
    words: Sequence[str], here: Path, env: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """A new process; killed if the arguments were accepted, and training started."""
    first, *rest = words
    command = [sys.executable, first if first == "-m" else str(ROOT / first), *rest]
    try:
        return subprocess.run(
            command, capture_output=True, text=True, cwd=here, env={**os.environ, **env},
            timeout=10 * LIMIT,
        )  # fmt: skip
    except subprocess.TimeoutExpired as late:
        return subprocess.CompletedProcess(command, -signal.SIGKILL, _text(late.stdout), "")


def _text(output: bytes | str | None) -> str:
    return output.decode() if isinstance(output, bytes) else output or ""


def refused(
    arguments: str, parts: list[str], here: Path, run: Run = process
) -> tuple[list[str], float]:
    """Run a command line that must be refused.

    Args:
        arguments: of train.py; `{here}` becomes the folder.
        parts: that the error line must have.
        here: folder to work in.
        run: how.

    Returns:
        Failures, empty if the command was refused as it should be; seconds, of the clock or of the
        processor, whichever is less (other processes slow the clock time down).
    """
    (here / "other").mkdir(parents=True, exist_ok=True)
    (here / "other" / "file.txt").touch()
    argv = arguments.format(here=here).split()
    # Not the checkout's runs/ and reports/: another sweep may be writing there.
    watched = (here, ROOT / "outputs", ROOT / "multirun")
    before, cpu_before = tree(*watched), _cpu_seconds()
    start = time.perf_counter()
    done = run(["train.py", *argv], here, {"CHIMERA_RUNS": str(here / "runs")})
    seconds = min(time.perf_counter() - start, _cpu_seconds() - cpu_before)
    failures = []
    if done.returncode != 2:
        failures.append(f"exit code {done.returncode}")
    out, err = done.stdout, done.stderr
    if not err.startswith("error: ") or err.count("\n") != 1 or out:
        failures.append(f"not one line, the last is {(out + err).strip().splitlines()[-1:]}")
    failures += [f"{part!r} is not in: {err[-200:]}" for part in parts if part not in err]
    if seconds > LIMIT:
        failures.append(f"{seconds:.1f} s")
    if tree(*watched) != before:
        failures.append("files were written")
    return failures, seconds


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def r5(folder: Path) -> tuple[int, int]:
    """Run all command lines; return the number refused correctly and the number of all."""
    passed, slowest = 0, 0.0
    for arguments, parts in BAD:
        failures, seconds = refused(arguments, parts, folder)
        passed += not failures
        slowest = max(slowest, seconds)
        print(f"R5  {arguments}: {seconds:.2f} s {'; '.join(failures)}", flush=True)
    print(f"R5  the slowest took {slowest:.2f} s")
    return passed, len(BAD)
