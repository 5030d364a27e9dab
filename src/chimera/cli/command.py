"""Make a command from a function: read its options, print its help, turn errors into exit codes.

Bad input gives one line and exit code 2. A reader that closes the pipe of the output, as in
`python train.py … | head`, ends no command: the remaining output goes to /dev/null.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO, TypeVar

from chimera import world
from chimera.errors import (
    OF_DISK,
    LostProcessError,
    NotFiniteError,
    UserError,
    check_utf8,
    nearest,
    one_line,
)
from chimera.program import command_name

#: Loggers that complain when transformers imports torchao (optim=adamw8bit) on a machine without
#: the GPU that torchao has kernels for. Nothing that Chimera does needs these.
NOISY = ("torchao", "torch.utils._pytree")
#: Errors of the system that are about files, even where it names none: full disk, quota, too many.
OF_FILES = (*OF_DISK, errno.EROFS, errno.EMFILE, errno.ENFILE)
HELP = {"-h", "--help"}

Options = TypeVar("Options")
Main = Callable[[Sequence[str]], int]


def command(
    name: str, options: type[Options], words: str = "", *, overrides: bool = False
) -> Callable[[Callable[[Options, list[str]], int]], Main]:
    """Make `main(arguments) -> exit code` of a function of options and words.

    Args:
        name: of the command, in its help.
        options: dataclass of its `key=value` arguments; its docstring is the help.
        words: what else the command takes, for the help; empty: nothing.
        overrides: whether the words may be overrides of runs, not only paths.
    """

    def run(function: Callable[[Options, list[str]], int], arguments: list[str]) -> int:
        from chimera.config.arguments import describe, read, usage
        from chimera.config.groups import read_folders

        line = usage(command_name(name), options, words)
        if set(arguments) & HELP:
            print(describe(options, line))
            return 0
        given: list[str] = []
        found = read(options, read_folders(arguments), line, unread=given if words else None)
        for word in given:
            key, equals, _ = word.partition("=")
            if word.startswith("-") or (equals and not overrides and not Path(word).exists()):
                raise UserError(f"cannot read '{word}'{nearest(key, vars(found))}; write {line}")
        return function(found, given)

    def decorate(function: Callable[[Options, list[str]], int]) -> Main:
        return lambda arguments: exit_code(lambda: run(function, list(arguments)))

    return decorate


def exit_code(run: Callable[[], Any]) -> int:
    """Run a command and return its exit code; None counts as 0."""
    for name in NOISY:
        logging.getLogger(name).setLevel(logging.ERROR)
    with outlasting_output():
        try:
            here = os.getcwd()
        except FileNotFoundError:
            _say("the current folder was removed; cd to another one")
            return 2
        try:
            check_utf8(here, "the current folder ")
            for name, value in os.environ.items():
                if name == "HOME" or name.startswith("CHIMERA_"):
                    check_utf8(value, f"{name}=")
            return int(run() or 0)
        except UserError as error:
            _say(_shortened(one_line(error)))
            return 2
        except (NotFiniteError, LostProcessError) as error:  # the guard has printed its report
            _say(str(error))
            return 1
        except KeyboardInterrupt:
            print("stopped", file=sys.stderr)
            return 130
        except OSError as error:
            if error.errno not in OF_FILES and error.filename is None:
                raise  # of a network, or of a pipe between processes
            file = f"{error.filename}: " * (error.filename is not None)
            _say(_shortened(one_line(f"{file}{error.strerror}")))
            return 2


def _shortened(line: str) -> str:
    """A message without its middle, if it quotes thousands of characters."""
    return line if len(line) <= 2000 else f"{line[:1000]} … {line[-500:]}"


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


class Outlasting:
    """A text stream that drops its output from the moment when nobody reads it.

    What its encoding lacks, such as bytes of a file's name that are no text, is a question mark.

    Args:
        stream: standard output or standard error; its other methods are kept.
    """

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        """Write text; returns its length."""
        encoding = self.stream.encoding or "utf-8"
        with self._kept():
            self.stream.write(text.encode(encoding, "replace").decode(encoding))
        return len(text)

    def writelines(self, lines: list[str]) -> None:
        """Write several texts."""
        self.write("".join(lines))

    def flush(self) -> None:
        """Write what is buffered."""
        with self._kept():
            self.stream.flush()

    @contextlib.contextmanager
    def _kept(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno not in (errno.EPIPE, errno.EIO):  # a closed pipe, a closed terminal
                raise
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.stream.fileno())  # what is still buffered goes there, too
            os.close(nowhere)


@contextlib.contextmanager
def outlasting_output() -> Iterator[None]:
    """Both standard streams are `Outlasting` inside, and flushed at the end."""
    out = Outlasting(sys.stdout)
    err = Outlasting(sys.stderr)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            yield
        finally:
            out.flush()
            err.flush()
