"""The one exception that is the user's to mend: printed as one line, exit code 2, no traceback."""

from __future__ import annotations

import difflib
import errno
from collections.abc import Iterable

#: What the system says when a disk, or one's share of it, is full.
FULL = (errno.ENOSPC, errno.EDQUOT)


class UserError(ValueError):
    """Bad input. The message is one line: what was chosen, what is allowed, what to do."""


class Interrupted(Exception):  # noqa: N818 - a request that was met, no error
    """A run was asked to stop; it is saved and goes on when the same command is started again."""


class NotFiniteError(RuntimeError):
    """A loss or a gradient was NaN or infinite; raised before it reaches the weights."""


def nearest(word: str, allowed: Iterable[str]) -> str:
    """`; did you mean 'x'?` for the nearest spelling in `allowed`, else an empty string."""
    close = difflib.get_close_matches(word, list(allowed), n=1, cutoff=0.6)
    return f"; did you mean '{close[0]}'?" if close else ""


def unknown(what: str, chosen: str, allowed: Iterable[str]) -> UserError:
    """An unknown choice: `mixer=retnett is not known: one of attention, retnet; did you mean …`."""
    names = sorted(allowed)
    return UserError(
        f"{what}={chosen} is not known; choose one of {', '.join(names)}{nearest(chosen, names)}"
    )
