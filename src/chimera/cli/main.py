"""`chimera <command> …`: find the command and hand its arguments on."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pkgutil import resolve_name

from chimera.cli.command import HELP, exit_code
from chimera.errors import UserError, nearest
from chimera.paths import CHECKOUT
from chimera.program import VERSION


@dataclass(frozen=True)
class Command:
    """A command, which is a function of its arguments that returns an exit code.

    Args:
        place: `module:function` in this package; the module is imported when the command is called.
        arguments: what the user writes after the name, for the help.
        summary: what it does, for the help.
        first: arguments that come before the user's.
    """

    place: str
    arguments: str
    summary: str
    first: tuple[str, ...] = ()


_TRAIN = "train:main"
#: Every command by its name, in the order of the help. A new one needs a line here and a function.
COMMANDS = {
    "train": Command(_TRAIN, "[group=choice …] [key=value …]", "train one run"),
    "sweep": Command(_TRAIN, "group=a,b key=1,2", "train every combination; train -m", ("-m",)),
    "eval": Command("finished:evaluate", "run=<dir>", "repeat a run's final test"),
    "mmlu": Command("finished:mmlu", "run=<dir> [data=<folder>]", "ask MMLU's questions"),
    "generate": Command("finished:generate", "run=<dir> prompt=…", "continue a text"),
    "export": Command("finished:export", "run=<dir> to=<folder>", "weights, tokenizer, card"),
    "list": Command(_TRAIN, "[<name>|tables]", "components; one of them; tables", ("list",)),
    "show": Command(_TRAIN, "[group=choice …]", "parameters, FLOPs, memory, diagram", ("show",)),
    "table": Command(_TRAIN, "<paper>/<table>", "train unfinished rows, report", ("table",)),
    "report": Command("table:report", "<paper>/<table>", "a report from finished runs"),
    "rates": Command("table:rates", "<paper>/<table>", "each row's best learning rate"),
    "compare": Command("folders:compare", "[<runs>] [by=<key>]", "runs side by side, a page"),
    "records": Command("folders:records", "add|check [<runs>]", "results of runs for git"),
    "doctor": Command("doctor:main", "", "what this machine has, and what will be slow"),
    "clean": Command("folders:clean", "[<runs>] [yes=true]", "surplus checkpoints, old runs"),
    "dashboard": Command("table:dashboard", "<paper>/<table>", "a W&B workspace of a table"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code.

    Args:
        arguments: the command's name and its arguments; None: those of this process.
    """
    if CHECKOUT is not None and str(CHECKOUT) not in sys.path:
        sys.path.append(str(CHECKOUT))  # as for `python train.py`: modules beside it can be named
    name, *rest = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if name not in COMMANDS:
        return exit_code(lambda: _without_command(name, rest))
    command = COMMANDS[name]
    return exit_code(lambda: resolve_name(f"chimera.cli.{command.place}")([*command.first, *rest]))


def _without_command(name: str, rest: list[str]) -> int:
    if name == "help" and rest[:1] and rest[0] in COMMANDS:
        return main([rest[0], "--help"])
    if name in HELP or name == "help":
        print(_help())
        return 0
    if name in ("-V", "--version"):
        print(f"chimera {VERSION}")
        return 0
    if name in ("-sc", "--shell-completion"):
        return _complete([name, *rest])
    if name.startswith(("-", "+", "~")) or "=" in name:
        raise UserError(f"{name} is no command; write the command first: chimera train {name}")
    from chimera.config.migration_hints import hints

    known = f"; chimera list {name} shows this part" if _is_part(name) else nearest(name, COMMANDS)
    known = next((f"; write {o}" for o, t in hints()["commands"].items() if name in t), known)
    raise UserError(f"{name} is no command; choose one of {', '.join(COMMANDS)}{known}")


def _is_part(name: str) -> bool:
    from chimera.config.groups import ZOO, groups

    return name in ZOO or any(name in groups()[group] for group in ZOO)


def _complete(arguments: list[str]) -> int:
    """Complete the command's name, or hand the line without it to Hydra's completion.

    A shell asks the program, with the line typed so far in COMP_LINE.
    """
    if any(argument.startswith("query=") for argument in arguments):
        program, _, typed = os.environ.get("COMP_LINE", "").partition(" ")
        name, blank, rest = typed.lstrip().partition(" ")
        if not blank:
            print(" ".join(command for command in COMMANDS if command.startswith(name)))
            return 0
        if name not in COMMANDS or COMMANDS[name].place != _TRAIN:
            return 0
        line = f"{program} {rest}"
        os.environ |= {"COMP_LINE": line, "COMP_POINT": str(len(line))}
    return resolve_name(f"chimera.cli.{_TRAIN}")(arguments)


def _help() -> str:
    lines = [
        (f"chimera {name} {command.arguments}", command.summary)
        for name, command in COMMANDS.items()
    ]
    width = max(len(call) for call, _ in lines)
    listed = (f"  {call:<{width}}  {summary}" for call, summary in lines)
    end = (
        "  chimera <command> --help, chimera --version",
        "",
        "Runs are written to ./runs/ (CHIMERA_RUNS names another folder), reports to ./reports/.",
    )
    return "\n".join(("chimera <command> [arguments]", "", *listed, *end))
