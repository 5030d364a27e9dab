"""What can be known to be wrong is said before torch is imported."""

from __future__ import annotations

import subprocess
import sys

import pytest

CODE = """
import sys
from chimera.config.compose import compose, plain
from chimera.errors import UserError
from chimera.train.check import check_settings

try:
    check_settings(plain(compose(sys.argv[1:])))
except UserError as error:
    print(error)
print('torch' in sys.modules)
"""


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        (["mixer=pattern", "norm=qdyt", "adapter=adalora", "logger=csv"], ""),
        (["mixer.kv_heads=none"], "mixer.kv_heads=none is not allowed"),
        (["norm=qdyt", "norm.callbacks.qdyt.warmup_steps=soon"], "warmup_steps=soon"),
        (["task.mask_ratio=2"], "task.mask_ratio=2 is not allowed"),
        (["callbacks.checkpoints.keep=0"], "callbacks.checkpoints.keep=0 is not allowed"),
        (["guard.policy=wait"], "guard.policy=wait is not allowed; it takes one of stop, skip"),
        (["logger.online=perhaps"], "logger.online=perhaps is not allowed"),
    ],
)
def test_settings_of_every_part_are_checked_without_torch(overrides: list[str], line: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE, *overrides], capture_output=True, text=True, check=True
    )
    *said, torch = done.stdout.splitlines()
    assert torch == "False"
    assert line in "".join(said)
    assert bool(said) == bool(line)
