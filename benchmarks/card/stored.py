"""Read the records of `python -m benchmarks profile` from a run store."""

from __future__ import annotations

import re
from pathlib import Path

from benchmarks.card.records import CHANCE, METRIC, Profiles, Run, gather
from benchmarks.stored import named
from benchmarks.variant import of_node
from chimera.dotted import flatten
from chimera.errors import UserError, one_line
from chimera.rundir.records import Record

#: Start of the names of records, of those with more steps, and of their data sets.
NAME, LONGER, DATA = "profile-", "longer-", "mad/"
#: Settings that have to be equal in runs that are compared; paths and workers do not count.
COMPARED = re.compile(r"(data|model|trainer)\.(?!cache_dir|num_workers|threads|progress|_)")


def read(root: Path) -> Profiles:
    """The profiles of a store.

    Args:
        root: of the store.

    Raises:
        UserError: it has no record of a profile.
    """
    runs, left_out = _named(root, NAME)
    found = gather(runs, left_out)
    if not found.by_mixer:
        raise UserError(
            f"{root} has no record of a profile; train one by python -m benchmarks profile"
            " mixer=<name>, or name another store by CHIMERA_RECORDS="
        )
    return found


def read_longer(root: Path) -> list[Run]:
    """The runs of `python -m benchmarks longer` in a store; records that do not count are not."""
    return _named(root, LONGER)[0]


def _named(root: Path, start: str) -> tuple[list[Run], list[str]]:
    """Runs whose records' names start so, and why other such records do not count."""
    runs, left_out = [], []
    for record in named(root, start):
        try:
            runs.append(_run(record))
        except UserError as error:
            left_out.append(one_line(error).replace(f"{root}/", ""))  # pages name no machine
    return runs, left_out


def _run(kept: Record) -> Run:
    """A record as a run.

    Raises:
        UserError: it does not count, or is of no profile.
    """
    config, record, path = kept.config, kept.result, kept.path
    tags = [str(tag) for tag in record.get("tags", ())]
    stages = [tag for tag in tags if tag in ("rate", "report")]
    choices = record["choices"]
    metrics = record["metrics"]
    missing = [key for key in (METRIC, CHANCE) if key not in metrics]
    if not str(choices.get("data", "")).startswith(DATA) or not stages or missing:
        what = f"no {' and no '.join(missing)}" if missing else "no stage or task of one"
        raise UserError(f"{path} is of no profile: it has {what}")
    flat = flatten(config).items()
    setting = sorted((key, str(value)) for key, value in flat if COMPARED.match(key))
    environment = kept.environment
    return Run(
        mixer=of_node(str(choices["mixer"]), config["mixer"]),
        task=str(choices["data"]).removeprefix(DATA),
        seed=int(record["seed"]),
        stage=stages[0],
        rate=float(config["optim"]["lr"]),
        record=record,
        setting=tuple(setting),
        limit=int(config["trainer"]["max_steps"]),
        commit=str((environment.get("git") or {}).get("commit", ""))[:8],
        processor=str(environment.get("processor", "")),
    )
