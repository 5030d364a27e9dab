"""One process and several give the same losses: `python -m tests.ranks.equality`.

Trains the golden command lines (`tests.golden.combinations`: every component and task, twenty
steps) on one process, and on as many as asked for with each strategy, and prints the largest
relative difference of a step's loss. Quantised models round: a difference in the last bit may move
a weight by a whole step of its grid. What one process gives with two threads instead of one, and
with another instruction set, stands beside it.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests import forks
from tests.golden import inputs
from tests.golden.combinations import ALL, ROOT, Combination, causal, own, units

#: A mixture of experts whose experts drop nothing: no capacity is a process's own.
UNCAPPED = [
    own("moe-uncapped", "ffn=moe ffn.capacity_factor=null"),
    causal("routed-uncapped", "mixer=routed position=none ffn=moe ffn.capacity_factor=null"),
]
#: A run that rounds little, with dropout and two micro-batches in a step.
PLAIN = "mixer=retnet norm=rmsnorm ffn=swiglu model.dropout=0.1 trainer.accumulate_grad_batches=2"
#: Ways to train that the golden lines have only together with what rounds or drops.
WAYS = [
    own("accumulation", PLAIN),
    own("checkpointing", f"{PLAIN} model.gradient_checkpointing=true model.loops=2"),
    own("compiled", "trainer.compile=true"),
    own("bf16-accumulation", "precision=bf16 trainer.accumulate_grad_batches=2"),
    own("fp16-accumulation", "precision=fp16 guard=skip trainer.accumulate_grad_batches=2"),
]
EXTRA = {one.name: one for one in (*UNCAPPED, *WAYS)}
#: Lines that differ only in what does not concern several processes.
LEFT_OUT = ("wandb", "workers")


@dataclass(frozen=True)
class Setting:
    """How processes train.

    Args:
        world: number of processes.
        strategy: ddp or fsdp.
        threads: of each process.
        narrow: torch and oneDNN use AVX2 at most.
    """

    world: int
    strategy: str = "ddp"
    threads: int = 1
    narrow: bool = False

    @property
    def label(self) -> str:
        """Name of a folder."""
        return str(self).replace(" ", "-").replace(",", "")

    def __str__(self) -> str:
        if self.narrow:
            return "1 process, AVX2"
        if self.world == 1:
            return f"1 process, {self.threads} thread{'s' * (self.threads > 1)}"
        return f"{self.world} processes, {self.strategy}"


ALONE = Setting(1)


def train(setting: Setting, combinations: Iterable[Combination], folder: Path) -> None:
    """Train command lines; their run directories are in a folder of the setting's name."""
    command = [sys.executable, "-m", "tests.ranks.worker"]
    if setting.world > 1:
        torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
        command[1:2] = [*torchrun, str(setting.world), "-m"]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}/src:{ROOT}", "OMP_NUM_THREADS": "1"}
    if setting.narrow:
        environment |= {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}
    command.append(str(write_jobs(setting, combinations, folder)))
    subprocess.run(command, check=True, env=environment, stdout=sys.stderr)


def write_jobs(setting: Setting, combinations: Iterable[Combination], folder: Path) -> Path:
    """Write the file of jobs for `tests.ranks.worker`."""
    runs = {
        one.name: [
            *one.line,
            f"run_dir={place(folder, setting, one)}",
            "trainer.progress=none",
            f"trainer.strategy={setting.strategy}",
            f"trainer.threads={setting.threads}",
        ]
        for one in combinations
    }
    jobs = folder / f"jobs-{setting.label}.json"
    work = {"folder": str(folder / "inputs"), "label": setting.label, "runs": runs}
    jobs.write_text(json.dumps(work), encoding="utf-8")
    return jobs


def place(folder: Path, setting: Setting, one: Combination) -> str:
    """Run directory, relative to the inputs; that of a model others start from has its own name."""
    if setting == ALONE and any(other.after == one.name for other in ALL.values()):
        return one.name
    return str(folder / setting.label / one.name)


def losses(folder: Path, setting: Setting, one: Combination, column: str = "loss") -> list[float]:
    """Loss of each step, or another column; empty if the run was refused or failed."""
    file = folder / "inputs" / place(folder, setting, one) / "steps.csv"
    if not file.exists():
        return []
    with file.open(newline="", encoding="utf-8") as rows:
        return [float(row[column]) for row in csv.DictReader(rows)]


def difference(first: list[float], second: list[float]) -> float | None:
    """Largest relative difference of two runs of the same length; None if there is none."""
    if not first or len(first) != len(second):
        return None
    return max(abs(a - b) / abs(a) for a, b in zip(first, second, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="*", default=None)
    parser.add_argument("--several", action="store_true", help="no columns of one process")
    parser.add_argument("--worlds", nargs="*", type=int, default=[2, 4])
    parser.add_argument("--strategies", nargs="*", default=["ddp", "fsdp"])
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    chosen = options.only or [name for name in (*ALL, *EXTRA) if name not in LEFT_OUT]
    combinations = [one for unit in units([n for n in chosen if n in ALL]) for one in unit]
    combinations += [EXTRA[name] for name in chosen if name in EXTRA]
    folder = options.folder or Path(tempfile.mkdtemp(prefix="equality-"))
    inputs.make(folder / "inputs")
    settings = [
        *([] if options.several else [Setting(1, threads=2), Setting(1, narrow=True)]),
        *(Setting(world, strategy) for world in options.worlds for strategy in options.strategies),
    ]
    for setting in (ALONE, *settings):
        train(setting, combinations, folder)
    print(table(folder, combinations, settings))


def table(folder: Path, combinations: list[Combination], settings: list[Setting]) -> str:
    """A Markdown table: a row for each command line, a column for each setting."""
    lines = [
        " | ".join(["", "run", *map(str, settings), ""]).strip(),
        "|" + " --- |" * (len(settings) + 1),
    ]
    for one in combinations:
        alone = losses(folder, ALONE, one)
        found = (difference(alone, losses(folder, setting, one)) for setting in settings)
        cells = ["–" if value is None else f"{value:.1e}" for value in found]
        lines.append(" | ".join(["", one.name, *cells, ""]).strip())
    return "\n".join(lines)


def train_forked(setting: Setting, combinations: Iterable[Combination], folder: Path) -> None:
    """The same in processes forked from one that has imported everything: seconds, not minutes."""
    jobs = write_jobs(setting, combinations, folder)
    done = together(setting.world, "-m", "tests.ranks.worker", str(jobs))
    assert [each.returncode for each in done] == [0] * setting.world, done[0].stderr[-3000:]


def together(world: int, *words: str) -> list[subprocess.CompletedProcess[str]]:
    """Run `python <words>` on several processes, with the variables that torchrun sets."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(world)}
    common |= {"LOCAL_WORLD_SIZE": str(world)}
    started = [
        forks.start(*words, env=common | {"RANK": str(rank), "LOCAL_RANK": str(rank)})
        if world > 1
        else forks.start(*words)
        for rank in range(world)
    ]
    return [one.wait() for one in started]


def said(folder: Path, setting: Setting, one: Combination) -> Sequence[str]:
    """What the processes said that did not train a run; for a test's message."""
    found = folder.glob(f"jobs-{setting.label}.{one.name}.*")
    return [file.read_text() for file in found] or [place(folder, setting, one)]


if __name__ == "__main__":
    main()
