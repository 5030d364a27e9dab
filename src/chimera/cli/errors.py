"""Turn exceptions into exit codes: one line and code 2 for errors that the user can correct."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from typing import Any

from chimera import world
from chimera.cli.pipes import outlasting_output
from chimera.errors import FULL, LostProcessError, NotFiniteError, UserError, one_line

#: Loggers that complain when transformers imports torchao (optim=adamw8bit) on a machine without
#: the GPU that torchao has kernels for. Nothing that Chimera does needs these.
NOISY = ("torchao", "torch.utils._pytree")


def exit_code(command: Callable[[], Any]) -> int:
    """Run a command and return its exit code; None counts as 0.

    A reader that closes the pipe of its output does not end it.
    """
    for name in NOISY:
        logging.getLogger(name).setLevel(logging.ERROR)
    with outlasting_output():
        return _exit_code(command)


def _exit_code(command: Callable[[], Any]) -> int:
    try:
        return int(command() or 0)
    except UserError as error:
        _say(one_line(error))
        return 2
    except (NotFiniteError, LostProcessError) as error:  # the guard has printed its report
        _say(str(error))
        return 1
    except OSError as error:
        if error.errno not in FULL:
            raise
        print(f"error: no space left on the device: {error}", file=sys.stderr)
        return 2


def _say(text: str) -> None:
    """Print an error, once for all the processes of a run, which mostly have the same one."""
    ranks: Any = sys.modules.get("chimera.train.ranks")
    if ranks is not None and ranks.here.size > 1:
        speaks = ranks.here.speaks()
    else:
        speaks = world.is_first()
        if not speaks:  # torchrun ends all processes when one has ended: the first one speaks first
            time.sleep(3)
    if speaks:
        print(f"error: {text}", file=sys.stderr)
