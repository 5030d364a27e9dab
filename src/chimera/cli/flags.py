"""Read the flags of `train.py`, which are Hydra's, in any place of the command line."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from typing import NoReturn

from chimera.config.migration_hints import hints
from chimera.errors import UserError, nearest
from chimera.program import command_name

#: What `--info` shows.
INFO = ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")
#: Flags without a value. `--cfg` always resolves interpolations, because a config.yaml has none.
SWITCHES = {
    "help": ("-h", "--help"),
    "multirun": ("-m", "--multirun"),
    "run": ("-r", "--run"),
    "completion": ("-sc", "--shell-completion"),
    "resolve": ("--resolve",),
    "version": ("--version",),
}
#: Flags with a value.
VALUES = {"cfg": ("-c", "--cfg"), "package": ("-p", "--package"), "info": ("-i", "--info")}


#: What an error about a flag ends with.
USE = "use -m, --cfg job, --package, --info, --config-dir, --shell-completion or --help"


class _Parser(ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message.removeprefix('argument ')}; {USE}")


def read_flags(arguments: Sequence[str]) -> tuple[Namespace, list[str]]:
    """Read the arguments of a command line; returns flags and overrides.

    Raises:
        UserError: an unknown flag, a missing or unknown value, flags that exclude each other.
    """
    known = [text for spellings in (SWITCHES | VALUES).values() for text in spellings]
    for flag in [text.partition("=")[0] for text in arguments if text.startswith("-")]:
        if flag not in known and (advice := hints()["flags"].get(flag)):
            raise UserError(f"{flag} has no effect here; {advice}")
    parser = _Parser(add_help=False, allow_abbrev=False)
    for name, spellings in SWITCHES.items():
        parser.add_argument(*spellings, dest=name, action="store_true")
    parser.add_argument(*VALUES["cfg"], dest="cfg", choices=["job"])
    parser.add_argument(*VALUES["package"], dest="package", metavar="<a group or key>")
    parser.add_argument(*VALUES["info"], dest="info", nargs="?", const="all", choices=INFO)
    flags, overrides = parser.parse_known_args(arguments)
    for argument, following in zip(overrides, [*overrides[1:], ""], strict=False):
        if argument.startswith("-"):
            flag, _, value = argument.partition("=")
            meant = _meant(flag, value or following, known)
            raise UserError(f"{argument} is no flag of {command_name('train')}; {USE}{meant}")
    _check(flags)
    return flags, overrides


def _meant(flag: str, value: str, known: Sequence[str]) -> str:
    """What a flag of no command here may have been: a setting, which has no dashes, or another."""
    from chimera.config.groups import groups
    from chimera.config.migration_hints import advice

    name = flag.lstrip("-").replace("-", "_")
    if name in groups() or "." in name:
        return f"; a setting has no dashes: {name}={value or '<value>'}"
    if text := advice(name):
        return f"; a setting has no dashes; {text}"
    return nearest(flag, [*known, "--config-dir"]) or (
        "; a setting has no dashes, as in mixer=mamba, optim.lr=1e-3"
    )


def _check(flags: Namespace) -> None:
    for name in ("resolve", "package"):
        if getattr(flags, name) and flags.cfg is None:
            raise UserError(f"--{name} says how --cfg job shows; write --cfg job --{name} …")
    if flags.multirun and (flags.cfg or flags.info):
        shown = "--cfg" if flags.cfg else "--info"
        raise UserError(f"{shown} shows one run; leave out -m and the values of the other jobs")
    if flags.multirun and flags.run:
        raise UserError("--run trains one run and -m starts a sweep; choose one of them")
