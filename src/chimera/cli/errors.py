"""Turn exceptions into exit codes: one line and code 2 for errors that the user can correct."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from chimera.errors import FULL, NotFiniteError, UserError, one_line


def exit_code(command: Callable[[], Any]) -> int:
    """Run a command and return its exit code; None counts as 0."""
    try:
        return int(command() or 0)
    except UserError as error:
        print(f"error: {one_line(error)}", file=sys.stderr)
        return 2
    except NotFiniteError as error:  # the guard has already printed its report
        print(f"error: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # for instance `… | head`: the reader has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if error.errno not in FULL:
            raise
        print(f"error: no space left on the device: {error}", file=sys.stderr)
        return 2
