"""Train `ours/size` on a GPU in slices of minutes: `python -m tools.size_queue [stage …]`.

A slice works through the queue until its seconds are over, saves what is in training, and keeps the
records of what is finished in experiments/ours/size/results/paper at once. The same command goes
on where the last one ended: with the records alone on another machine, with checkpoints on the
same one. The stages, in this order:

    tokens    each row, 3,000 steps
    seconds   each row, as many steps as attention's seconds pay for, once both speeds are known
    small     the rows at 128, 256 and 512 wide
    rates     each row at three rates for 600 steps, on a seed of its own

Words behind `--` go to all runs, such as another `data.path`. Without a text of its own the queue
reads what `python tools/documentation.py .gpu/text` gathered. Where the packages come from
.gpu/wheels, `MODULE=tools.size_queue tools/gpu.sh` runs it.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from chimera.paths import ROOT
from chimera.rundir.records import frame

TABLE = "ours/size"
CHIMERA = (sys.executable, "-P", "-m", "chimera")
ROWS = ("attention", "conv_attention", "retnet", "gated_delta", "mamba2")
RATES, RATE_STEPS, RATE_SEED = "5e-4,1e-3,2e-3", 600, 100
#: Width, depth, heads, steps and rate of the smaller models.
SMALL = ((128, 4, 2, 500, 6e-3), (256, 6, 4, 1000, 3e-3), (512, 8, 8, 2000, 1.5e-3))
TEXT = ("data=text", f"data.path={ROOT / '.gpu' / 'text' / 'documentation.jsonl.zst'}")
#: Where the runs are, apart from others, whose records are not this queue's to keep.
RUNS = Path(os.environ.get("CHIMERA_RUNS", ROOT / "runs" / "size"))
#: Seconds that a stopped run has to save itself.
GRACE = 30


def lines(stage: str) -> Iterator[tuple[str, str]]:
    """Rows of a stage and the words of their runs beside those of all runs."""
    if stage == "tokens":
        yield from ((row, "seed=0") for row in ROWS)
    elif stage == "seconds":
        yield from ((row, f"seed=0 trainer.max_steps={steps}") for row, steps in equal_seconds())
    elif stage == "small":
        for dim, depth, heads, steps, rate in SMALL:
            size = f"model.dim={dim} model.depth={depth} model.heads={heads}"
            words = f"seed=0 {size} trainer.max_steps={steps} optim.lr={rate}"
            yield from ((row, words) for row in ROWS)
    else:
        tried = f"optim.lr={RATES} seed={RATE_SEED} trainer.max_steps={RATE_STEPS}"
        yield from ((row, tried) for row in ROWS)


def equal_seconds() -> Iterator[tuple[str, int]]:
    """Rows and the steps that attention's seconds pay for, of runs on attention's card."""
    found = frame(TABLE)
    if not len(found):
        return
    found = found[(found["model.dim"] == found["model.dim"].max()) & (found["seed"] == 0)]
    whole = found.loc[found["row"] == "attention", "trainer.max_steps"].max()
    found = found[found["trainer.max_steps"] == whole].drop_duplicates("row").set_index("row")
    for row in ROWS[1:]:
        if {row, "attention"} <= {*found.index} and found["gpu"].nunique(dropna=False) == 1:
            speed = found["tokens_per_second"]
            yield row, round(whole * speed[row] / speed["attention"])


def main() -> int:
    """Work through the queue until it or the time is at its end; 0 if nothing is left."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=220)
    parser.add_argument("--scale", default="paper")
    stages = ("tokens", "seconds", "small", "rates")
    parser.add_argument("stages", nargs="*", help=", ".join(stages))
    cut = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    given = parser.parse_args(sys.argv[1:cut])
    if unknown := {*given.stages} - {*stages}:
        parser.error(f"no stage {', '.join(unknown)}; there are {', '.join(stages)}")
    os.environ["CHIMERA_RUNS"] = str(RUNS)  # of the processes that train
    end = time.monotonic() + given.seconds
    usual = [f"scale={given.scale}", *(sys.argv[cut + 1 :] or TEXT)]
    for stage in given.stages or stages:
        for row, words in lines(stage):
            left = end - time.monotonic() - GRACE
            if left <= 0 or not _trained(["-m", f"+{TABLE}={row}", *usual, *words.split()], left):
                print("the time is over; the same command goes on")
                return 3
    print("the queue is at its end")
    return 0


def _trained(line: list[str], seconds: float) -> bool:
    """Run a sweep for so long at most, keeping each finished run; whether it ended by itself."""
    print(" ".join(line), flush=True)
    end, kept, asked = time.monotonic() + seconds, _finished(), False
    with subprocess.Popen([*CHIMERA, "train", *line]) as sweep:
        while sweep.poll() is None or _finished() > kept:
            if (done := _finished()) > kept:
                kept = done
                subprocess.run(
                    [sys.executable, "-P", "-m", "chimera", "records", "add"], check=True
                )
            if not asked and time.monotonic() > end:
                asked = True
                sweep.send_signal(signal.SIGTERM)
            time.sleep(1)
    return not asked


def _finished() -> int:
    return len([*RUNS.glob("*/run.json")])


if __name__ == "__main__":
    sys.exit(main())
