"""What waiting threads cost: a training step alone and beside one other busy process.

OpenMP's threads spin where they wait for one another. Alone that is the fastest way to wait; beside
another busy process a spinning thread takes the core of the one it waits for. Each row is a process
of its own with the main job's model on 16 × 128 random tokens, two threads or one, and a
setting of GNU OpenMP, which torch's wheels for Linux bring: `GOMP_SPINCOUNT` is the number of turns
before a thread sleeps, `OMP_WAIT_POLICY=passive` sleeps at once. «fair» is the time beside the busy
process over that of an equal share: three busy threads on two cores get 2/3 of a core each, so a
step takes 3/2 of the best time alone.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import Any

from chimera.paths import ROOT

SETTINGS: dict[str, dict[str, str]] = {
    "default": {},
    "spin 10000": {"GOMP_SPINCOUNT": "10000"},
    "spin 1000": {"GOMP_SPINCOUNT": "1000"},
    "passive": {"OMP_WAIT_POLICY": "passive"},
    "one thread": {"OMP_NUM_THREADS": "1"},
}
STEPS, WARMUP, ROUNDS = 8, 2, 3
#: Time of a step at an equal share of two cores, over the time alone.
FAIR = 3 / 2
BUSY = "while True: pass"


def main() -> dict[str, Any]:
    """Measure every setting alone and in company, in turns; print the table."""
    seconds: dict[str, dict[str, list[float]]] = {
        name: {"alone": [], "beside": []} for name in SETTINGS
    }
    for _ in range(ROUNDS):
        for name, setting in SETTINGS.items():
            seconds[name]["alone"].append(measured(setting))
            busy = subprocess.Popen([sys.executable, "-c", BUSY])
            try:
                seconds[name]["beside"].append(measured(setting))
            finally:
                busy.kill()
                busy.wait()
    medians = {
        name: {where: sorted(found)[len(found) // 2] for where, found in both.items()}
        for name, both in seconds.items()
    }
    best = min(row["alone"] for row in medians.values())
    rows = {
        name: {**row, "lost_alone": row["alone"] / best - 1, "fair": row["beside"] / best / FAIR}
        for name, row in medians.items()
    }
    for name, row in rows.items():
        print(
            f"{name:<12} alone {1e3 * row['alone']:6.1f} ms ({row['lost_alone']:+.1%}), beside a"
            f" busy process {1e3 * row['beside']:6.1f} ms ({row['fair']:.2f} × the fair share)"
        )
    return {"rows": rows, "steps": STEPS, "rounds": ROUNDS}


def measured(setting: dict[str, str]) -> float:
    """Median seconds of a step in a process with these variables."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "GOMP_"))}
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.threads"], cwd=ROOT, env={**environment, **setting},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    found: list[float] = json.loads(done.stdout.splitlines()[-1])
    return sorted(found)[len(found) // 2]


def steps() -> list[float]:
    """Seconds of each step of the main job's model on random tokens."""
    import torch

    from chimera.config.compose import compose, plain
    from chimera.optim.groups import groups
    from chimera.optim.optimizer import build
    from chimera.train.build import build_task

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "2")))
    torch.manual_seed(0)
    task = build_task(plain(compose(["mixer=retnet", "quant=bitnet158", "norm=qdyt"])), 4096)
    optimizer, _ = build(task.optim, groups(task.model, task.optim), 1000, fused=True)
    ids = torch.randint(4096, (16, 128))
    index = torch.randperm(ids.numel())[: ids.numel() * 15 // 100].sort().values
    found = []
    for _ in range(WARMUP + STEPS):
        start = time.perf_counter()
        out = task.model(ids, index=index, targets=ids.flatten()[index])
        task.total_loss(out.loss, out.aux).backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(time.perf_counter() - start)
    return found[WARMUP:]


if __name__ == "__main__":
    print(json.dumps(steps()))
