"""Read the runs of a comparison. Everything in their directories may be a stranger's."""

from __future__ import annotations

import csv
import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

from chimera.errors import UserError, nearest, one_line
from chimera.rundir.directory import RunDir
from chimera.rundir.identity import flatten, identity_settings
from chimera.rundir.steps import validated
from chimera.rundir.store import intact, is_stored
from chimera.rundir.summaries import Summaries
from chimera.rundir.text import Text, text_of

#: Choices without a say in the numbers, or whose effect other keys hold.
NOT_SHOWN = ("preset", "debug", "scale", "logger", "launcher", "callbacks", "guard", "trainer")
#: Facts of run.json, by their name in a comparison.
FACTS = {
    "tokens_per_second": "tokens_per_second",
    "peak_memory_gb": "peak_memory_gb",
    "wall_seconds": "wall_seconds",
    "parameters": "parameters.total",
    "mfu": "mfu",
}
#: Points of a drawn curve.
POINTS = 160
#: Times the median step that a gap between two rows may be before it counts as a pause of the run.
PAUSE = 50.0


@dataclass(frozen=True)
class Run:
    """A run of a comparison.

    Args:
        path: its directory.
        state: of its status.json, `running` seen from here.
        settings: flat keys on which its numbers depend, and its choices, as text.
        metrics: of its final validation and test.
        facts: speed, memory, time, parameters, by the names of `FACTS`.
        validations: (step, loss).
        seed: of its random numbers.
        table: name of the table that it is a row of; empty for other runs.
        tokens: of an optimiser step without padding; None if that is not known.
        flops: of a token in training; None likewise.
        text: hashes of its training text; None in records of older versions.
    """

    path: Path
    state: str
    settings: dict[str, str]
    metrics: dict[str, float] = field(default_factory=dict)
    facts: dict[str, float] = field(default_factory=dict)
    validations: list[tuple[float, float]] = field(default_factory=list)
    seed: str = ""
    table: str = ""
    tokens: float | None = None
    flops: float | None = None
    text: Text | None = None

    @cached_property
    def curve(self) -> list[tuple[float, float, float]]:
        """(step, smoothed loss, seconds without pauses) at a few points of the training."""
        return thinned(self.path / "steps.csv")


def directories(places: Sequence[Path]) -> list[Path]:
    """Directories of runs, each once: those that are named, and those in folders that are named.

    Raises:
        UserError: a place is neither.
    """
    found: dict[Path, None] = {}
    for place in places:
        if not place.is_dir():
            beside = place.parent.iterdir() if place.parent.is_dir() else ()
            close = nearest(place.name, [path.name for path in beside])
            raise UserError(f"{place} is no folder; name runs, or a folder that holds them{close}")
        if is_run(place):
            found[place] = None
            continue
        inside = [path for path in sorted(place.iterdir()) if is_run(path)]
        if not inside:
            raise UserError(f"{place} holds no run; name runs, or a folder that holds them")
        found |= dict.fromkeys(inside)
    return list(found)


def is_run(path: Path) -> bool:
    """Whether a folder holds a run that has begun."""
    return (path / "config.yaml").is_file() and (path / "status.json").is_file()


def collect(
    paths: Iterable[Path], summaries: Summaries | None = None
) -> tuple[list[Run], dict[Path, str]]:
    """The runs in these directories, and what is wrong with those that cannot be read.

    Args:
        paths: directories of runs.
        summaries: of runs that were read before; None reads all.
    """
    runs, broken = [], dict[Path, str]()
    for path in paths:
        try:
            known = summaries and summarised(path, summaries.get(path))
            runs.append(known or read(path))
        except UserError as error:
            broken[path] = one_line(error)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            broken[path] = one_line(f"its files are not those of a run: {error!r}")
    return runs, broken


def read(path: Path) -> Run:
    """Read a run.

    Raises:
        UserError: a file of it cannot be read, or nests too deep.
        KeyError, TypeError, ValueError, AttributeError, OverflowError: a file holds something else.
    """
    directory = RunDir(path)
    if is_stored(directory):
        directory = intact(path)
    config, record, status = directory.config(), directory.record(), directory.status()
    state = one_line(status.get("state"))[:40]
    state = "STOPPED" if state == "RUNNING" and not directory.is_running() else state
    table, data, trainer = config.get("table"), config["data"], config["trainer"]
    length = data.get("seq_len") or config["model"].get("max_len")
    batch = data.get("batch_size")
    facts = flatten(record)
    return Run(
        path,
        state,
        settings_of(config),
        numbers(record.get("metrics") or {}),
        numbers({name: facts.get(key) for name, key in FACTS.items()}),
        [(float(step), loss) for step, loss in validated(record)],
        str(config.get("seed")),
        str(table.get("name")) if isinstance(table, dict) else "",
        float(length * batch * (trainer.get("accumulate_grad_batches") or 1))
        if isinstance(length, int) and isinstance(batch, int)
        else None,
        number((record.get("flops") or {}).get("training")),
        text_of(record),
    )


def summary_of(run: Run) -> dict[str, Any]:
    """A run as plain values, with its curve if that was read."""
    found = {name: value for name, value in vars(run).items() if name != "path"}
    return found | {"text": run.text and list(run.text)}


def summarised(path: Path, summary: Any) -> Run | None:
    """The run of a summary; None if it is of another form."""
    if not isinstance(summary, dict):
        return None
    values = dict(summary)
    curve, text = values.pop("curve", None), values.pop("text", None)
    try:
        validations = [(float(step), float(loss)) for step, loss in values.pop("validations")]
        run = Run(path, **values, validations=validations, text=Text(*text) if text else None)
        if curve is not None:
            points = [(float(step), float(loss), float(at)) for step, loss, at in curve]
            run.__dict__["curve"] = points  # where `cached_property` looks first
    except (KeyError, TypeError, ValueError):
        return None
    return run


def settings_of(config: dict[str, Any]) -> dict[str, str]:
    """Flat settings on which the numbers of a run depend, as text, and its choices by group."""
    choices = {k: v for k, v in config["choices"].items() if k not in NOT_SHOWN}
    settings = flatten(identity_settings(config))
    return {k: _shown(v) for k, v in {**settings, **choices}.items()}


def numbers(values: dict[str, Any]) -> dict[str, float]:
    """The finite numbers of a mapping."""
    found = {one_line(key)[:100]: number(value) for key, value in values.items()}
    return {key: value for key, value in found.items() if value is not None}


def number(value: object) -> float | None:
    """A finite number, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        found = float(value)
    except OverflowError:  # an integer of hundreds of digits
        return None
    return found if math.isfinite(found) else None


def thinned(log: Path, points: int = POINTS) -> list[tuple[float, float, float]]:
    """(step, mean loss since the last point, seconds since the first step) of a step log.

    Pauses between two processes of a run are left out of the seconds. A row that cannot be read
    is skipped.

    Args:
        log: steps.csv; may be missing.
        points: about so many are kept.
    """
    rows = list(_rows(log))
    if not rows:
        return []
    gaps = [max(0.0, b[2] - a[2]) for a, b in pairwise(rows)]
    longest = PAUSE * statistics.median(gaps) + 1.0 if gaps else 0.0
    seconds, clock = [0.0], 0.0
    for gap in gaps:
        clock += min(gap, longest)
        seconds.append(clock)
    size = max(1, math.ceil(len(rows) / points))
    kept = []
    for start in range(0, len(rows), size):
        part = rows[start : start + size]
        losses = [loss for _, loss, _ in part if math.isfinite(loss)]
        if losses:
            at = start + len(part) - 1
            kept.append((part[-1][0], sum(losses) / len(losses), seconds[at]))
    return kept


def _rows(log: Path) -> Iterator[tuple[float, float, float]]:
    """(step, loss, time) of each row."""
    try:
        with log.open(newline="", encoding="utf-8", errors="replace") as file:
            reader = csv.reader(file)
            head = next(reader, [])
            step, loss, at = (head.index(k) for k in ("global_step", "loss", "timestamp"))
            for row in reader:
                try:
                    found = float(row[step]), float(row[loss]), _time(row[at])
                except (ValueError, IndexError, OverflowError):  # torn by a kill
                    continue
                if math.isfinite(found[0]) and math.isfinite(found[2]):
                    yield found
    except (OSError, ValueError, csv.Error):
        return


def _time(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return datetime.fromisoformat(text).timestamp()


def _shown(value: object) -> str:
    if isinstance(value, bool) or value is None:
        return str(value).lower().replace("none", "null")
    return one_line(value)[:200]
