"""Command lines of the runs of a cell, and their records in the run store.

A cell is (norm, quant, ffn). Records are found by the identity of their configuration, so that the
profile of a mixer is the cell rmsnorm, none, swiglu, and is not trained again.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import profile
from benchmarks.card.records import CHANCE, METRIC, above
from benchmarks.effect.fit import Cell
from benchmarks.profile import CHOICE
from chimera.config.compose import compose, plain
from chimera.errors import UserError, one_line
from chimera.rundir.identity import identity
from chimera.rundir.records import Records

#: Groups of the factors, in the order of a cell.
FACTORS = ("norm", "quant", "ffn")
#: The cell of the mixers' own profiles, whose runs keep their names, by which cards find them.
PROFILED = ("rmsnorm", "none", "swiglu")
#: Language models, by the name of their task.
TEXT = ("mlm", "causal_lm")
#: Of language models.
SCALE = "small"
#: Settings of a norm: QDyT's α warms up for about a tenth of a run, as at scale=medium and paper.
#: Its 2,000 steps would be half of each run, which decides its place (docs/results.md).
NORMS = {"qdyt": ["norm.callbacks.qdyt.warmup_steps=100"]}
#: Settings with which a feed-forward layer multiplies a token 6 d² times, as SwiGLU at the
#: profile's width; `moe` does so by the two experts of each token. Others keep their own widths.
WIDTHS = {
    "mlp": ["ffn.expand=3"],
    "swiglu": ["ffn.expand=2"],
    "geglu": ["ffn.expand=2"],
    "relu2": ["ffn.expand=4"],
    "moe": ["ffn.expert.expand=1.5"],
}


@dataclass(frozen=True)
class Measured:
    """Runs of a task.

    Args:
        task: its name.
        responses: of the reporting runs, by cell and seed: score, or loss in nats.
        records: run.json of them, by cell.
        rates: chosen learning rate, by cell.
        seconds: that all runs took, those that chose the rate among them.
        missing: why cells have no response.
        commits, processors: of the reporting runs.
    """

    task: str
    responses: dict[Cell, dict[int, float]] = field(default_factory=dict)
    records: dict[Cell, list[dict[str, Any]]] = field(default_factory=dict)
    rates: dict[Cell, float] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)
    missing: dict[Cell, str] = field(default_factory=dict)
    commits: set[str] = field(default_factory=set)
    processors: set[str] = field(default_factory=set)

    @property
    def text(self) -> bool:
        """Whether the response is a loss."""
        return self.task in TEXT


def words(mixer: str, task: str, cell: Cell, rate: float, seed: int) -> list[str]:
    """Words of the command line of one run."""
    chosen = [f"{group}={level}" for group, level in zip(FACTORS, cell, strict=True)]
    parts = [*chosen, *NORMS.get(cell[0], ()), *WIDTHS.get(cell[-1], ())]
    name = f"effects-{task}-{'-'.join(cell)}"
    if task not in TEXT:
        own = "" if cell == PROFILED else name
        return profile.overrides(mixer, task, rate, seed, parts, own)
    return [
        f"task={task}",
        f"scale={SCALE}",
        f"mixer={mixer}",
        f"position={profile.position(mixer)}",
        *parts,
        f"optim.lr={rate:g}",
        f"seed={seed}",
        "callbacks.pictures=null",
        "guard=skip",
        "logger=none",
        "trainer.progress=none",
        "trainer.threads=1",
        f"name={name}",
        profile.tags(name, rate, seed),
    ]


def train(
    mixer: str, task: str, cell: Cell, rates: Sequence[float], seeds: Sequence[int]
) -> str | None:
    """Train what is missing of a cell; return why nothing of it reports, or None."""

    def of(rate: float, seed: int) -> list[str]:
        return words(mixer, task, cell, rate, seed)

    try:
        if profile.settle(of, rates, seeds) is None:
            return "no rate trains"
    except UserError as error:
        return one_line(error)
    return None


def measured(
    mixer: str,
    task: str,
    cells: Sequence[Cell],
    rates: Sequence[float],
    seeds: Sequence[int],
    root: Path | None = None,
) -> Measured:
    """Records of these cells in a store.

    Args:
        mixer, task, cells: what was trained.
        rates: of which the runs of seed 0 choose.
        seeds: that report.
        root: of the store; None: that of this process.
    """
    store, result = Records([root] if root else None), Measured(task)
    for cell in cells:
        try:
            config = plain(compose(words(mixer, task, cell, rates[0], seeds[0])))
        except UserError as error:
            result.missing[cell] = one_line(error)
            continue
        why = _read(result, store, config, cell, rates, seeds)
        if why:
            result.missing[cell] = why
    return result


def _read(
    result: Measured,
    store: Records,
    config: dict[str, Any],
    cell: Cell,
    rates: Sequence[float],
    seeds: Sequence[int],
) -> str:
    """Add what the store has of a cell; return why it has no response, or nothing."""
    rate = rates[0]
    if len(rates) > 1:
        choosing = {each: r[0] for each in rates if (r := _record(store, config, each, CHOICE))}
        if not choosing:
            return "no record"
        result.seconds.extend(map(_seconds, choosing.values()))
        rate = min(choosing, key=lambda each: profile.order(choosing[each], each))
    reported = {seed: r for seed in seeds if (r := _record(store, config, rate, seed))}
    for seed, (record, about) in reported.items():
        response = _response(record, text=result.text)
        if not math.isfinite(response):
            continue
        result.responses.setdefault(cell, {})[seed] = response
        result.records.setdefault(cell, []).append(record)
        result.seconds.append(_seconds(record))
        result.commits.add(str((about.get("git") or {}).get("commit", ""))[:8])
        result.processors.add(str(about.get("processor", "")))
    result.rates[cell] = rate
    if cell in result.responses:
        return ""
    return "its numbers are not finite" if reported else "no record"


def _record(
    store: Records, config: dict[str, Any], rate: float, seed: int
) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """run.json and environment.json of this configuration's run at another rate and seed."""
    own = copy.deepcopy(config)
    own["optim"]["lr"], own["seed"] = rate, seed
    found = store.find(own, identity(own))
    if found is None:
        return None
    return found.result, found.environment


def _response(record: dict[str, Any], *, text: bool) -> float:
    metrics = record["metrics"]
    if text:
        return float(metrics["test/loss"])
    return above(float(metrics[METRIC]), float(metrics[CHANCE]))


def _seconds(record: dict[str, Any]) -> float:
    return float(record.get("wall_seconds", 0.0))
