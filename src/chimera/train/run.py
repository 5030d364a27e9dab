"""One run, from a checked configuration to its record; the only file that knows the whole order.

data → model → trainer → fit, validate, test → record
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning.pytorch as pl

from chimera import world
from chimera.callback.log.heartbeat import Heartbeat
from chimera.callback.log.steps import Steps
from chimera.callback.siblings import find, with_method
from chimera.callback.state.stop import GracefulStop, TimeLimit
from chimera.config.lengths import TrainerInSteps, in_steps, number
from chimera.config.settings import Optim
from chimera.config.settings import Trainer as Settings
from chimera.data.batch.module import DataModule
from chimera.errors import FULL, Interrupted, LostProcessError, UserError
from chimera.model.compiled import compile_model
from chimera.model.restore import save_body
from chimera.model.sharding import load_state, shard
from chimera.optim.groups import groups
from chimera.rundir import checkpoints as files
from chimera.rundir.atomic import write_json
from chimera.rundir.checkpoint_io import load
from chimera.rundir.directory import RunDir, open_run
from chimera.rundir.extend import EXTENDED
from chimera.rundir.stand_in import first_is_gone, mark_failed
from chimera.rundir.text import TOKENS, check_text, note_text
from chimera.task.base import Task
from chimera.train import record
from chimera.train.build import make_data, make_task
from chimera.train.callbacks import make_callbacks
from chimera.train.console import quiet, report, say, show_draws, show_frozen, show_parameters
from chimera.train.curves import curves
from chimera.train.extension import RatesOfSchedule, announcement
from chimera.train.heap import keep_freed_memory
from chimera.train.loggers import open_loggers, summarise
from chimera.train.memory import memory_named
from chimera.train.ranks import Ranks, joined, lost_processes_named
from chimera.train.restore import starting_point
from chimera.train.rules import other_rules
from chimera.train.showcase import show_model, show_samples
from chimera.train.trainer import make_trainer, trainer_settings


def run(config: dict[str, Any], overrides: list[str]) -> dict[str, Any]:
    """Train as a checked configuration says; returns the contents of run.json.

    A directory that holds a finished run is shown, not repeated; an unfinished run goes on, and
    with `extend=true` a finished one.

    Raises:
        Interrupted: after Ctrl-C or SIGTERM, when all is saved.
        UserError: memory does not suffice.
    """
    quiet()
    keep_freed_memory()
    with memory_named(config), joined(config["trainer"]["timeout"]) as ranks:
        return _run(config, overrides, ranks)


def _run(config: dict[str, Any], overrides: list[str], ranks: Ranks) -> dict[str, Any]:
    place = ranks.on_first(lambda: find_place(config))
    directory, config = RunDir(Path(place["path"])), place["config"]
    if place["done"]:
        of = record.older(directory.config())
        say(f"done already{of}: {directory.path}  (overwrite=true starts it over)")
        report(directory.record(), directory)
        return directory.record()
    settings = trainer_settings(config)
    callbacks = make_callbacks(config)
    pl.seed_everything(config["seed"], verbose=False)

    data = make_data(config)
    ranks.on_first(data.prepare_data)
    tokenizer, tokens = data.prepared.tokenizer, data.prepared.report.get(TOKENS)
    task = make_task(config, tokenizer.vocab_size, start=True)
    task.configure_for(data, "fit")
    data.setup()
    settings = lengths(settings, data)
    task.total_steps = settings.max_steps
    task.shard = shard if settings.strategy == "fsdp" else None
    show_parameters(config["name"], groups(task.model, task.optim), task.model)
    show_draws(task.model)
    show_frozen(config)

    def started() -> dict[str, Any]:
        if not config["overwrite"]:
            check_text(directory.path, tokens)
        origin = starting_point(config, directory, task, data, settings.max_steps)
        resume = start(directory, config, overrides, task.optim)
        note_text(directory.path, tokens)
        return {"path": str(resume.path or origin or ""), "step": resume.step}

    resume = ranks.on_first(started)
    check_shared(directory)
    callbacks[1:1] = [RatesOfSchedule()] * (EXTENDED in config)
    callbacks[1:1] = [TimeLimit(settings.max_time)] if settings.max_time else []
    steps = next(c for c in callbacks if isinstance(c, Steps))
    heartbeat = Heartbeat(directory, steps, resume["step"], settings.max_steps)
    with status_of(heartbeat), lost_processes_named(settings.timeout):
        if ranks.first:
            tokenizer.save(directory.tokenizer)
            save_body(task.model, directory.path)
            data.save_test(directory.test_data)
        facts = record.before(config, data.prepared, task)
        facts |= record.trivial(task, data)
        with open_loggers(config, facts, directory) as loggers:
            if ranks.first:
                show_model(config, task, facts, directory, loggers)
            trainer = make_trainer(config, settings, directory, loggers, callbacks)
            fit(trainer, task, data, settings, Path(resume["path"]) if resume["path"] else None)
            metrics = test(trainer, task, data, settings, ranks)
            if ranks.size == 1:  # of several processes, a model may be in shards
                show_samples(task, data, directory, loggers)
            facts |= record.after(trainer, directory, metrics) | other_rules(trainer, task, data)
            if ranks.first:
                facts |= record.utilisation(trainer, config["precision"], facts)
                summarise(facts, loggers)
        if ranks.first:
            write_json(directory.path / "run.json", facts)
            unit = f"nats per {task.predicts}"
            curves(directory.steps, facts, directory.curves, config["name"], unit)
    report(facts, directory)
    return facts


def find_place(config: dict[str, Any]) -> dict[str, Any]:
    """Directory of a run, whether the run is done, and its configuration with its extensions.

    Raises:
        UserError: the directory holds another run or other files.
    """
    directory = open_run(config)
    config = directory.extended(config)
    done = directory.is_done(config) and not config["overwrite"]
    return {"path": str(directory.path), "config": config, "done": done}


def fit(
    trainer: pl.Trainer, task: Task, data: DataModule, settings: TrainerInSteps, resume: Path | None
) -> None:
    """Train to the last step, or until a callback such as `EarlyStopping` ends the training.

    Args:
        trainer: of the run; its directory has the checkpoints.
        task: to be trained, in place.
        data: of the task.
        settings: of the trainer.
        resume: a checkpoint to go on from.

    Raises:
        Interrupted: after Ctrl-C, SIGTERM or `trainer.max_time`, when all is saved.
    """
    if settings.compile:
        compile_model(task.model)
    trainer.fit(task, datamodule=data, ckpt_path=resume, weights_only=True)
    late = any(limit.reached for limit in with_method(trainer, "reached"))
    if trainer.global_step < settings.max_steps and (late or find(trainer, GracefulStop).stopping):
        why = f" by trainer.max_time={settings.max_time}, which has to be larger" if late else ""
        where = trainer.default_root_dir
        raise Interrupted(f"stopped at step {trainer.global_step}{why}, saved in {where}")


def lengths(settings: Settings, data: DataModule) -> TrainerInSteps:
    """The trainer's settings in steps and batches of these data, whose epochs they limit.

    Raises:
        UserError: a share of the batches that is less than one.
    """
    train, valid, test = data.train_dataloader(), data.val_dataloader(), data.test_dataloader()
    train.limit(None)
    limit = number("limit_train_batches", settings.limit_train_batches, len(train))
    train.limit(limit, repeat=bool(settings.overfit_batches))
    return in_steps(settings, len(train), valid=len(valid), test=len(test))


def test(
    trainer: pl.Trainer, task: Task, data: DataModule, settings: TrainerInSteps, ranks: Ranks
) -> dict[str, float]:
    """Metrics of the trained model, by the checkpoint that the task is judged by.

    Args:
        trainer: has trained the task.
        task: gets the weights of the best checkpoint if its `final` says so.
        data: of the task.
        settings: of the trainer.
        ranks: the processes of the run.
    """
    directory = RunDir(Path(trainer.default_root_dir))
    best = ranks.on_first(lambda: [str(path) for _, path in files.best(directory.checkpoints)])
    if task.final == "best" and best:
        load_state(task, load(Path(best[0]))["state_dict"])
    metrics: dict[str, float] = {
        **trainer.validate(task, datamodule=data, verbose=False)[0],
        **trainer.test(task, datamodule=data, verbose=False)[0],
        **task.baselines(data, settings.limit_val_batches),
        **task.extra_metrics(trainer, data),
    }
    if ranks.first:
        task.write_predictions(directory.path)
    return metrics


def start(
    directory: RunDir, config: dict[str, Any], overrides: list[str], optim: Optim
) -> files.ResumePoint:
    """Lock a run's directory, put its checkpoints in order, write what is known before training.

    Returns:
        The checkpoint to go on from, if there is one.

    Raises:
        UserError: another process is at work on it, or a run to extend lacks its last checkpoint.
    """
    directory.lock()
    resume = files.prepare(directory.checkpoints, fresh=config["overwrite"])
    if resume.path or resume.rejected:
        say(str(resume))
    if EXTENDED in config:
        say(announcement(config, optim, resume))
    directory.start(config, overrides)
    return resume


def check_shared(directory: RunDir) -> None:
    """Refuse processes on machines that do not see the run's directory.

    Raises:
        UserError: naming the machine.
    """
    if not directory.path.is_dir():
        raise UserError(
            f"run_dir={directory.path} is not to be seen from {socket.gethostname()}; the machines"
            " of a run have to share a file system, so name a folder there"
        )


@contextlib.contextmanager
def status_of(heartbeat: Heartbeat) -> Iterator[None]:
    """Keep status.json: RUNNING inside, then DONE, STOPPED or FAILED, with the reason.

    The first process of a run does so for all; when it is gone, the second says so.

    Raises:
        UserError: the disk is full.
    """
    if not world.is_first():
        try:
            yield
        except LostProcessError:
            if world.rank() == 1 and first_is_gone(heartbeat.directory):
                mark_failed(heartbeat.directory, "the first process ended or did not answer")
            raise
        return
    heartbeat.start()
    try:
        yield
    except Interrupted as stopped:
        heartbeat.stop("STOPPED", why=str(stopped))
        raise
    except BaseException as error:
        with contextlib.suppress(OSError):  # the disk may be what failed
            heartbeat.stop("FAILED", why=f"{type(error).__name__}: {error}")
        if not isinstance(error, OSError) or error.errno not in FULL:
            raise
        directory = heartbeat.directory
        kept = files.newest(directory.checkpoints)
        good = f"{kept.path} (step {kept.step}) is intact" if kept.path else "none was saved"
        raise UserError(
            f"no space left for {directory.path}; last checkpoint: {good};"
            " free some space and start the same command again"
        ) from error
    heartbeat.stop("DONE")
