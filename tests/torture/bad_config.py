"""R5: thirty kinds of bad input: one line, exit code 2, under three seconds, nothing written."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from pathlib import Path

from chimera.paths import ROOT

#: Seconds in which the line has to be there.
LIMIT = 3.0
#: A command line of train.py, and what its one line has to say. `{here}` is a folder of ours.
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
    """Every file below, with the time it was last written."""
    return {
        str(path): path.stat().st_mtime_ns
        for folder in folders
        if folder.is_dir()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def refused(words: str, says: list[str], here: Path) -> tuple[list[str], float]:
    """What is wrong with how a command line was refused, and the seconds it took.

    Seconds of the processor, where other work on the machine makes the clock run faster.
    """
    (here / "other").mkdir(parents=True, exist_ok=True)
    (here / "other" / "file.txt").touch()
    argv = words.format(here=here).split()
    program = ["-m", "chimera.cli.table"] if argv[0] == "table" else [str(ROOT / "train.py")]
    # Not the checkout's runs/ and reports/: a sweep of somebody's may be writing there.
    watched = (here, ROOT / "outputs", ROOT / "multirun")
    before, spent = tree(*watched), _spent()
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, *program, *argv[argv[0] == "table" :]],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=here,
        env=os.environ | {"CHIMERA_RUNS": str(here / "runs")},
    )  # fmt: skip
    try:
        out, err = process.communicate(timeout=10 * LIMIT)
    except subprocess.TimeoutExpired:  # it took the bad words for good ones and trains
        process.kill()
        out, err = process.communicate()
    seconds = min(time.perf_counter() - began, _spent() - spent)
    wrong = []
    if process.returncode != 2:
        wrong.append(f"exit code {process.returncode}")
    if not err.startswith("error: ") or err.count("\n") != 1 or out:
        wrong.append(f"not one line, the last is {(out + err).strip().splitlines()[-1:]}")
    wrong += [f"does not say {word!r}: {err[-200:]}" for word in says if word not in err]
    if seconds > LIMIT:
        wrong.append(f"{seconds:.1f} s")
    if tree(*watched) != before:
        wrong.append("wrote something")
    return wrong, seconds


def _spent() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def r5(folder: Path) -> tuple[int, int]:
    """All of them."""
    good, slowest = 0, 0.0
    for words, says in BAD:
        wrong, seconds = refused(words, says, folder)
        good += not wrong
        slowest = max(slowest, seconds)
        print(f"R5  {words}: {seconds:.2f} s {'; '.join(wrong)}", flush=True)
    print(f"R5  the slowest took {slowest:.2f} s")
    return good, len(BAD)
