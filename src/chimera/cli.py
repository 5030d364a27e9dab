"""The command line: one clear line and exit code 2 for bad input, before anything is written."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from chimera.errors import UserError

USAGE = """\
python train.py [group=choice ...] [key=value ...]     train one run
python train.py -m group=a,b key=1,2                   a sweep (Hydra's syntax)
python train.py --cfg job [...]                        show the composed configuration
python train.py --help                                 groups and choices
python train.py list                                   every component: what it is, source, cost
python eval.py run=<dir>                               repeat a run's final test"""


def train(argv: Sequence[str]) -> int:
    """`train.py`: returns the exit code."""
    return _guarded(lambda: _train(list(argv)))


def evaluate(argv: Sequence[str]) -> int:
    """`eval.py`: returns the exit code."""
    return _guarded(lambda: _evaluate(list(argv)))


def _train(argv: list[str]) -> int:
    flags = [word for word in argv if word.startswith("-")]
    if set(flags) & {"-h", "--help"}:
        print(_help())
        return 0
    if argv == ["list"]:
        from chimera.zoo import show

        show()
        return 0
    if flags:
        return _with_hydra(argv)
    return _one(argv)


def _one(overrides: list[str]) -> int:
    """Compose, check, run."""
    from chimera.check import check, plain
    from chimera.compose import compose

    config = plain(compose(overrides))
    check(config)
    from chimera.run import Interrupted, run

    try:
        run(config, overrides)
    except Interrupted as stopped:
        print(f"{stopped}; the same command goes on", file=sys.stderr)
        return 130
    return 0


def _evaluate(argv: list[str]) -> int:
    words = dict(word.partition("=")[::2] for word in argv)
    if set(words) != {"run"}:
        raise UserError("write python eval.py run=<directory of a run>")
    from chimera.record import RunDir

    directory = RunDir(Path(words["run"]))
    directory.config()
    if not directory.test_data.exists():
        raise UserError(f"run={directory.path} never came to train: there is nothing to test")
    from chimera.evaluate import evaluate as test

    return test(directory)


def _with_hydra(argv: list[str]) -> int:
    """Sweeps and `--cfg`, `--info`: Hydra's own, each job composed and checked by us again."""
    import hydra
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import DictConfig

    from chimera.compose import CONF, check_choices, register_experiments

    overrides = [word for word in argv if "=" in word or word.startswith("~")]
    check_choices(overrides)
    register_experiments()
    codes: list[int] = []

    @hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")
    def job(_: DictConfig) -> None:
        codes.append(_guarded(lambda: _one(list(HydraConfig.get().overrides.task))))

    # A run's directory is the run's; what Hydra insists on writing goes where nobody keeps it.
    scratch = tempfile.TemporaryDirectory()
    sys.argv = [
        "train.py",
        *(word for word in argv if word not in overrides),  # its parser wants the flags together
        *overrides,
        "hydra.output_subdir=null",
        "hydra.run.dir=.",
        f"hydra.sweep.dir={scratch.name}",
        "hydra.sweep.subdir=.",
        "hydra/job_logging=none",
        "hydra/hydra_logging=none",
    ]
    with scratch:
        job()
    if {"-m", "--multirun"} & set(argv) and not codes:
        raise UserError("the sweep has no jobs: its ranges and globs match nothing")
    return max(codes, default=0)


def _help() -> str:
    from chimera.compose import groups

    rows = [f"  {group:<10} {', '.join(names)}" for group, names in groups().items()]
    return "\n".join([USAGE, "", "groups and their choices:", *rows])


def _guarded(main: Callable[[], Any]) -> int:
    try:
        return int(main() or 0)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # whoever read our output stopped reading
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
