"""Train norms, quantisers and feed-forward layers together, and tell what each does.

    python -m benchmarks effects mixer=attention workers=2      train what is missing of the design
    python -m benchmarks effects mixer=attention to=docs        write docs/effects.md; train nothing

Three factors of five levels have 125 combinations; a Latin square of 25 has every pair of levels of
two factors once. `squares=2` trains 50, every pair with two levels of the third factor. Each
combination is trained as `preset=profile` on small tasks, three rates on seed 0 and fresh seeds at
the best, and as a language model at `scale=small`. Runs that the run store has (store/,
CHIMERA_STORE) are not repeated; an interrupted command goes on where it was.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import profile
from benchmarks.effect import page
from benchmarks.effect.fit import Cell
from benchmarks.effect.plan import Plan, analyse
from benchmarks.effect.runs import FACTORS, TEXT, Measured, measured, train
from benchmarks.effect.squares import cells
from chimera.config.arguments import read
from chimera.config.groups import groups
from chimera.errors import UserError, unknown
from chimera.rundir.safe_io import make_folder
from chimera.types import PositiveFloat, PositiveInt

USAGE = (
    "python -m benchmarks effects mixer=attention [tasks=…] [norms=…] [quants=…] [ffns=…]"
    " [squares=2] [workers=2] [to=docs]"
)
TASKS = ("memorisation", "selective_copy", "regbench", "mlm")
NORMS = ("layernorm", "rmsnorm", "dyt", "qdyt", "static_tanh")
QUANTS = ("none", "bitnet158", "hbit", "int8", "mxfp4")
FFNS = ("mlp", "swiglu", "relu2", "moe", "none")


@dataclass(frozen=True)
class Options:
    """What to train.

    Args:
        mixer: of all runs.
        tasks: small tasks of the profile, `mlm` and `causal_lm`.
        norms, quants, ffns: levels of the factors, as many of each.
        squares: Latin squares, 1 to the number of levels, which is all combinations.
        seeds: fresh seeds that report a small task.
        lm_seeds: fresh seeds that report a language model.
        lm_rates: learning rates of language models; of several, seed 0 chooses.
        workers: processes that share the combinations.
        share: n,of: of the combinations every of-th, from the n-th, for several machines.
        to: folder into which effects.md is written; nothing is trained.
    """

    mixer: str
    tasks: list[str] = field(default_factory=lambda: list(TASKS))
    norms: list[str] = field(default_factory=lambda: list(NORMS))
    quants: list[str] = field(default_factory=lambda: list(QUANTS))
    ffns: list[str] = field(default_factory=lambda: list(FFNS))
    squares: PositiveInt = 1
    seeds: PositiveInt = 2
    lm_seeds: PositiveInt = 1
    lm_rates: list[PositiveFloat] = field(default_factory=lambda: [2e-3])
    workers: PositiveInt = 1
    share: list[PositiveInt] = field(default_factory=lambda: [1, 1])
    to: Path | None = None

    @property
    def factors(self) -> tuple[tuple[str, ...], ...]:
        return tuple(map(tuple, (self.norms, self.quants, self.ffns)))

    def budget(self, task: str) -> tuple[list[float], list[int]]:
        """Learning rates of a task, and seeds that report."""
        if task in TEXT:
            return self.lm_rates, list(range(1, self.lm_seeds + 1))
        return list(profile.RATES), list(range(1, self.seeds + 1))


def main(words: Sequence[str] = ()) -> dict[str, Any]:
    """Train what is missing and print the effects, or write the page; no results file is written.

    Raises:
        UserError: a bad word, a design that is no Latin square, or nothing to write of.
    """
    if not words:
        print(f"effects trains for hours and needs a mixer: {USAGE}")
        return {}
    options = read(Options, words, USAGE)
    chosen = _check(options)
    plan = Plan(_command(words), options.mixer, options.factors, chosen, options.squares)
    if options.to is not None:
        _write(plan, options, options.to)
    elif options.workers > 1:
        _divide(words, options.workers)
        _print(plan, options)
    else:
        first, of = options.share
        for task in options.tasks:
            for cell in chosen[first - 1 :: of]:
                if why := train(options.mixer, task, cell, *options.budget(task)):
                    print(f"{task} {', '.join(cell)}: {why}", flush=True)
        if of == 1:
            _print(plan, options)
    return {}


def _check(options: Options) -> list[Cell]:
    """The combinations to train.

    Raises:
        UserError: an unknown name, levels that fit no Latin square, or a bad share.
    """
    known = groups()
    if options.mixer not in known["mixer"]:
        raise unknown("mixer", options.mixer, known["mixer"])
    for key, group, levels in zip(
        ("norms", "quants", "ffns"), FACTORS, options.factors, strict=True
    ):
        for level in levels:
            if level not in known[group]:
                raise unknown(key, level, known[group])
    small = (*profile.TASKS, *profile.MORE)
    for task in options.tasks:
        if task not in (*small, *TEXT):
            raise unknown("tasks", task, (*small, *TEXT))
    if len(options.share) != 2 or options.share[0] > options.share[1]:
        raise UserError("share= is n,of with n at most of, such as share=1,2")
    if options.share[1] > 1 and options.workers > 1:
        raise UserError("share= and workers= both divide the work; name one of them")
    return cells(options.factors, options.squares)


def _command(words: Sequence[str]) -> str:
    """The command that writes the page, without where and with how many processes."""
    kept = [w for w in words if w.partition("=")[0] not in ("workers", "share", "to")]
    return " ".join(["python -m benchmarks effects", *kept, "to=docs"])


def _measured(plan: Plan, options: Options) -> list[Measured]:
    runs = [measured(plan.mixer, task, plan.cells, *options.budget(task)) for task in options.tasks]
    if not any(one.responses for one in runs):
        raise UserError("the store has no record of these combinations; train them without to=")
    return runs


def _write(plan: Plan, options: Options, to: Path) -> None:
    text = page.page(plan, _measured(plan, options))
    make_folder(to, of=to, key="to")
    (to / "effects.md").write_text(text, encoding="utf-8")
    print(f"wrote {to / 'effects.md'}")


def _print(plan: Plan, options: Options) -> None:
    """Print the tables of effects."""
    try:
        tasks, without = analyse(plan, _measured(plan, options))
    except UserError as error:
        print(error)
        return
    if tasks:
        for factor in range(len(FACTORS)):
            print("\n".join(page.effects(plan, tasks, factor)), flush=True)
        print(page.explained(tasks))
    for line in without:
        print(line)


def _divide(words: Sequence[str], workers: int) -> None:
    """Share the combinations among processes; each takes every n-th."""
    kept = [word for word in words if not word.startswith("workers=")]
    command = [sys.executable, "-m", "benchmarks", "effects", *kept]
    children = [subprocess.Popen([*command, f"share={n},{workers}"]) for n in range(1, workers + 1)]
    codes = [child.wait() for child in children]
    if any(codes):
        raise UserError(f"a process of effects ended with code {max(codes)}; see above")
