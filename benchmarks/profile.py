"""Profile mixers: train tiny models on small tasks that separate them, keep each run's record.

    python -m benchmarks profile mixer=delta               make profile M=delta
    python -m benchmarks profile mixer=delta,gla tasks=mqar,parity workers=2
    python -m benchmarks profile mixer=delta+conv=4        with an option (variant.py)

Per task, three learning rates on seed 0 choose the rate by validation accuracy; four fresh seeds
report at it. A run ends early once validation accuracy has reached 0.99. The model, two layers of
64 with swiglu, is `preset=profile`; queries and keys are rotated (rope) where the mixer can, else
there is no position. Runs that the run store has (store/, CHIMERA_STORE) are not repeated; an
interrupted command goes on where it was. All runs of a process share one start of Python.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mean, stdev
from typing import Any

from benchmarks import variant
from chimera.config.arguments import read
from chimera.config.compose import compose, plain
from chimera.errors import NotFiniteError, UserError, unknown
from chimera.rundir.directory import RunDir
from chimera.rundir.identity import identity
from chimera.rundir.records import Records, add
from chimera.types import PositiveInt

USAGE = "python -m benchmarks profile mixer=<name>[+<option>=<value>…][,…] [tasks=…] [workers=2]"
#: Tasks, each a choice of `data=mad/`, whose YAML has batch, lengths and difficulty.
TASKS = (
    "fuzzy_recall",
    "memorisation",
    "selective_copy",
    "compression",
    "parity",
    "s5",
    "regbench",
    "induction",
)
#: Tasks that are profiled only if they are named. Attention stays at chance on mqar within STEPS.
MORE = ("mqar",)
#: Steps of training, at most, with about 1,000 symbols each.
STEPS = 800
RATES = (1e-3, 3e-3, 1e-2)
CHOICE, SEEDS = 0, (1, 2, 3, 4)
SOLVED = 0.99
_EARLY = "+callbacks.solved"


@dataclass(frozen=True)
class Options:
    """What to profile.

    Args:
        mixer: names of mixers, each with options if wanted: delta+conv=4.
        tasks: names of tasks; the eight of the profile without it.
        workers: processes that share the tasks of each mixer.
    """

    mixer: list[str]
    tasks: list[str] = field(default_factory=lambda: list(TASKS))
    workers: PositiveInt = 1


def main(words: Sequence[str] = ()) -> dict[str, Any]:
    """Train what is missing and print a table for each mixer; no results file is written.

    Raises:
        UserError: an unknown mixer, task or word.
    """
    if not words:
        print(f"profile trains for hours and needs a mixer: {USAGE}")
        return {}
    options = read(Options, words, USAGE)
    for mixer in _check(options):
        if options.workers > 1:
            _divide(mixer, options)
        else:
            for task in options.tasks:
                profile(mixer, task)
        print(table(mixer, options.tasks), flush=True)
    return {}


def overrides(
    mixer: str, task: str, rate: float, seed: int, parts: Sequence[str] = (), name: str = ""
) -> list[str]:
    """Words of the command line of one run.

    Args:
        mixer, task: names; a mixer may have options, `delta+conv=4`.
        rate, seed: learning rate and seed; `CHOICE` is the seed of the runs that choose the rate.
        parts: further words, such as `norm=dyt`.
        name: of the record, whose first part is its tag; `profile-<task>-<mixer>` without.
    """
    name = name or f"profile-{task}-{variant.in_name(mixer)}"
    return [
        "preset=profile",
        f"data=mad/{task}",
        *variant.words(mixer),
        f"position={position(mixer)}",
        f"trainer.max_steps={STEPS}",
        f"optim.lr={rate:g}",
        f"seed={seed}",
        f"{_EARLY}._target_=lightning.pytorch.callbacks.EarlyStopping",
        f"{_EARLY}.monitor=val/accuracy",
        f"{_EARLY}.mode=max",
        f"{_EARLY}.patience=1000000",
        f"{_EARLY}.check_on_train_epoch_end=false",
        f"{_EARLY}.stopping_threshold={SOLVED}",
        "guard=skip",
        "logger=none",
        "trainer.progress=none",
        "trainer.threads=1",
        *parts,
        f"name={name}",
        tags(name, rate, seed),
    ]


def tags(name: str, rate: float, seed: int) -> str:
    """Word that says what a run is for: it chooses the rate, or it reports."""
    stage = "rate" if seed == CHOICE else "report"
    return f"tags=[{name.partition('-')[0]},{stage},'lr={rate:g}']"


def position(mixer: str) -> str:
    """`rope` where all layers can rotate queries and keys, else `none`."""
    if mixer not in _POSITIONS:
        from benchmarks.parts import choices, rotates
        from chimera.config.settings import Model

        shape = Model(dim=64, depth=2, heads=2)
        name, *options = variant.words(mixer)
        factories = choices(name.removeprefix("mixer="), *options)
        _POSITIONS[mixer] = "rope" if rotates(shape, factories) else "none"
    return _POSITIONS[mixer]


_POSITIONS: dict[str, str] = {}


def profile(mixer: str, task: str) -> None:
    """Train what is missing of one task: the runs that choose the rate, then those that report."""
    if settle(lambda rate, seed: overrides(mixer, task, rate, seed), RATES, SEEDS) is None:
        print(f"{mixer} {task}: no rate trains", flush=True)


def settle(
    words: Callable[[float, int], list[str]], rates: Sequence[float], seeds: Sequence[int]
) -> float | None:
    """Train what is missing of one setting, and return its rate; None if no rate trains.

    Args:
        words: of the run at a rate and a seed.
        rates: of which the runs on seed `CHOICE` choose; a single one needs no run.
        seeds: that report at the chosen rate.
    """
    rate = rates[0]
    if len(rates) > 1:
        candidates = [run(words(each, CHOICE)) for each in rates]
        best = chosen([record for record in candidates if record is not None])
        if best is None:
            return None
        rate = rate_of(best)
    for seed in seeds:
        run(words(rate, seed))
    return rate


def run(words: list[str]) -> dict[str, Any] | None:
    """Record of a run, trained if the store lacks it; None if its numbers do not stay finite."""
    config = plain(compose(words))
    stored = Records().find(config, identity(config))
    if stored is not None:
        return stored.result
    from chimera.api.runs import fit

    began = time.perf_counter()
    try:
        directory = fit(*words).path
    except NotFiniteError as error:
        where = f"{config['name']} lr={config['optim']['lr']:g} seed={config['seed']}"
        print(f"{where}: {error}", flush=True)
        return None
    record = RunDir(directory).record()
    add([directory])
    shutil.rmtree(directory)  # weights of a solved toy task; the record has its numbers
    print(f"{line(record)}, {time.perf_counter() - began:.0f} s", flush=True)
    return record


def chosen(records: Iterable[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The record of the best rate: best at validation, then fewest steps, lowest rate."""
    return min(records, key=lambda record: order(record, rate_of(record)), default=None)


def order(record: Mapping[str, Any], rate: float) -> tuple[float, int, float]:
    """Key by which the run of the best rate comes first."""
    return -goodness(record, "val"), record["steps"], rate


def goodness(record: Mapping[str, Any], part: str) -> float:
    """Accuracy of a small task, or the loss of a language model with its sign changed.

    Args:
        record: of a run.
        part: `val` or `test`.
    """
    metrics = record["metrics"]
    text = "val/perplexity" in metrics
    return float(-metrics[f"{part}/loss"] if text else metrics[f"{part}/accuracy"])


def rate_of(record: Mapping[str, Any]) -> float:
    """Learning rate of a record, from its tags."""
    return float(next(tag for tag in record["tags"] if tag.startswith("lr=")).removeprefix("lr="))


def table(mixer: str, tasks: Sequence[str]) -> str:
    """A row for each task: chosen rate, accuracy of the reporting seeds, chance, steps."""
    lines = ["| task | rate | accuracy | ± | chance | majority | solved at |", "|---" * 7 + "|"]
    for task in tasks:
        best = chosen(found for rate in RATES if (found := stored(mixer, task, rate, CHOICE)))
        reported = [
            found
            for seed in SEEDS
            if best is not None and (found := stored(mixer, task, rate_of(best), seed))
        ]
        if best is None or not reported:
            lines.append(f"| {task} | | no run | | | | |")
            continue
        values = [record["metrics"]["test/accuracy"] for record in reported]
        spread = stdev(values) if len(values) > 1 else 0.0
        metrics = reported[0]["metrics"]
        solved = [r["steps"] for r in reported if r["steps"] < STEPS]
        lines.append(
            f"| {task} | {rate_of(best):g} | {mean(values):.3f} | {spread:.3f} |"
            f" {metrics['val/chance_accuracy']:.3f} | {metrics['val/majority_accuracy']:.3f} |"
            f" {', '.join(map(str, solved)) or '–'} |"
        )
    return f"{mixer}, position {position(mixer)}\n" + "\n".join(lines)


def line(record: Mapping[str, Any]) -> str:
    """One line on a finished run."""
    return (
        f"{record['name']} {record['tags'][1]} {record['tags'][2]} seed={record['seed']}:"
        f" {abs(goodness(record, 'test')):.3f} after {record['steps']} steps"
    )


def stored(mixer: str, task: str, rate: float, seed: int) -> dict[str, Any] | None:
    """Record of a run of the profile, None if the run store lacks it."""
    config = plain(compose(overrides(mixer, task, rate, seed)))
    found = Records().find(config, identity(config))
    return None if found is None else found.result


def _check(options: Options) -> list[str]:
    """The mixers in canonical form, each once."""
    mixers = [variant.checked(mixer) for mixer in options.mixer]
    for task in options.tasks:
        if task not in (*TASKS, *MORE):
            raise unknown("tasks", task, (*TASKS, *MORE))
    return list(dict.fromkeys(mixers))


def _divide(mixer: str, options: Options) -> None:
    """Share the tasks among processes; each takes every n-th."""
    parts = [options.tasks[first :: options.workers] for first in range(options.workers)]
    children = [
        subprocess.Popen(
            [
                sys.executable,
                "-m",
                "benchmarks",
                "profile",
                f"mixer={mixer}",
                f"tasks={','.join(p)}",
            ]
        )
        for p in parts
        if p
    ]
    codes = [child.wait() for child in children]
    if any(codes):
        raise UserError(f"a process of mixer={mixer} ended with code {max(codes)}; see above")
