"""The callbacks of a run, from the group `callbacks` and from the chosen parts, in their order.

Does not import torch until they are made.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any

from hydra.errors import InstantiationException

from chimera.config.groups import ZOO
from chimera.config.hydra_calls import make
from chimera.errors import UserError, one_line
from chimera.rundir.identity import EXTENDED

#: Each of these names has to come before the next; others may stand between them.
ORDER = (
    "randomness",  # the first of all: each other callback draws what the step alone decides
    "steps",  # a step is in steps.csv before a checkpoint contains it
    "stop",  # a run that is asked to stop does not validate first
    "schedule",  # a step that is validated is saved after its validation
    "checkpoints",
    "snapshot",  # the last of all: it records the state that the others leave
)
#: Names that a run cannot do without.
NEEDED = (*ORDER, "files", "guard")


def check_order(names: Iterable[str]) -> None:
    """Check that the needed callbacks are there and in their order.

    Raises:
        UserError: one is missing, or comes too early.
    """
    order = list(names)
    for name in NEEDED:
        if name not in order:
            needed = ", ".join(NEEDED)
            raise UserError(f"callbacks.{name} is missing; a run needs all of {needed}")
    for before, after in pairwise(ORDER):
        if order.index(before) > order.index(after):
            raise UserError(f"callbacks.{before} has to come before callbacks.{after}")
    for name, place in ((ORDER[0], 0), (ORDER[-1], -1)):
        if order[place] != name:
            where = "last" if place else "first"
            raise UserError(f"callbacks.{name} has to be the {where} callback, not {order[place]}")


def nodes(config: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """(key, node) of every callback of a run, in the order of their calls.

    Callbacks of the chosen parts, and names that come after `snapshot` because they were added to
    the group, are called after the first.

    Raises:
        UserError: the order is wrong, or a callback is missing.
    """
    own = {name: node for name, node in config["callbacks"].items() if node is not None}
    names = list(own)
    end = names.index(ORDER[-1]) + 1 if ORDER[-1] in own else len(names)
    run = names[:end]
    added = names[end:]
    check_order(run)
    brought = [(f"{where}.callbacks.{name}", node) for where, name, node in of_parts(config)]
    keyed = {name: (f"callbacks.{name}", own[name]) for name in names}
    return [keyed[run[0]], *brought, *(keyed[n] for n in added), *(keyed[n] for n in run[1:])]


def of_parts(config: Mapping[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    """(group, name, node) of the callbacks that the chosen parts bring.

    Each name counts once: a pattern may hold a part twice.
    """
    brought: dict[str, tuple[str, dict[str, Any]]] = {}

    def walk(group: str, node: Any) -> None:
        if isinstance(node, dict):
            for name, callback in (node.get("callbacks") or {}).items():
                brought[name] = group, callback
            for key, inner in node.items():
                if key != "callbacks":
                    walk(group, inner)

    for group in ZOO:
        walk(group, config[group])
    return [(group, name, node) for name, (group, node) in brought.items()]


def make_callbacks(config: Mapping[str, Any]) -> list[Any]:
    """Lightning callbacks of a run, in the order of their calls.

    An extended run has one more.
    """
    from chimera.train.restore import RatesOfSchedule

    first, *others = [_made(where, node) for where, node in nodes(config)]
    return [first, *([RatesOfSchedule()] if EXTENDED in config else []), *others]


def _made(where: str, node: dict[str, Any]) -> Any:
    """A callback.

    Raises:
        UserError: its class refuses the arguments, or makes something else.
    """
    from lightning.pytorch.callbacks import Callback

    try:
        callback = make(node)
    except InstantiationException as error:
        why = one_line(error.__cause__ or error)[:300]
        raise UserError(f"{where}: {node['_target_']} cannot be made: {why}") from error
    if not isinstance(callback, Callback):
        raise UserError(f"{where}: {node['_target_']} makes no callback of Lightning")
    return callback


def make_part_callbacks(config: Mapping[str, Any]) -> list[Any]:
    """Lightning callbacks of the chosen parts alone."""
    return [make(node) for _, _, node in of_parts(config)]
