"""`python train.py`: train a run, run a sweep, show a configuration, list components and tables."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from chimera import world
from chimera.cli.errors import exit_code
from chimera.errors import UserError
from chimera.program import spelt

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
python train.py show [format=json|mermaid] [...]       parameters, FLOPs, memory, disk, diagram
python train.py +<paper>/<table>=<row> scale=small     one row; -m +<paper>=<table> all rows
python train.py replay=<run>/nan_report-<step>.json    repeat a step that was not finite
python eval.py run=<dir>                               repeat a run's final test
python eval.py run=<dir> length=1024                   the same test in sequences of this length
python generate.py run=<dir> prompt="..."              continue a text; see generate.py --help
python export.py run=<dir> to=<folder>                 export weights, tokenizer, model card"""
USAGE = re.sub(r"python (\w+)\.py", lambda found: spelt(found[1]), _USAGE)


@dataclass(frozen=True)
class Replay:
    """Arguments of the command that repeats a step.

    Args:
        replay: the report of a step that was not finite.
        trust: load the models that the run's file names: its teacher, or a Hugging Face model.
    """

    replay: str
    trust: bool = False


def main(arguments: Sequence[str]) -> int:
    """Returns the exit code."""
    return exit_code(lambda: _command(list(arguments)))


def _command(arguments: list[str]) -> int:
    from chimera.cli.flags import read_flags
    from chimera.config.roots import read_folders

    flags = read_flags(read_folders(arguments))
    overrides = flags.overrides
    if flags.help:
        print(_help_of(overrides))
        return 0
    if overrides[:1] == ["list"]:
        return _list(overrides[1:])
    if overrides[:1] == ["show"]:
        if flags.cfg:
            raise UserError(f"--cfg shows a configuration; write {spelt('train')} --cfg job …")
        return _show(overrides[1:])
    if any(override.startswith("replay=") for override in overrides):
        return _replay(overrides)
    if flags.multirun:
        from chimera.sweep.main import sweep

        return sweep(overrides)
    if flags.cfg or flags.info or flags.completion or flags.version:
        from chimera.cli import show

        if flags.completion:
            return show.complete(overrides)
        if flags.version:
            return show.show_versions()
        if flags.info:
            return show.show_info(overrides, flags.info)
        return show.show_config(overrides, flags.package)
    return _run(overrides)


def _run(overrides: list[str]) -> int:
    """Compose and check the configuration, wait for prerequisites, train."""
    from chimera.config.compose import compose, plain
    from chimera.config.precision import announcement
    from chimera.config.scale import past_lines
    from chimera.config.start_model import wait_for_all
    from chimera.train.check import check
    from chimera.train.launch import PARENT, launch

    config = plain(compose(overrides))
    check(config)
    if PARENT not in os.environ:  # the parent has said it, and waited
        if world.is_first():
            for line in (*past_lines(config), *announcement(config, overrides)):
                print(line, file=sys.stderr)
        wait_for_all(config, overrides)
    if (code := launch(config, overrides)) is not None:
        return code
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

    from chimera.config.compose import compose, plain
    from chimera.config.overview import format_of
    from chimera.train.check import check

    how, choices = format_of(overrides)
    config = plain(compose(choices))
    check(config)
    from chimera.train.model_summary import overview, text

    found = overview(config)
    shown = {"text": text, "json": lambda x: json.dumps(x, indent=2), "mermaid": _diagram}
    print(shown[how](found))
    return 0


def _diagram(found: dict[str, Any]) -> str:
    return str(found["diagram"]).rstrip()


def _list(arguments: list[str]) -> int:
    from chimera.config.groups import groups, is_part

    if all(word in groups() and is_part(word) for word in arguments):  # none of them: all groups
        from chimera.model.catalog import show

        show(*[arguments] * bool(arguments))
        return 0
    if arguments == ["tables"]:
        from shutil import get_terminal_size

        from chimera.config.tables import listing

        print(listing(get_terminal_size().columns if sys.stdout.isatty() else None))
        return 0
    from chimera.model.card import cards

    print(cards(arguments))
    return 0


def _replay(arguments: list[str]) -> int:
    from chimera.config.arguments import read

    given = read(Replay, arguments, f"{spelt('train')} replay=<run>/nan_report-<step>.json")
    from chimera.train.replay import find, replay

    return replay(find(given.replay, trust=given.trust), trust=given.trust)


def _help_of(overrides: list[str]) -> str:
    """What `--help` prints beside choices: the cards of the components that are named."""
    from chimera.config.groups import ZOO

    named = [o for o in overrides if o.partition("=")[0] in ZOO]
    if not named:
        return _help()
    from chimera.model.card import cards

    return cards(named)


def _help() -> str:
    from chimera.config.groups import groups, is_part

    options = groups()
    parts = [f"  {g:<10} {', '.join(options[g])}" for g in options if is_part(g)]
    tables = [f"  {g:<24} {', '.join(options[g])}" for g in options if "/" in g]
    titles = ("groups and their choices:", "tables (+<paper>/<table>=<row>) and their rows:")
    return "\n".join([USAGE, "", titles[0], *parts, "", titles[1], *tables])
