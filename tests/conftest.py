"""Every test: one thread per worker, a fixed seed, no network.

Hypothesis draws the same few examples each time, so that `make test` says the same twice; with
`--hypothesis-profile=search` (`make test-all`) it draws many new ones.
"""

import atexit
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
from hypothesis import settings

from tests.rotation import (  # noqa: F401 - hooks of pytest
    pytest_addoption,
    pytest_collection_modifyitems,
    pytest_runtest_setup,
)

os.environ.setdefault("WANDB_MODE", "offline")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ["CHIMERA_RECORDS"] = os.devnull  # the checkout's records are no test's results
if "HF_MODULES_CACHE" not in os.environ:  # copies of exported folders' code
    os.environ["HF_MODULES_CACHE"] = tempfile.mkdtemp(prefix="chimera-modules-")
    atexit.register(shutil.rmtree, os.environ["HF_MODULES_CACHE"], ignore_errors=True)
settings.register_profile("fixed", derandomize=True, deadline=None, max_examples=10)
settings.register_profile("search", deadline=None)
settings.load_profile("fixed")
torch.set_num_threads(int(os.environ.get("TEST_THREADS", "1")))


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


#: Beginnings of lines that tell how a text is read.
READ = ("data: ", "tokenizer: ", "examples: ")


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs a command that has to end with exit code 2 and one line, which has all these texts.

    With `read=True` lines before it may tell how the text is read that is then refused.
    """

    def run(
        command: Callable[[list[str]], int], words: Sequence[str], *says: str, read: bool = False
    ) -> str:
        capsys.readouterr()
        assert command([*words]) == 2
        lines = capsys.readouterr().err.splitlines()
        *before, line = lines
        assert all(read and each.startswith(READ) for each in before), lines
        assert line.startswith("error: ")
        assert not [text for text in says if text not in line], line
        return line

    return run


@pytest.fixture(autouse=True)
def _loggers() -> Iterator[None]:
    """Hydra's `--cfg` and `--info` set the root logger up, as the last act of their process."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
