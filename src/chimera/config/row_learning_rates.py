"""Read the learning rates of a table's rows, each the best of several on seeds of their own.

experiments/<paper>/<table>.rates.csv   a line for each scale, row, tried rate and seed

`chimera rates` writes the file from finished runs. Does not import torch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence, Set
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from omegaconf import DictConfig

from chimera.config.groups import groups, roots
from chimera.config.tables import load, read_csv
from chimera.errors import unknown

#: End of the file's name, and its columns.
SUFFIX = ".rates.csv"
COLUMNS = ("scale", "row", "rate", "seed", "value", "steps")


@dataclass(frozen=True)
class Tried:
    """A run that chooses a rate.

    Args:
        scale, row: of the table.
        rate: learning rate.
        seed: of the run; no seed of the table's report.
        value: of the table's metric; None if the run's numbers did not stay finite.
        steps: of the run; None if the file, of an older version, does not say.
    """

    scale: str
    row: str
    rate: float
    seed: int
    value: float | None = None
    steps: int | None = None


def apply(cfg: DictConfig, command_keys: Set[str]) -> None:
    """Set the rate that was chosen for the configuration's row at its scale, if one was.

    It wins over the scale's, and the command line over it.

    Args:
        cfg: composed; changed in place.
        command_keys: keys set on the command line, which keep their values.
    """
    if cfg.table and "optim.lr" not in command_keys:
        rate = chosen(cfg.table.name, cfg.table.row, cfg.choices.scale)
        cfg.optim.lr = rate or cfg.optim.lr


def tried(table: str) -> list[Tried]:
    """All lines of the files of `<paper>/<table>`; empty without one.

    What a user's folder says of a row at a scale replaces what Chimera's says of it.

    Raises:
        UserError: a line that cannot be read.
    """
    lines: list[Tried] = []
    for root in roots():
        if (file := root / f"{table}{SUFFIX}").is_file():
            found = read_csv(file, Tried)
            for line in found:
                for column, names in (("row", groups()[table]), ("scale", groups()["scale"])):
                    if getattr(line, column) not in names:
                        raise unknown(f"{file}: {column}", getattr(line, column), names)
            replaced = {(line.scale, line.row) for line in found}
            lines = [line for line in lines if (line.scale, line.row) not in replaced] + found
    return lines


def best(lines: Sequence[Tried], better: Literal["lower", "higher"]) -> dict[str, float]:
    """The rate of each row whose mean over seeds is best; of equal means the lowest rate.

    Only rates with all seeds of their row are compared: of a rate that is good on one seed and
    falls apart on another, the first alone knows nothing.

    Args:
        lines: of one scale.
        better: whether a lower or a higher value is better.
    """
    sign = 1 if better == "lower" else -1
    values = defaultdict[str, dict[float, list[float | None]]](lambda: defaultdict(list))
    for line in lines:
        values[line.row][line.rate].append(line.value)
    chosen: dict[str, float] = {}
    for row, by_rate in values.items():
        seeds = max(map(len, by_rate.values()))
        means = [
            (sign * fmean(v for v in found if v is not None), rate)
            for rate, found in by_rate.items()
            if len(found) == seeds and None not in found
        ]
        if means:
            chosen[row] = min(means)[1]
    return chosen


def chosen(table: str, row: str, scale: str) -> float | None:
    """The rate of a row at a scale; None if none was chosen.

    Raises:
        UserError: the file cannot be read.
    """
    lines = [line for line in lines_at(table, scale) if line.row == row]
    return best(lines, load(table).better).get(row) if lines else None


def lines_at(table: str, scale: str) -> list[Tried]:
    """Lines of one scale."""
    return [line for line in tried(table) if line.scale == scale]
