"""From exceptions to exit codes: 2 and one line for what the user can mend."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from chimera.errors import FULL, NotFiniteError, UserError


def exit_code(command: Callable[[], Any]) -> int:
    """Run a command; returns its exit code (None counts as 0)."""
    try:
        return int(command() or 0)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except NotFiniteError as error:  # its report has been shown
        print(f"error: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # the reader of our output has stopped reading
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if error.errno not in FULL:
            raise
        print(f"error: no space left on the device: {error}", file=sys.stderr)
        return 2
