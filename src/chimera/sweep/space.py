"""The space of a search: overrides with ranges, in Hydra's syntax.

    optim.lr=interval(1e-4,1e-2)                 any number between
    optim.lr=tag(log,interval(1e-4,1e-2))        the same, even in its logarithm
    model.depth=int(interval(2,8))               any integer, both ends included
    model.dim=range(64,257,64)                   64, 128, 192, 256
    mixer=retnet,attention   mixer=glob(*)       one of these; also choice(…)

Does not import optuna.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Any

from hydra.core.override_parser.types import (
    ChoiceSweep,
    Glob,
    IntervalSweep,
    Override,
    RangeSweep,
    Sweep,
)

from chimera.config.groups import groups
from chimera.errors import UserError


@dataclass(frozen=True)
class Dimension:
    """One setting that is searched.

    Args:
        key: of its override, with a `+` if it has one.
        low, high: ends of a range, both included; None for names.
        step: distance of the values of a range; None for any number.
        log: even in the logarithm.
        names: values that have no order.
    """

    key: str
    low: float | None = None
    high: float | None = None
    step: float | None = None
    log: bool = False
    names: tuple[str, ...] = ()

    @property
    def ends(self) -> tuple[Any, ...]:
        """The values that show whether all are allowed: both ends, or every name."""
        return self.names or (self.low, self.high)

    def override(self, value: Any) -> str:
        """The override for a value; a number in six digits."""
        return f"{self.key}={f'{value:.6g}' if isinstance(value, float) else value}"


def space(parsed: Sequence[Override]) -> list[Dimension]:
    """The dimensions among the overrides of a search.

    Raises:
        UserError: an empty or reversed range, or a table in place of a row.
    """
    return [_dimension(override) for override in parsed if override.is_sweep_override()]


def _dimension(override: Override) -> Dimension:
    key, value, text = override.get_key_element(), override.value(), str(override.input_line)
    assert isinstance(value, Sweep | Glob)
    if isinstance(value, IntervalSweep):
        return _interval(key, value, text)
    if isinstance(value, RangeSweep):
        return _range(key, value, text)
    if isinstance(value, Glob):
        options = groups().get(override.key_or_group, [])
        names = [
            name
            for name in options
            if any(fnmatch(name, p) for p in value.include)
            and not any(fnmatch(name, p) for p in value.exclude)
        ]
    else:
        assert isinstance(value, ChoiceSweep)
        names = list(override.sweep_string_iterator())
    if not names:
        raise UserError(f"{text} matches nothing; widen it")
    return Dimension(key, names=tuple(dict.fromkeys(names)))


def _interval(key: str, value: IntervalSweep, text: str) -> Dimension:
    low, high = value.start, value.end
    assert low is not None
    assert high is not None
    if unknown := value.tags - {"log"}:
        raise UserError(f"{text}: tag {', '.join(unknown)} is not known; the only one is log")
    if low >= high:
        raise UserError(f"{text} has no value between; write the lower end first")
    if "log" in value.tags and low <= 0:
        raise UserError(f"{text}: a range in its logarithm begins above 0")
    step = 1 if isinstance(low, int) and isinstance(high, int) else None
    return Dimension(key, low, high, step, log="log" in value.tags)


def _range(key: str, value: RangeSweep, text: str) -> Dimension:
    if value.tags:
        raise UserError(f"{text}: a tag goes with interval(…), not with range(…)")
    values = list(value.range())
    if not values:
        raise UserError(f"{text} is empty; write range(first,end,step), without the end")
    if len(values) == 1:
        return Dimension(key, names=(str(values[0]),))
    low, high = min(values), max(values)
    return Dimension(key, low, high, abs(value.step))
