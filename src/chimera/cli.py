"""The command line: one clear line and exit code 2 for bad input, before anything is written."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from chimera.errors import FULL, NotFiniteError, UserError

USAGE = """\
python train.py [group=choice ...] [key=value ...]     train one run
python train.py -m group=a,b key=1,2                   a sweep (Hydra's syntax)
python train.py --cfg job [...]                        show the composed configuration
python train.py --help                                 groups and choices
python train.py list                                   every component: what it is, source, cost
python train.py list tables                            every table of experiments with its rows
python train.py +<paper>/<table>=<row> scale=small     one row; -m +<paper>=<table> all of them
python train.py replay=<run>/nan_report-<step>.json    repeat a step that was not finite
python eval.py run=<dir>                               repeat a run's final test
python eval.py run=<dir> length=1024                   the same text in sequences of this length
python generate.py run=<dir> prompt="..."              continue a text; more: generate.py --help
python export.py run=<dir> to=<folder>                 weights, tokenizer, model card"""
EVAL = "python eval.py run=<directory of a run> [length=<tokens>]"
EXPORT = (
    "python export.py run=<directory of a run> to=<folder>"
    " [packed=true|false] [adapter=merge|keep|alone]"
)
_HELP = {"-h", "--help"}


def train(argv: Sequence[str]) -> int:
    """`train.py`: returns the exit code."""
    return _guarded(lambda: _train(list(argv)))


def evaluate(argv: Sequence[str]) -> int:
    """`eval.py`: returns the exit code."""
    return _guarded(lambda: _evaluate(list(argv)))


def generate(argv: Sequence[str]) -> int:
    """`generate.py`: returns the exit code."""
    return _guarded(lambda: _generate(list(argv)))


def table(argv: Sequence[str]) -> int:
    """`make table`: the sweep of a table that is named `<paper>/<table>`."""
    return _guarded(lambda: _table(list(argv)))


def export(argv: Sequence[str]) -> int:
    """`export.py`: returns the exit code."""
    return _guarded(lambda: _export(list(argv)))


def _train(argv: list[str]) -> int:
    flags = [word for word in argv if word.startswith("-")]
    if set(flags) & _HELP:
        print(_help())
        return 0
    if argv == ["list"]:
        from chimera.model.catalog import show

        show()
        return 0
    if argv == ["list", "tables"]:
        from chimera.config.tables import listing

        print(listing())
        return 0
    if [word for word in argv if word.startswith("replay=")]:
        if len(argv) > 1:
            raise UserError("replay=<nan_report-*.json> stands alone; the run says the rest")
        from chimera.train.replay import find, replay

        return replay(find(argv[0].partition("=")[2]))
    if flags and set(flags) <= {"-m", "--multirun"}:
        from chimera.sweep.main import sweep

        return sweep([word for word in argv if word not in flags])
    if set(flags) & {"--cfg", "-c", "--info", "-i"}:
        return _with_hydra(argv)
    if flags:
        raise UserError(f"{flags[0]} is no flag of train.py; it has -m, --cfg, --info, --help")
    return _one(argv)


def _one(overrides: list[str]) -> int:
    """Compose, check, run."""
    from chimera.config.compose import compose, plain
    from chimera.config.scale import held_back
    from chimera.train.check import check
    from chimera.train.prerequisites import await_all

    config = plain(compose(overrides))
    check(config)
    for line in held_back(config, overrides):
        print(line, file=sys.stderr)
    await_all(config, overrides)
    from chimera.train.run import Interrupted, run

    try:
        run(config, overrides)
    except Interrupted as stopped:
        print(f"{stopped}; the same command goes on", file=sys.stderr)
        return 130
    return 0


def _table(argv: list[str]) -> int:
    from chimera.config.tables import load, tables

    if not argv or "=" in argv[0]:
        raise UserError(f"name a table, as in make table T={tables()[0]}: {', '.join(tables())}")
    found = load(argv[0])
    return _train(["-m", f"+{found.paper}={found.name}", *argv[1:]])


def _evaluate(argv: list[str]) -> int:
    if set(argv) & _HELP:
        print(EVAL)
        return 0
    words = dict(word.partition("=")[::2] for word in argv)
    if "run" not in words or set(words) - {"run", "length"}:
        raise UserError(f"write {EVAL}")
    length = words.get("length")
    if length is not None and not (length.isdecimal() and int(length)):
        raise UserError(f"length={length} is not allowed; it takes an integer of at least 1")
    from chimera.rundir.directory import RunDir

    directory = RunDir(Path(words["run"]))
    directory.config()
    if not directory.test_data.exists():
        raise UserError(f"run={directory.path} never came to train: there is nothing to test")
    from chimera.evaluate.test import evaluate as test

    return test(directory, int(length) if length else None)


def _generate(argv: list[str]) -> int:
    from chimera.generate.settings import describe, parse

    if set(argv) & _HELP:
        print(describe())
        return 0
    how = parse(argv)
    how.check()
    from chimera.generate.text import write

    return write(how)


def _export(argv: list[str]) -> int:
    if set(argv) & _HELP:
        print(EXPORT)
        return 0
    words = {"packed": "false", "adapter": "merge"}
    words |= dict(word.partition("=")[::2] for word in argv)
    fine = {"packed": ("true", "false"), "adapter": ("merge", "keep", "alone")}
    if set(words) != {"run", "to", *fine} or any(words[k] not in v for k, v in fine.items()):
        raise UserError(f"write {EXPORT}")
    from chimera.rundir.directory import RunDir

    run = RunDir(Path(words["run"]))
    run.config()
    from chimera.export import export as write

    about = write(run, Path(words["to"]), pack=words["packed"] == "true", adapter=words["adapter"])
    print(f"{words['to']}: adapter: {about['adapter']}, packed: {words['packed']}")
    return 0


def _with_hydra(argv: list[str]) -> int:
    """`--cfg`, `--info` and the like: Hydra's own answers."""
    import hydra
    from omegaconf import DictConfig

    from chimera.config.overrides import check_choices
    from chimera.config.search_path import register_experiments
    from chimera.paths import CONF

    overrides = [word for word in argv if "=" in word or word.startswith("~")]
    check_choices(overrides)
    register_experiments()

    @hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")
    def nothing(_: DictConfig) -> None:
        raise AssertionError("these flags show something and start no run")

    # Its parser wants the flags together.
    sys.argv = ["train.py", *(word for word in argv if word not in overrides), *overrides]
    nothing()
    return 0


def _help() -> str:
    from chimera.config.groups import groups
    from chimera.paths import CONF

    found = groups()
    parts = [f"  {g:<10} {', '.join(found[g])}" for g in found if (CONF / g).is_dir()]
    tables = [f"  {g:<24} {', '.join(found[g])}" for g in found if "/" in g]
    heads = ("groups and their choices:", "tables (+<paper>/<table>=<row>) and their rows:")
    return "\n".join([USAGE, "", heads[0], *parts, "", heads[1], *tables])


def _guarded(main: Callable[[], Any]) -> int:
    try:
        return int(main() or 0)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except NotFiniteError as error:  # its report has been shown
        print(f"error: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # whoever read our output stopped reading
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if error.errno not in FULL:
            raise
        print(f"error: no space left on the device: {error}", file=sys.stderr)
        return 2
