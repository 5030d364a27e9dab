"""What can be known to be wrong is said before torch is imported."""

from __future__ import annotations

import json
import subprocess
import sys

CODE = """
import json, sys
from chimera.config.compose import compose, plain
from chimera.errors import UserError
from chimera.train.check import check_settings

found = []
for overrides in json.loads(sys.argv[1]):
    try:
        check_settings(plain(compose(overrides)))
        found.append(None)
    except UserError as error:
        found.append(str(error))
print(json.dumps([found, 'torch' in sys.modules]))
"""
#: Overrides, and a part of the error; None for none.
SETTINGS: list[tuple[list[str], str | None]] = [
    (["mixer=pattern", "norm=qdyt", "adapter=adalora", "logger=csv"], None),
    (["mixer.kv_heads=none"], "mixer.kv_heads=none is not allowed"),
    (["norm=qdyt", "norm.callbacks.qdyt.warmup_steps=soon"], "warmup_steps=soon"),
    (["task.mask_ratio=2"], "task.mask_ratio=2 is not allowed"),
    (["callbacks.checkpoints.keep=0"], "callbacks.checkpoints.keep=0 is not allowed"),
    (["guard.policy=wait"], "guard.policy=wait is not allowed; it takes one of stop, skip"),
    (["logger.online=perhaps"], "logger.online=perhaps is not allowed"),
]


def test_settings_of_every_part_are_checked_without_torch() -> None:
    given = json.dumps([overrides for overrides, _ in SETTINGS])
    done = subprocess.run(
        [sys.executable, "-c", CODE, given], capture_output=True, text=True, check=True
    )
    errors, torch = json.loads(done.stdout)
    assert not torch
    for (overrides, says), error in zip(SETTINGS, errors, strict=True):
        assert error is None if says is None else says in error, overrides
