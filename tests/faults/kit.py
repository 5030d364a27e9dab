"""Run commands that must end well or in one line, and read files as the commands do."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from chimera.cli.command import exit_code
from chimera.data.corpus.glue import Glue, SpanishGlue
from chimera.data.corpus.instruct import Instruct
from chimera.data.corpus.text import Text
from chimera.generate.settings import Generation
from chimera.task import mmlu
from tests.data.kit import splits_of

#: Exit codes of `outcome` for an exception that no command may let out, and for one without end.
TRACEBACK, HANG = 70, 124


class _TooLong(BaseException):
    """Not an Exception: no code under test may catch it."""


def _late(*_: object) -> None:
    raise _TooLong


def outcome(run: Callable[[], Any], seconds: int = 20) -> tuple[int, str]:
    """The exit code of a command and its standard error, or the last places of an exception.

    Args:
        run: the command.
        seconds: after which it hangs; a call of the system that waits is ended, too.
    """
    said = io.StringIO()
    before = signal.signal(signal.SIGALRM, _late)
    signal.alarm(seconds)
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
            return exit_code(run), said.getvalue()
    except BaseException as error:  # noqa: BLE001 - the very thing that is looked for
        return HANG if isinstance(error, _TooLong) else TRACEBACK, traceback.format_exc(limit=-3)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def one_refusal(code: int, said: str) -> str:
    """Check that a command refused in one line, its last, and return that line."""
    assert code == 2, f"{code}: {said[-2000:]}"
    assert said.count("error: ") == 1 or "\nerror: " not in said, said
    last = said.rstrip("\n").split("\n")[-1]
    assert last.startswith("error: "), said
    return last


def forked(run: Callable[[], int], before: Callable[[], None] = lambda: None) -> int:
    """The exit code of a command in a forked process, or minus the signal that ended it."""
    child = os.fork()
    if not child:
        code = TRACEBACK
        try:
            before()
            code, said = outcome(run, 120)
            os.write(2, said.encode(errors="replace"))
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def make(place: Path, contents: Any) -> Path:
    """Write a file, or the files of a folder."""
    for name, content in contents.items() if isinstance(contents, dict) else [("", contents)]:
        file = place / name if name else place
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return place


def _corpus(corpus: Any) -> list[str]:
    corpus.check()
    corpus.fingerprint()
    return [text for texts in splits_of(corpus).values() for text in texts]


def _examples(corpus: Any) -> list[str]:
    corpus.check()
    return [f"{e.first} {e.label}" for e in corpus.examples()["train"]]


def _questions(path: Path) -> list[str]:
    return [q.as_text(solved=True) for q, _ in mmlu.read(str(path), "test", None, None)]


#: By kind: reads a file or folder of a user; the texts that it holds.
READERS: dict[str, Callable[[Path], list[str]]] = {
    "text": lambda path: _corpus(Text(path=str(path))),
    "instruct": lambda path: _corpus(Instruct(path=str(path))),
    "mmlu": _questions,
    "sst2": lambda path: _examples(Glue(task="sst2", path=str(path))),
    "stsb": lambda path: _examples(SpanishGlue(task="stsb_es", path=str(path))),
    "prompts": lambda path: Generation(run="", prompts=str(path)).texts(),
}


def read(kind: str, path: Path) -> tuple[int, str, list[str]]:
    """Exit code, standard error and texts of reading a file as a command does."""
    texts: list[str] = []
    code, said = outcome(lambda: texts.extend(READERS[kind](path)))
    return code, said, texts
