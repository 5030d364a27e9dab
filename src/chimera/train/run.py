"""One run, from a checked configuration to its record: the only file that knows this order.

`cli/train.py` composes the configuration (`config/compose.py`), checks it (`train/check.py`), waits
for runs that it needs (`config/start_model.py`) and starts the processes (`train/launch.py`). Each
of them composes and checks again, and calls `run`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning.pytorch as pl

from chimera.config.hydra_calls import make
from chimera.config.start_model import location
from chimera.rundir.directory import RunDir, open_run
from chimera.rundir.identity import ADVICE
from chimera.train.build import build_data, build_task
from chimera.train.callbacks import make_callbacks
from chimera.train.console import quiet, report, say
from chimera.train.loggers import hyperparameters, open_loggers, summarise
from chimera.train.memory import advice, keep_freed_memory, readable_memory_errors
from chimera.train.ranks import Ranks, process_group
from chimera.train.record import (
    by_other_rules,
    facts_after,
    facts_before,
    final_metrics,
    utilisation,
)
from chimera.train.restore import lock_and_resume
from chimera.train.run_files import curves
from chimera.train.status import run_status
from chimera.train.trainer import build_trainer, fit, trainer_settings, training_steps


def run(config: dict[str, Any], overrides: list[str]) -> dict[str, Any]:
    """Train as a checked configuration says; returns the contents of run.json.

    A directory that holds a finished run is shown, not repeated; an unfinished run goes on, and
    with `extend=true` a finished one; `overwrite=true` starts over.

    Raises:
        Interrupted: after Ctrl-C or SIGTERM, when all is saved.
        NotFiniteError: a loss or a gradient is not finite, and `guard=stop`.
        UserError: the directory is another run's or in use, or memory does not suffice.
    """
    quiet()
    keep_freed_memory()
    timeout = config["trainer"]["timeout"]
    with readable_memory_errors(advice(config)), process_group(timeout) as ranks:
        directory, config_extended, done = find_run(config, ranks)
        if done:
            say(f"done already: {directory.path}  (overwrite=true starts it over)")
            if ranks.first and text_has_changed(config["data"], directory.record()):
                say(f"it was trained on other text than its settings give now: {ADVICE}")
            report(directory.record(), directory.path)
            return directory.record()
        return _train(directory, config_extended, overrides, ranks)


def text_has_changed(data: dict[str, Any], record: dict[str, Any]) -> bool:
    """Whether the settings give other text now than the finished run was trained on.

    Args:
        data: node `data` of this command's configuration.
        record: of the run.
    """
    facts = record.get("data")
    known = facts.get("corpus_sha256") if isinstance(facts, dict) else None
    return known is not None and make(data).fingerprint() != known


def find_run(config: dict[str, Any], ranks: Ranks) -> tuple[RunDir, dict[str, Any], bool]:
    """The run's directory, its configuration with its extensions, and whether it is done.

    Raises:
        UserError: the directory holds another run or other files.
    """

    def on_first() -> tuple[str, dict[str, Any], bool]:
        directory = open_run(config)
        extended = directory.extended(config)
        done = directory.is_done(extended) and not config["overwrite"]
        return str(directory.path), extended, done

    path, extended, done = ranks.on_first(on_first)
    return RunDir(Path(path)), extended, done


def _train(
    directory: RunDir, config: dict[str, Any], overrides: list[str], ranks: Ranks
) -> dict[str, Any]:
    """Data → task → lock, config.yaml, checkpoint → trainer → fit → validate and test → record."""
    callbacks = make_callbacks(config)  # first: one of them counts the run's wall time from here
    settings = trainer_settings(config["trainer"])
    pl.seed_everything(config["seed"], verbose=False)

    data = build_data(config["data"], config["tokenizer"], config["task"], config["seed"])
    ranks.on_first(data.prepare_data)  # fills the cache, which the other ranks read
    # Start weights are read in a resumed run, too, and replaced by those of its checkpoint.
    task = build_task(config, data.prepared.tokenizer.vocab_size, start_weights=location(config))
    task.configure_for(data, "fit")
    data.setup()
    lengths = training_steps(settings, data)
    task.total_steps = lengths.max_steps

    checkpoint, step = lock_and_resume(ranks, directory, config, overrides, data, task)
    with run_status(ranks, directory, callbacks, step, lengths.max_steps):
        facts = facts_before(config, data, task, lengths.limit_val_batches)
        known = hyperparameters(config, facts)
        with open_loggers(config["logger"], known, directory.path, step) as loggers:
            trainer = build_trainer(config["precision"], lengths, directory, loggers, callbacks)
            fit(trainer, task, data, lengths, checkpoint)
            facts["metrics"] = final_metrics(trainer, task, data, lengths.limit_val_batches, ranks)
            if others := by_other_rules(trainer, task, data):
                facts["other_rules"] = others
            facts |= facts_after(trainer)
            if ranks.first:
                facts |= utilisation(trainer, config["precision"], facts)
            summarise(facts, loggers)
        if ranks.first:
            directory.write_record(facts)
            curves(directory, facts, f"nats per {task.predicts}")
    report(facts, directory.path)
    return facts
