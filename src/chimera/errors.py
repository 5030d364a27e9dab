"""Exceptions that commands turn into one line and an exit code; helpers for their messages."""

from __future__ import annotations

import difflib
import errno
from collections.abc import Iterable
from importlib import import_module
from typing import Any

#: Error numbers of the system for a full disk and for an exceeded disk quota.
FULL = (errno.ENOSPC, errno.EDQUOT)
#: Those of a disk that takes no more of a file: full, a limit of sizes, a fault, a lost server.
OF_DISK = (*FULL, errno.EFBIG, errno.EIO, errno.ESTALE)
#: Most names that a message lists.
LISTED = 8


class UserError(ValueError):
    """Bad input by the user: commands print the message and exit with code 2, no traceback.

    The message is one line: what was chosen, what is allowed, what to do.
    """


class UnavailableError(UserError):
    """What a server has cannot be fetched now; a later attempt may go on where this one ended."""


class Interrupted(Exception):  # noqa: N818 - a request to stop, no error
    """A run stopped on request. It is saved; the same command resumes it."""


class NotFiniteError(RuntimeError):
    """A loss or a gradient is NaN or infinite; raised before the weights are updated."""


class LostProcessError(RuntimeError):
    """Another process of the same run has ended or does not answer."""


def one_line(text: object) -> str:
    """Text as one line without control characters: a message may quote a stranger's file."""
    return printable(" ".join(str(text).split()))


def printable(text: str) -> str:
    """Text with a question mark for each control character, which a terminal would obey."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def check_utf8(text: str, name: str = "") -> None:
    """Refuse a name that files of a run could not hold.

    Args:
        text: of the command line or of the environment.
        name: of it, for the message.

    Raises:
        UserError: its bytes are not UTF-8.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UserError(f"{name}{text} is not UTF-8; rename it, or write it in UTF-8") from error


def nearest(word: str, allowed: Iterable[str]) -> str:
    """Return `; did you mean 'x'?` for the nearest spelling in `allowed`, else an empty string."""
    close = difflib.get_close_matches(word, list(allowed), n=1, cutoff=0.6)
    return f"; did you mean '{close[0]}'?" if close else ""


def library(name: str, use: str, extra: str) -> Any:
    """Import a library of one of the extras.

    Args:
        name: of the module.
        use: what needs it, for the message.
        extra: that brings it.

    Raises:
        UserError: it is not installed.
    """
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise UserError(
            f"{use} needs the library {error.name}; pip install 'chimera-lm[{extra}]'"
        ) from error


def unknown(key: str, chosen: str, allowed: Iterable[str], *, see: str = "") -> UserError:
    """Make the error for an unknown choice.

    Example: `mixer=retnett is not known; did you mean 'retnet', 'mesa' or 'delta'?`

    Args:
        key: configuration group or key.
        chosen: its value.
        allowed: all allowed values; a few are listed, of more the three nearest.
        see: command that lists them.
    """
    names = sorted(allowed)
    if len(names) <= LISTED:
        listed = f"choose one of {', '.join(names)}{nearest(chosen, names)}"
    else:
        *others, last = map(repr, difflib.get_close_matches(chosen, names, n=3, cutoff=0))
        all_of = f"{see} lists all" if see else "there are"
        listed = f"did you mean {', '.join(others)} or {last}? {all_of} {len(names)}"
    return UserError(f"{key}={chosen} is not known; {listed}")
