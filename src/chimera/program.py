"""The program: its version, how a user calls its commands, and the command line of a job."""

from __future__ import annotations

import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

#: Read by the build (pyproject.toml), so it stays a plain assignment.
VERSION = "0.1.0"
#: Name on package indexes, where `chimera` is another project; it is imported as `chimera`.
DISTRIBUTION = "chimera-lm"
#: When this process began, but for the interpreter's own start.
STARTED = time.monotonic()
#: Variable with the name of the sweep that a job is of, and the keys that it varies: `name:a,b`.
SWEEP = "CHIMERA_SWEEP"


def stop_signals() -> list[signal.Signals]:
    """Signals that ask to save and stop; nohup takes out that of a closed terminal."""
    ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    return [signal.SIGINT, signal.SIGTERM, *([] if ignored else [signal.SIGHUP])]


@contextmanager
def on_stop(handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    """Call a function of these signals inside; those of before get them back."""
    before = {number: signal.signal(number, handler) for number in stop_signals()}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def command_name(command: str) -> str:
    """A command as the user of this process calls it: `python train.py`, or `chimera train`.

    Args:
        command: `train`, `eval`, `generate` or `export`, which have a script in the checkout.
    """
    script = Path(__file__).resolve().parents[2] / f"{command}.py"
    return f"chimera {command}" if _by_name() or not script.is_file() else f"python {command}.py"


def again() -> str:
    """The command line of this process, as its user writes it."""
    program = ["chimera"] if _by_name() else ["python", Path(sys.argv[0]).name]
    return shlex.join([*program, *sys.argv[1:]])


def _by_name() -> bool:
    started = Path(sys.argv[0])
    return started.stem == "chimera" or started.parts[-2:] == ("chimera", "__main__.py")


def job(overrides: Sequence[str]) -> list[str]:
    """Command line of one run in a process of its own, of this Python and this package.

    With `-P` the current folder is not searched for modules: a folder of that name in it, such as
    `chimera/`, would hide the package.

    Args:
        overrides: of a single run, not of a sweep: Lightning's strategies start sys.argv again.
    """
    return [sys.executable, "-P", "-m", "chimera", "train", *overrides]
