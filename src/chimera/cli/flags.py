"""Read the flags of `train.py`, which are Hydra's, in any place of the command line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from chimera.config.migration_hints import hints
from chimera.errors import UserError, nearest
from chimera.program import spelt

#: What `--cfg` and `--info` show.
CFG = ("job", "hydra", "all")
INFO = ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")
HELP = {"-h", "--help"}
#: Flags without a value, by the field that they set.
SWITCHES = {
    **dict.fromkeys(HELP, "help"),
    **dict.fromkeys(("-m", "--multirun"), "multirun"),
    **dict.fromkeys(("-sc", "--shell-completion"), "completion"),
    "--resolve": "resolve",
    "--version": "version",
    **dict.fromkeys(("-r", "--run"), "run"),
}
#: Flags with a value, by the field that they set.
VALUES = {
    **dict.fromkeys(("-c", "--cfg"), "cfg"),
    **dict.fromkeys(("-p", "--package"), "package"),
    **dict.fromkeys(("-i", "--info"), "info"),
}


@dataclass
class Flags:
    """Flags of a command line, and its other arguments.

    Args:
        overrides: arguments that are no flags.
        help, version, multirun, completion: the flag is there.
        run: train one run, the default.
        resolve: `--cfg` always resolves interpolations, because a run's config.yaml has none.
        cfg: what to show; only `job` is.
        package: dotted key of the part of the configuration to show.
        info: what to tell of the composition.
    """

    overrides: list[str] = field(default_factory=list)
    help: bool = False
    version: bool = False
    multirun: bool = False
    completion: bool = False
    run: bool = False
    resolve: bool = False
    cfg: str | None = None
    package: str | None = None
    info: str | None = None


def read_flags(arguments: Sequence[str]) -> Flags:
    """Read the arguments of a command line.

    Raises:
        UserError: an unknown flag, a missing or unknown value, flags that exclude each other.
    """
    flags, remaining = Flags(), list(arguments)
    while remaining:
        argument = remaining.pop(0)
        flag, equals, value = argument.partition("=")
        if not flag.startswith("-"):
            flags.overrides.append(argument)
        elif flag in SWITCHES and not equals:
            setattr(flags, SWITCHES[flag], True)
        elif flag in VALUES:
            if not equals:
                value = _value(flag, remaining)
            setattr(flags, VALUES[flag], value)
        elif flag in (theirs := hints()["flags"]):
            raise UserError(f"{flag} has no effect here; {theirs[flag]}")
        else:
            meant = _meant(flag, value or "".join(remaining[:1]))
            raise UserError(
                f"{argument} is no flag of {spelt('train')}; use -m, --cfg job, --package, --info,"
                f" --config-dir, --shell-completion or --help{meant}"
            )
    _check(flags)
    return flags


def _meant(flag: str, value: str) -> str:
    """What a flag of no command here may have been: a setting, which has no dashes, or another."""
    from chimera.config.groups import groups
    from chimera.config.migration_hints import advice

    name = flag.lstrip("-").replace("-", "_")
    if name in groups() or "." in name:
        return f"; a setting has no dashes: {name}={value or '<value>'}"
    if text := advice(name):
        return f"; a setting has no dashes; {text}"
    near = nearest(flag, [*SWITCHES, *VALUES, "--config-dir"])
    return near or "; a setting has no dashes, as in mixer=mamba, optim.lr=1e-3"


def _value(flag: str, remaining: list[str]) -> str:
    """Take the value of a flag from the arguments after it; `--info` alone shows all."""
    optional = VALUES[flag] == "info"
    if optional and (not remaining or remaining[0] not in INFO):
        return "all"
    if not remaining or remaining[0].startswith("-"):
        wanted = "job" if VALUES[flag] == "cfg" else "<a group or key>"
        raise UserError(f"{flag} needs a value; write {flag} {wanted}")
    return remaining.pop(0)


def _check(flags: Flags) -> None:
    if flags.cfg is not None and flags.cfg not in CFG:
        raise UserError(f"--cfg {flags.cfg} is not known; write --cfg job")
    if flags.cfg in ("hydra", "all"):
        raise UserError(
            f"--cfg {flags.cfg} would show Hydra's own settings, which have no effect here; write"
            " --cfg job"
        )
    if flags.info is not None and flags.info not in INFO:
        raise UserError(f"--info {flags.info} is not known; it takes one of {', '.join(INFO)}")
    for name in ("resolve", "package"):
        if getattr(flags, name) and flags.cfg is None:
            raise UserError(f"--{name} says how --cfg job shows; write --cfg job --{name} …")
    if flags.multirun and (flags.cfg or flags.info):
        shown = "--cfg" if flags.cfg else "--info"
        raise UserError(f"{shown} shows one run; leave out -m and the values of the other jobs")
    if flags.multirun and flags.run:
        raise UserError("--run trains one run and -m starts a sweep; choose one of them")
