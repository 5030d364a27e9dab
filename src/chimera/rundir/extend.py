"""Extend a finished run: `extend=true` with a larger `trainer.max_steps` trains it further.

The directory keeps its name. `config.yaml` gets the new number of steps and a list `extended` of
`{from, to, time}`, which `run.json` repeats. The list is part of the identity: a run of 100 steps
that was extended to 200 is not the run of 200 steps, because its rates differ. Steps up to `from`
were made with the schedule over `from` steps; each later step has the rate that the schedule over
`to` steps has there, so a decayed rate rises again. `optim.schedule` with a constant rate has no
jump. The record of the shorter run is kept as `run-<steps>.json`.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from chimera.errors import UserError

#: Key of `config.yaml` and `run.json` that lists the extensions of a run.
EXTENDED = "extended"


def extended(
    path: Path, existing: Mapping[str, Any], config: dict[str, Any], state: str | None
) -> dict[str, Any]:
    """The configuration with the list of the run's extensions, the asked one included.

    The command that extended a run continues the extension, too, if it was interrupted.

    Args:
        path: directory of the run.
        existing: its configuration; empty without a run.
        config: of the command line; returned as it is without `extend=true`.
        state: of the run: RUNNING, DONE, STOPPED, FAILED.

    Raises:
        UserError: the run cannot be extended to these steps.
    """
    if not config.get("extend"):
        return config
    if config["overwrite"]:
        raise UserError("extend=true goes on and overwrite=true starts over; choose one of them")
    if not existing:
        raise UserError(
            f"extend=true goes on with a finished run, and {path} holds none; name its directory"
            " with run_dir="
        )
    steps = existing["trainer"]["max_steps"]
    target = config["trainer"]["max_steps"]
    past = list(existing.get(EXTENDED) or [])
    if past and target == steps:
        return config | {EXTENDED: past}
    if state != "DONE":
        raise UserError(
            f"extend=true goes on with a finished run, and run_dir={path} is {state}; leave"
            " extend=true out and the run resumes"
        )
    if steps is None or config["trainer"]["max_epochs"] is not None:
        raise UserError(
            "extend=true counts in trainer.max_steps, and this run's length is"
            " trainer.max_epochs; train a longer run in another run_dir"
        )
    if target is None or target <= steps:
        raise UserError(
            f"trainer.max_steps={target} is not more than the {steps} steps of run_dir={path};"
            " extend=true takes a larger one"
        )
    time = datetime.now(UTC).isoformat(timespec="seconds")
    return config | {EXTENDED: [*past, {"from": steps, "to": target, "time": time}]}


def before_extension(config: Mapping[str, Any], existing: dict[str, Any]) -> dict[str, Any]:
    """The existing configuration as it will be after the extension that `config` asks for.

    All other settings have to be equal.
    """
    extensions = config.get(EXTENDED)
    if not config.get("extend") or not extensions:
        return existing
    trainer = existing["trainer"] | {"max_steps": config["trainer"]["max_steps"]}
    return existing | {"trainer": trainer, EXTENDED: extensions}


def was_extended(path: Path) -> bool:
    """Whether a run's directory holds more steps than its name says."""
    file = path / "config.yaml"
    return file.is_file() and f"\n{EXTENDED}:" in file.read_text(encoding="utf-8")
