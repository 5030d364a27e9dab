"""Describe one component: equation, options with defaults and ranges, source, cost, partners.

`python train.py list mamba` prints it. Everything is read from the component itself: the docstring
of its module has the equation, the signature of its constructor the options. Which other parts it
goes with is found by building models on the meta device, which takes no memory.
"""

from __future__ import annotations

import inspect
import re
import shutil
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

from hydra.utils import get_object

from chimera.config.choices import later
from chimera.config.compose import compose, plain
from chimera.config.groups import ZOO, defaults, find, groups, is_part, node, pattern_depth
from chimera.config.schema import RESERVED, arguments, describe
from chimera.config.settings import Model
from chimera.contract import CAUSAL, Mixer
from chimera.errors import UserError, nearest
from chimera.model.assemble import check_model, choose
from chimera.model.catalog import papers
from chimera.program import command_name

#: A small shape that every component accepts.
SHAPE = Model(dim=32, depth=2, heads=4, max_len=32)
#: Groups whose options set keys of other groups: their file is shown.
WHOLE = ("preset", "scale", "debug")
#: A line that documents an argument, or several.
_ARGUMENT = re.compile(r"(\w+(?:, \w+)*): (.*)")


def component_pages(words: list[str]) -> str:
    """Cards of all components of these names, as wide as the terminal.

    Args:
        words: a name such as `mamba`, or `group=name`.

    Raises:
        UserError: no component has the name.
    """
    width = min(shutil.get_terminal_size().columns, 100)
    found = [pair for word in words for pair in _named(word)]
    return "\n\n".join(component_page(group, name, width) for group, name in found)


def _named(word: str) -> list[tuple[str, str]]:
    parts = {group: names for group, names in groups().items() if is_part(group)}
    group, equals, name = word.partition("=")
    if equals:
        found = [(group, name)] if name in parts.get(group, ()) else []
    else:
        found = [(group, word) for group, names in parts.items() if word in names]
    if not found:
        every = {name for names in parts.values() for name in names} | {*parts, "tables"}
        close = nearest(word, every) or nearest(name, every)
        raise UserError(
            f"cannot list '{word}'; write list, list tables, or the name of a component or group,"
            f" as in list mamba, list norm{close}"
        )
    return found


def component_page(group: str, name: str, width: int = 80) -> str:
    """The page of one option of a group.

    Args:
        group, name: of an option that exists.
        width: in characters.
    """
    head = f"{group}={name}"
    file = find(f"{group}/{name}").read_text(encoding="utf-8")
    config = _config(group, name)
    options = list[str]()
    blocks = [f"{head}\n{'-' * len(head)}"]
    if isinstance(config.get("_target_"), str):
        target: Any = get_object(config["_target_"])
        comment = file.split("\n")[0].removeprefix("# ") if file.startswith("# ") else ""
        texts = [t for t in (comment, _about(target)) if t and not t.startswith("@package")]
        blocks += [_fit(text, width) for text in texts]
        options = list(_options(group, config, target, width))
        if options:
            blocks.append("\n".join([f"options ({group}.<option>=<value>)", *options]))
        facts = _facts(target)
    else:  # a preset, a scale: its file says all
        lines = (line for line in file.splitlines() if not line.startswith("# @package"))
        blocks.append("\n".join(lines))
        facts = {}
    if group in ZOO:
        facts |= _partners(group, name)
    facts["write"] = f"{command_name('train')} {head}" + _example(group, config)
    blocks.append("\n".join(_fact(key, text, width) for key, text in facts.items() if text))
    return "\n\n".join(blocks)


@cache
def _config(group: str, name: str) -> dict[str, Any]:
    """The node that the option composes to, or its file's where that fills another node."""
    raw = later(group, node(group, name) or {})
    if group in WHOLE or not {"_target_", "defaults"} & set(raw):
        return {}
    if "defaults" not in raw and "${" not in str(raw):
        return raw
    composed = plain(compose([f"{group}={name}"]))
    return composed.get(group) or raw


def _about(target: Any) -> str:
    """Docstring of the component's module, which begins with its equation, else its own."""
    module = inspect.getmodule(target)
    own = (inspect.getdoc(target) or "").partition("\nArgs:")[0].strip()
    of_module = (inspect.getdoc(module) or "").strip() if module is not None else ""
    several = sum(1 for _ in _public(module)) > 1
    if several or not of_module:
        return own if own and own not in of_module else of_module
    return of_module


def _public(module: Any) -> Iterator[str]:
    """Classes and functions that a module defines for others."""
    for name, value in vars(module).items():
        defined = getattr(value, "__module__", "") == module.__name__
        if defined and not name.startswith("_") and hasattr(value, "component"):
            yield name


def _options(group: str, config: dict[str, Any], target: Any, width: int) -> Iterator[str]:
    """Lines of each option: name, default, what it takes, what it does."""
    documented = dict(_documented(target))
    shown = {key: hint for key, hint in arguments(config["_target_"]).items() if key in config}
    inner = {key: value for key, value in config.items() if key not in {*shown, *RESERVED}}
    wide = max((len(key) for key in [*shown, *inner]), default=0)
    for key, hint in shown.items():
        value = "null" if config[key] is None else str(config[key]).replace("'", "")
        value = str(config[key]).lower() if isinstance(config[key], bool) else value
        if isinstance(config[key], dict):
            value = ", ".join(config[key]) or "{}"
        takes = "" if hint is Any else f" ({_readable(hint)})"
        text = f"{value}{takes}"
        if key in documented:
            text += f": {documented[key]}"
        yield _hang(f"  {key:<{wide}}  ", text, width)


def _readable(hint: Any) -> str:
    """What an option takes, in words; a class that YAML builds is a node."""
    text = describe(hint)
    return "a node with _target_" if "chimera." in text or "<" in text else text


def _documented(target: Any) -> Iterator[tuple[str, str]]:
    """(argument, sentence) of the section `Args:` of a docstring."""
    section = (inspect.getdoc(target) or "").partition("Args:\n")[2].split("\n\n")[0]
    names = list[str]()
    words = list[str]()
    for line in [*textwrap.dedent(section).splitlines(), "end: "]:
        begins = _ARGUMENT.fullmatch(line) if not line.startswith(" ") else None
        if begins or line == "end: ":
            yield from ((name, " ".join(words).replace("``", "")) for name in names)
        if begins:
            names = begins[1].split(", ")
            words = [begins[2]]
        else:
            words.append(line.strip())


def _facts(target: Any) -> dict[str, str]:
    facts = {"source": papers(getattr(target, "source", ""))}
    if inspect.isclass(target) and issubclass(target, Mixer):
        both = "encoders and decoders"
        wrapped = "decoders; encoders run it both ways, by a wrapper"
        facts |= {
            "computed": ", ".join(target.forms),
            "cost": target.cost and f"{target.cost} for t tokens of width d",
            "state": target.state_size or "none",
            "used in": wrapped if target.directions == CAUSAL else both,
        }
    return facts


def _partners(group: str, name: str) -> dict[str, str]:
    """By group, the parts that the default model with this one can have."""
    found = {}
    for other in ZOO:
        if other == group:
            continue
        names = groups()[other]
        fits = [option for option in names if _builds({group: name, other: option})]
        refused = [option for option in names if option not in fits]
        said = ", ".join(fits) or "none"
        short = f"all but {', '.join(refused)}"
        found[f"with {other}"] = "all" if not refused else min(said, short, key=len)
    return found


def _builds(chosen: dict[str, str]) -> bool:
    options = {part: defaults()[part] for part in ZOO} | chosen
    config = {group: _config(group, option) for group, option in options.items()}
    shape = replace(SHAPE, depth=pattern_depth(options["mixer"]))
    try:
        check_model(shape, choose({**config, "choices": options}), causal=True)
    except UserError:
        return False
    return True


def _example(group: str, config: dict[str, Any]) -> str:
    """An option set, as on a command line."""
    for key, value in config.items():
        if key not in RESERVED and isinstance(value, int | float | str) and value not in ("", None):
            shown = str(value).lower() if isinstance(value, bool) else value
            return f" {group}.{key}={shown}"
    return ""


def _fact(key: str, text: str, width: int) -> str:
    return _hang(f"{key:<14}", text, width)


def _hang(head: str, text: str, width: int) -> str:
    """A first part, and text beside it in lines of the width."""
    lines = textwrap.wrap(text, width - len(head), break_on_hyphens=False) or [""]
    return "\n".join([head + lines[0], *(" " * len(head) + line for line in lines[1:])])


def _fit(text: str, width: int) -> str:
    """Paragraphs in lines of the width; indented ones, which are equations, break between them."""
    blocks = text.split("\n\n")
    return "\n\n".join(
        "\n".join(_equation(line, width) for line in block.split("\n"))
        if block.startswith(" ")
        else "\n".join(textwrap.wrap(block, width))
        for block in blocks
    )


def _equation(line: str, width: int) -> str:
    """A line that is too long, broken where it has two blanks or more; else as it is."""
    lines = [""]
    for part in re.findall(r" *\S+(?: \S+)*", line):
        if lines[-1].strip() and len(lines[-1] + part) > width:
            lines.append(" " * (len(line) - len(line.lstrip()) + 2) + part.strip())
        else:
            lines[-1] += part
    return "\n".join(lines)
