"""Build the objects that nodes with `_target_` describe; a refusal of a constructor is one line."""

from __future__ import annotations

from typing import Any

from hydra.errors import InstantiationException
from hydra.utils import instantiate

from chimera.errors import UserError


def make(node: Any, **arguments: Any) -> Any:
    """Build a node of the configuration, and all nodes inside it.

    Hydra wraps what a constructor raises in an exception of its own, with a text of several lines.

    Args:
        node: plain containers with `_target_`.
        arguments: added to those of the node.

    Raises:
        UserError: a constructor refuses its arguments (a `UserError` or another `ValueError`).
        InstantiationException: anything else goes wrong in it.
    """
    try:
        return instantiate(node, **arguments, _convert_="all")
    except InstantiationException as error:
        if isinstance(error.__cause__, ValueError):  # which a UserError is
            raise UserError(str(error.__cause__)) from error
        raise
