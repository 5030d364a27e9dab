"""Turn exceptions into exit codes: one line and code 2 for errors that the user can correct."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from chimera.cli.pipes import outlasting_output
from chimera.errors import FULL, NotFiniteError, UserError, one_line


def exit_code(command: Callable[[], Any]) -> int:
    """Run a command and return its exit code; None counts as 0.

    A reader that closes the pipe of its output does not end it.
    """
    with outlasting_output():
        return _exit_code(command)


def _exit_code(command: Callable[[], Any]) -> int:
    try:
        return int(command() or 0)
    except UserError as error:
        print(f"error: {one_line(error)}", file=sys.stderr)
        return 2
    except NotFiniteError as error:  # the guard has already printed its report
        print(f"error: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        if error.errno not in FULL:
            raise
        print(f"error: no space left on the device: {error}", file=sys.stderr)
        return 2
