"""`python train.py`: train a run, run a sweep, show a configuration, list components and tables."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, Literal

from chimera import dotted, world
from chimera.cli.command import exit_code
from chimera.errors import UserError
from chimera.program import STARTED, VERSION, command_name

_USAGE = """\
python train.py [group=choice ...] [key=value ...]     train one run
python train.py -m group=a,b key=1,2                   a sweep (Hydra's syntax)
python train.py -m key=interval(1,2) search.trials=20   a search (Optuna)
python train.py --cfg job [--package optim] [...]      show the configuration of the run
python train.py --info [defaults|searchpath|...] [...] how it is composed
eval "$(python train.py -sc install=bash)"             complete groups and keys in the shell
python train.py --help                                 groups and choices
python train.py list                                   all components: description, source, cost
python train.py list norm                              the components of one group
python train.py list mamba                             one component: equation, options, cost
python train.py list tables                            all tables of experiments with their rows
python train.py show [format=json|mermaid|pipeline]    parameters, FLOPs, memory, disk, diagrams
python train.py +<paper>/<table>=<row> scale=small     one row; -m +<paper>=<table> all rows
python train.py replay=<run>/nan_report-<step>.json    repeat a step that was not finite
python eval.py run=<dir>                               repeat a run's final test
python eval.py run=<dir> length=1024                   the same test in sequences of this length
python generate.py run=<dir> prompt="..."              continue a text; see generate.py --help
python export.py run=<dir> to=<folder>                 export weights, tokenizer, model card"""
TABLE_USAGE = """\
chimera table <paper>/<table> [scale=…] [seed=0,1,2] [workers=2] [key=value …]
chimera list tables names the tables"""
USAGE = re.sub(r"python (\w+)\.py", lambda found: command_name(found[1]), _USAGE)


@dataclass(frozen=True)
class Replay:
    """Arguments of the command that repeats a step.

    Args:
        replay: the report of a step that was not finite.
        trust: load the models that the run's file names: its teacher, or a Hugging Face model.
    """

    replay: str
    trust: bool = False


@dataclass(frozen=True)
class Show:
    """Arguments of `show`, beside those of a run.

    Args:
        format: text, json, or a diagram alone: mermaid of the model, pipeline of its training.
    """

    format: Literal["text", "json", "mermaid", "pipeline"] = "text"


def main(arguments: Sequence[str]) -> int:
    """Returns the exit code."""
    return exit_code(lambda: _command(list(arguments)))


def _command(arguments: list[str]) -> int:
    from chimera.cli.flags import read_flags
    from chimera.config.groups import read_folders

    flags, overrides = read_flags(read_folders(arguments))
    word, *rest = overrides or [""]
    if flags.help:
        print(TABLE_USAGE if word == "table" else _help(overrides))
        return 0
    if word == "show" and flags.cfg:
        raise UserError(f"--cfg shows a configuration; write {command_name('train')} --cfg job …")
    if word in WORDS and flags.multirun:
        values = " and the values of the other jobs" if word == "show" else ""
        raise UserError(f"{word} takes no -m; leave it out{values}")
    if word in WORDS:
        return WORDS[word](rest)
    if any(override.startswith("replay=") for override in overrides):
        return _replay(overrides)
    if flags.multirun:
        from chimera.sweep.run_sweep import sweep

        return sweep(overrides)
    if flags.completion:
        return _complete(overrides)
    if flags.version:
        print("chimera", VERSION)
        for package in ("hydra-core", "lightning"):
            print(package, version(package))
        return 0
    if flags.info:
        return _show_info(overrides, flags.info)
    return _show_config(overrides, flags.package) if flags.cfg else _run(overrides)


def _run(overrides: list[str]) -> int:
    """Compose and check the configuration, wait for prerequisites, train."""
    from chimera.config.compose import compose, plain
    from chimera.config.overrides import repeated
    from chimera.config.precision import announcement
    from chimera.config.scale import past_lines
    from chimera.config.start_model import wait_for_all
    from chimera.train.check import check
    from chimera.train.launch import PARENT, launch

    config = plain(compose(overrides))
    check(config)
    if PARENT not in os.environ:  # the parent has said it, and waited
        if world.is_first():
            said = (*repeated(overrides), *past_lines(config), *announcement(config, overrides))
            for line in said:
                print(line, file=sys.stderr)
        wait_for_all(config, overrides)
    code = launch(config, overrides)
    if code is None:
        code = _train(config, overrides)
    if code == 0 and PARENT not in os.environ and world.is_first():
        print(f"this command took {time.monotonic() - STARTED:.0f} s", file=sys.stderr)
    return code


def _train(config: dict[str, Any], overrides: list[str]) -> int:
    """Train in this process."""
    from chimera.errors import Interrupted
    from chimera.train.run import run

    try:
        run(config, overrides)
    except Interrupted as stopped:
        if world.is_first():
            print(f"{stopped}; start the same command again to resume", file=sys.stderr)
        return 130
    return 0


def _show(overrides: list[str]) -> int:
    """Print what is known of a run before it starts."""
    import json

    from chimera.config.arguments import read
    from chimera.config.compose import compose, plain
    from chimera.config.overrides import repeated
    from chimera.train.check import check

    choices = list[str]()
    usage = f"{command_name('train')} show format=json …"
    how = read(Show, overrides, usage, unread=choices).format
    config = plain(compose(choices))
    # It reads no text; one that is not named may be on the network.
    check(config, data=config["data"].get("path") is not None)
    for line in repeated(choices):
        print(line, file=sys.stderr)
    from chimera.train.model_summary import overview, text
    from chimera.train.pipeline import pipeline

    if how == "pipeline":
        print(pipeline(config).rstrip())
        return 0
    found = overview(config)
    if how == "mermaid":
        print(str(found["diagram"]).rstrip())
    else:
        print(text(found) if how == "text" else json.dumps(found, indent=2))
    return 0


def _table(arguments: list[str]) -> int:
    """Train a table's unfinished rows and write its report; or compute a table without runs."""
    from chimera.config.tables import computed_tables, load, tables

    known = [*tables(), *computed_tables()]
    if not arguments or "=" in arguments[0]:
        raise UserError(f"name a table, as in chimera table {known[0]}: {', '.join(known)}")
    if arguments[0] in computed_tables():
        return _compute(*arguments)
    from chimera.sweep.run_sweep import sweep

    table = load(arguments[0])
    return sweep([f"+{table.paper}={table.name}", *arguments[1:]])


def _compute(name: str, *arguments: str) -> int:
    """Compute a table without runs.

    Args:
        name: of the table.
        arguments: of its module. Those of a sweep, which `make table` gives, change nothing.

    Raises:
        UserError: its module is not there.
    """
    from pkgutil import resolve_name

    from chimera.config.tables import load_computed

    module = load_computed(name).computed
    try:
        main = resolve_name(f"{module}:main")
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(f"{name}: table.computed={module} has no main: {error}") from error
    of_sweep = [word for word in arguments if word.partition("=")[0] in OF_SWEEP]
    if of_sweep:
        print(f"note: {name} is computed without runs, so {' '.join(of_sweep)} changes nothing")
    main([word for word in arguments if word not in of_sweep])
    return 0


def _list(arguments: list[str]) -> int:
    """Print components of groups, pages of components and all tables, as they are named."""
    from chimera.config.groups import groups, is_part
    from chimera.model.catalog import show
    from chimera.model.component_page import component_pages

    named = [word for word in arguments if word in groups() and is_part(word)]
    others = [word for word in arguments if word not in named and word != "tables"]
    pages = component_pages(others) if others else ""  # refuses names of nothing
    if named or not arguments:
        show(*[named] * bool(named))
    if "tables" in arguments:
        from shutil import get_terminal_size

        from chimera.config.tables import listing

        print(listing(get_terminal_size().columns if sys.stdout.isatty() else None))
    if pages:
        print(pages)
    return 0


def _replay(arguments: list[str]) -> int:
    from chimera.config.arguments import read

    given = read(Replay, arguments, f"{command_name('train')} replay=<run>/nan_report-<step>.json")
    from chimera.train.replay import find, replay

    return replay(find(given.replay, trust=given.trust), trust=given.trust)


def _show_config(overrides: Sequence[str], package: str | None = None) -> int:
    """Print the configuration that a run of these overrides writes to its config.yaml.

    Args:
        overrides: of the command line.
        package: dotted key of the part to print; None or `_global_` prints all.

    Raises:
        UserError: the overrides do not compose, or have no such part.
    """
    import yaml

    from chimera.config.compose import compose, plain
    from chimera.config.overrides import hint

    config: Any = plain(compose(list(overrides)))
    if package in (None, "_global_"):
        print(yaml.safe_dump(config, sort_keys=False), end="")
        return 0
    if not dotted.has(config, str(package)):
        parts = {key for key, value in dotted.walk(config) if isinstance(value, dict)} | set(config)
        raise UserError(f"--package {package} is no part{hint(str(package), parts)}")
    print(f"# @package {package}")
    print(yaml.safe_dump(dotted.get(config, str(package)), sort_keys=False), end="")
    return 0


def _show_info(overrides: Sequence[str], topic: str) -> int:
    """Print Hydra's information about the composition of a run's choices.

    Args:
        overrides: of the command line.
        topic: one of `cli.flags.INFO`.

    Raises:
        UserError: the overrides do not compose.
    """
    from chimera.config.compose import final_choices
    from chimera.config.hydra_calls import hydra_on
    from chimera.config.overrides import canonical

    topics = ["plugins", "searchpath", "defaults-tree", "defaults", "config"]
    for each in topics if topic == "all" else [topic]:
        if each == "config":
            _show_config(overrides)
            continue
        choices = final_choices(canonical(list(overrides)))
        with hydra_on() as hydra:
            hydra.show_info(each, "config", choices)
    return 0


def _complete(words: Sequence[str]) -> int:
    """Print the shell script of tab completion, or completions of `COMP_LINE`.

    Args:
        words: `install=bash`, `uninstall=bash` or `query=bash`; also `fish` and `zsh`.

    Raises:
        UserError: other words.
    """
    from chimera.config.hydra_calls import hydra_on

    with hydra_on() as hydra:
        try:
            hydra.shell_completion("config", list(words))
        except ValueError as error:
            raise UserError(
                f"--shell-completion {' '.join(words)} is not known; write eval"
                f' "$({command_name("train")} -sc install=bash)", or fish or zsh in place of bash'
            ) from error
    return 0


#: Keys of a sweep's arguments.
OF_SWEEP = ("scale", "seed", "workers")
#: First words of a command line that name another command, whose arguments follow.
WORDS = {"list": _list, "show": _show, "table": _table}


def _help(overrides: list[str]) -> str:
    """What `--help` prints: the pages of the components that are named, or all choices."""
    from chimera.config.groups import ZOO, groups, is_part

    if named := [o for o in overrides if o.partition("=")[0] in ZOO]:
        from chimera.model.component_page import component_pages

        return component_pages(named)
    options = groups()
    parts = [f"  {g:<10} {', '.join(options[g])}" for g in options if is_part(g)]
    tables = [f"  {g:<24} {', '.join(options[g])}" for g in options if "/" in g]
    rows = "tables (+<paper>/<table>=<row>) and their rows:"
    return "\n".join([USAGE, "", "groups and their choices:", *parts, "", rows, *tables])
