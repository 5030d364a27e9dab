"""R11: share of a training step that all callbacks take, and the time that a save stops training.

Measured hook by hook within one run of the main job at the shape of `benchmarks.train_step`, so
that other work of the machine affects both sides of the ratio alike. `benchmarks.overhead` compares
the whole platform with a bare loop instead.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import chimera.train.run
from chimera.callback.state.checkpoint import Checkpoints
from tests.torture import job

SHAPE = ["mixer=retnet", "quant=bitnet158", "norm=qdyt", "model.dim=256", "model.depth=6"]
SHAPE += ["model.heads=8", "trainer.max_steps=25", "trainer.val_check_interval=0"]
SHAPE += ["trainer.limit_val_batches=1", "trainer.limit_test_batches=1"]
SHAPE += ["trainer.checkpoint_every_n_steps=8", "trainer.log_every_n_steps=1", "trainer.threads=1"]
HOOKS = ("on_train_batch_start", "on_before_backward", "on_after_backward", "on_before_zero_grad")
HOOKS += ("on_before_optimizer_step", "on_train_batch_end")
#: Largest allowed share.
MOST = 0.03


class Clock:
    """Sums the seconds of all callbacks' hooks, without saves and without the first step."""

    def __init__(self, to: Path) -> None:
        self.to, self.seconds, self.began, self.steps = to, 0.0, 0.0, 0
        self.each: dict[str, float] = {}

    def plant(self) -> None:
        """Wrap the callbacks of the next run of this process."""
        make = chimera.train.run.make_trainer

        def timed(config: Any, settings: Any, directory: Any, loggers: Any, callbacks: Any) -> Any:
            saves = next(c for c in callbacks if isinstance(c, Checkpoints))
            for callback in callbacks:
                for hook in HOOKS:
                    self._wrap(callback, hook, saves)
            trainer = make(config, settings, directory, loggers, callbacks)
            last = callbacks[-1]
            ended = last.on_train_batch_end

            def tick(*given: Any) -> None:
                ended(*given)
                self.steps += 1
                if self.steps == 1:
                    self.began, self.seconds, self.each = time.perf_counter(), 0.0, {}
                    saves.stalls.clear()
                total = time.perf_counter() - self.began - sum(saves.stalls)
                found = {"callbacks": self.seconds, "steps": total, "stalls": saves.stalls}
                self.to.write_text(json.dumps({**found, "each": self.each}))

            last.on_train_batch_end = tick
            return trainer

        chimera.train.run.make_trainer = timed

    def _wrap(self, callback: Any, hook: str, saves: Checkpoints) -> None:
        function = getattr(callback, hook)

        def timed(*given: Any, **named: Any) -> Any:
            began, stalled = time.perf_counter(), sum(saves.stalls)
            try:
                return function(*given, **named)
            finally:
                taken = time.perf_counter() - began - (sum(saves.stalls) - stalled)
                self.seconds += taken
                name = type(callback).__name__
                self.each[name] = self.each.get(name, 0.0) + taken

        setattr(callback, hook, timed)


def r11(folder: Path) -> tuple[int, int]:
    """Check that the callbacks take less than MOST; return the number passed and 1."""
    to, log = folder / "clock.json", folder / "overhead.log"
    code = job.train([*SHAPE, f"run_dir={folder / 'overhead'}"], log, Clock(to).plant)
    if code:
        print(f"R11 exit code {code}: {log.read_text()[-300:]}")
        return 0, 1
    found = json.loads(to.read_text())
    share = found["callbacks"] / (found["steps"] - found["callbacks"])
    each = ", ".join(f"{n} {s * 1e3 / 24:.2f}" for n, s in sorted(found["each"].items()))
    print(
        f"R11 callbacks add {share:.2%} to a step of {found['steps'] / 24 * 1e3:.0f} ms"
        f" (in ms: {each})"
    )
    stalls = found["stalls"]
    print(
        f"R11 a save stalls training by {sum(stalls) / len(stalls) * 1e3:.0f} ms,"
        f" the longest of {len(stalls)} by {max(stalls) * 1e3:.0f} ms"
    )
    return int(share < MOST), 1
