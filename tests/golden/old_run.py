"""Runs that older code left behind, and what that code made of them; `test_old_run` goes on there.

`python -m tests.golden.old_run <tree of that code>` makes `tests/fixtures/old_run` anew; with
`killed_2` as a second word only the run of numerics 2 in it:

    text.txt glue/   what was trained on; command lines name them relative to this folder
    killed/          a run directory as SIGKILL left it after step 150 of 200
    finished/        one of a judging task with an adapter that had come to its end
    expected.json    both command lines; losses and metrics of the run gone on with, and of one that
                     was never killed; what eval.py said of all three; machine and torch
    killed_2/        a run of numerics 2 as SIGKILL left it after step 40 of 60, with dropout and
                     accumulation
    expected_2.json  its command line; losses, metrics and weights of one that was never killed

Nothing in it may name a place of the machine that it was made on.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from chimera.rundir.identity import NUMERICS
from tests.golden import inputs, lanes
from tests.golden.combinations import ROOT
from tests.golden.gather import gather
from tests.golden.story import story

FOLDER = ROOT / "tests" / "fixtures" / "old_run"
STEPS, KILLED = 200, 150
LONG_AGO = "2025-01-01T00:00:00+00:00"
SHAPE = ["model.dim=32", "model.depth=1", "model.heads=2", "model.max_len=32"]
SHAPE += ["data.batch_size=4", "data.cache_dir=cache", "logger=none", "trainer.accelerator=cpu"]
SHAPE += ["trainer.checkpoint_every_n_steps=50", "trainer.checkpoint_keep=1"]
SHAPE += ["trainer.checkpoint_keep_best=1", "trainer.log_every_n_steps=10"]
SHAPE += ["trainer.checkpoint_keep_epochs=0", "trainer.limit_test_batches=8"]
LINE = ["mixer=retnet", "quant=bitnet158", "norm=qdyt", "ffn=swiglu", "ffn.expand=2"]
LINE += ["norm.callbacks.qdyt.warmup_steps=90", "model.dropout=0.1", "optim.lr=1e-3"]
LINE += ["data=text", "data.path=text.txt", "tokenizer=sentencepiece"]
LINE += ["tokenizer.vocab_size=120", "tokenizer.byte_fallback=false", "tokenizer.num_threads=1"]
LINE += [f"trainer.max_steps={STEPS}", "trainer.val_check_interval=50"]
LINE += ["trainer.limit_val_batches=4", *SHAPE]
LINE += ["run_dir=killed"]
STEPS_2, KILLED_2 = 60, 40
LINE_2 = ["task=causal_lm", "mixer=retnet", "norm=dyt", "position=none", "model.dropout=0.1"]
LINE_2 += ["trainer.accumulate_grad_batches=2", "optim.lr=1e-3", "data=text", "data.path=text.txt"]
LINE_2 += ["tokenizer=word", f"trainer.max_steps={STEPS_2}", "trainer.val_check_interval=20"]
LINE_2 += ["trainer.limit_val_batches=4", *SHAPE, "trainer.checkpoint_every_n_steps=20"]
LINE_2 += ["run_dir=killed_2"]
JUDGE = ["task=glue", "data=glue", "data.path=glue", "optim=finetune", "optim.lr=1e-2"]
JUDGE += ["adapter=adalora", "adapter.r=4", "adapter.callbacks.adalora.target_r=2"]
JUDGE += ["tokenizer=word", "trainer.max_steps=60", "trainer.val_check_interval=20", *SHAPE]
JUDGE += ["run_dir=finished"]


def train(tree: Path, folder: Path, line: list[str], *, kill: int = 0) -> None:
    """Run `train.py` of a tree in a folder; kill it when it has gone a step past `kill`."""
    environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1"}
    words = (sys.executable, str(tree / "train.py"), *line)
    process = subprocess.Popen(words, cwd=folder, env=environment)
    steps = folder / line[-1].removeprefix("run_dir=") / "steps.csv"
    while kill and process.poll() is None:
        if steps.exists() and steps.read_bytes().count(b"\n") > kill + 2:
            process.send_signal(signal.SIGKILL)
            break
        time.sleep(0.001)
    wanted = -signal.SIGKILL if kill else 0
    if process.wait() != wanted:
        sys.exit(f"ended with {process.returncode}, not {wanted}")


def jobs(*, resume: bool = True) -> list[dict[str, Any]]:
    """For a server: the killed run's test, the run gone on with, the finished run shown again."""

    def one(name: str, place: str, line: list[str] | None) -> dict[str, Any]:
        then = [["eval.py", f"run={place}"]]
        whole = {"name": name, "line": line, "directory": place, "then": then}
        return {**whole, "signal": None, "rows": 0}

    found = [one("as killed", "killed", None), one("finished", "finished", JUDGE)]
    if (FOLDER / "killed_2").exists():
        found.append(one("resumed 2", "killed_2", LINE_2))
    return [*found, one("resumed", "killed", LINE)] if resume else found


def numbers(found: dict[str, Any]) -> dict[str, Any]:
    """What is compared of a result: losses and metrics, and what eval.py printed."""
    said = ["\n".join(lines) for lines in found["said"].values()]
    return {
        "loss": found["steps"]["loss"],
        "metrics": found.get("metrics"),
        "weights": found["weights"],
        "eval": json.loads(said[0]) if said else None,
    }


def make(tree: Path) -> None:
    """The whole folder."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    (FOLDER / "text.txt").write_text(story(16_000, seed=7), encoding="utf-8")
    with tempfile.TemporaryDirectory() as scratch:
        given = inputs.make(Path(scratch) / "inputs")
        for part in ("train", "dev"):  # without a test part the dev part is tested on
            file = Path("glue") / "CoLA" / f"{part}.tsv"
            (FOLDER / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(given / file, FOLDER / file)
        whole = Path(scratch) / "whole"
        shutil.copytree(FOLDER, whole)
        train(tree, whole, LINE)
        uninterrupted = numbers({"name": "", "said": {}, **gather(whole / "killed", named=False)})
        train(tree, FOLDER, LINE, kill=KILLED)
        train(tree, FOLDER, JUDGE)
        shutil.rmtree(FOLDER / "cache")
        (FOLDER / "finished" / "curves.png").unlink()
        for place in ("killed", "finished"):
            anonymous(FOLDER / place)
        lane = lanes.Lane("old", tree, Path(scratch) / "again", FOLDER, jobs())
        results = lane.results()
        found = {name: numbers(one) for name, one in results.items()}
    whole_, resumed = uninterrupted, found["resumed"]
    if [whole_[k] for k in ("loss", "weights")] != [resumed[k] for k in ("loss", "weights")]:
        sys.exit("the run that was killed does not end as the one that was not")
    head: dict[str, Any] = {
        "commit": lanes.BASE,
        **lanes.machine(),
        "killed": LINE,
        "finished": JUDGE,
    }
    head["identity"] = results["resumed"]["facts"]["identity"]
    text = json.dumps({**head, "found": {**found, "uninterrupted": whole_}}, indent=1)
    (FOLDER / "expected.json").write_text(text + "\n", encoding="utf-8")


def make_2(tree: Path) -> None:
    """The run of numerics 2, beside what is there."""
    shutil.rmtree(FOLDER / "killed_2", ignore_errors=True)
    with tempfile.TemporaryDirectory() as scratch:
        for name in ("whole", "cut"):
            (Path(scratch) / name).mkdir()
            shutil.copy(FOLDER / "text.txt", Path(scratch) / name)
        train(tree, Path(scratch) / "whole", LINE_2)
        train(tree, Path(scratch) / "cut", LINE_2, kill=KILLED_2)
        found = gather(Path(scratch) / "whole" / "killed_2", named=False)
        shutil.copytree(Path(scratch) / "cut" / "killed_2", FOLDER / "killed_2", symlinks=True)
    anonymous(FOLDER / "killed_2")
    head = {"numerics": NUMERICS, **lanes.machine(), "killed": LINE_2}
    text = json.dumps({**head, "found": numbers({"said": {}, **found})}, indent=1)
    (FOLDER / "expected_2.json").write_text(text + "\n", encoding="utf-8")


def anonymous(run: Path) -> None:
    """Take machine and hour out of its status: on another host it is dead after a minute."""
    file = run / "status.json"
    status = json.loads(file.read_text(encoding="utf-8"))
    status |= {"host": "elsewhere", "time": LONG_AGO, "started": LONG_AGO}
    file.write_text(json.dumps(status, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    (make_2 if "killed_2" in sys.argv[2:] else make)(Path(sys.argv[1]).resolve())
