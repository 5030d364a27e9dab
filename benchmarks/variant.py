"""A mixer with options of its own: `delta+conv=4` is `mixer=delta mixer.conv=4`.

Several options follow each other: `delta+conv=4+order=2`. No shell and no separator of our lists
has a meaning for `+`. Hydra's grammar ends a value at a second `=`, so that names of runs have a
point in its place: `profile-parity-delta+conv.4`.

A text is canonical if its options are sorted, differ from the mixer's own, and are written as the
configuration has them. Cards read it off the configurations of records, so that a run has one name
however its command line was written.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from chimera.config.compose import compose, plain
from chimera.config.groups import groups
from chimera.config.schema import check_node
from chimera.dotted import flatten
from chimera.errors import UserError, nearest, unknown

#: Between a mixer and its options.
PLUS = "+"
#: Values that a file name can have on every system.
_VALUE = re.compile(r"[\w.-]+", re.ASCII)


def mixer_of(variant: str) -> str:
    """`delta` of `delta+conv=4`; a plain mixer is itself."""
    return variant.partition(PLUS)[0]


def options_of(variant: str) -> list[str]:
    """`conv=4` and others; none of a plain mixer."""
    return variant.split(PLUS)[1:]


def words(variant: str) -> list[str]:
    """Words of a command line: `mixer=delta`, `mixer.conv=4`."""
    return [f"mixer={mixer_of(variant)}", *(f"mixer.{option}" for option in options_of(variant))]


def in_name(variant: str) -> str:
    """Form for names of runs."""
    return variant.replace("=", ".")


def title(variant: str) -> str:
    """Heading of its section on the card of its mixer: `With conv=4`."""
    return f"With {', '.join(options_of(variant))}"


def address(variant: str) -> str:
    """Of its section, or of the card of a plain mixer, from the folder above the cards."""
    card = f"cards/mixer-{mixer_of(variant)}.md"
    if not options_of(variant):
        return card
    kept = re.sub(r"[^\w\s-]", "", title(variant)).lower()
    return card + "#" + re.sub(r"[-\s]+", "-", kept)


def of_node(mixer: str, node: Mapping[str, Any]) -> str:
    """Canonical text of a mixer's node of a configuration.

    Args:
        mixer: its name.
        node: `mixer` of a resolved configuration.

    Raises:
        UserError: an unknown mixer.
    """
    own, given = _defaults(mixer), _options(node)
    differing = sorted(key for key, value in given.items() if value != own.get(key))
    return PLUS.join([mixer, *(f"{key}={_text(given[key])}" for key in differing)])


def checked(text: str) -> str:
    """The canonical text of what a command line has; options at their default are left out.

    Raises:
        UserError: an unknown mixer or option, or a value that the option does not take.
    """
    mixer, options = mixer_of(text), options_of(text)
    if mixer not in groups()["mixer"]:
        raise unknown("mixer", mixer, groups()["mixer"])
    if not options:
        return mixer
    allowed, seen = _defaults(mixer), set[str]()
    for option in options:
        key, _, value = option.partition("=")
        if not _VALUE.fullmatch(value) or key in seen:
            why = f"names {key} twice" if key in seen else f"cannot be read at '{PLUS}{option}'"
            raise UserError(
                f"mixer={text} {why}; write <mixer>+<option>=<value>+…, as in"
                " mixer=delta+conv=4, with values of letters, digits, points and hyphens"
            )
        if key not in allowed:
            names = ", ".join(allowed) or "none"
            raise UserError(
                f"mixer={text}: {key} is no option of {mixer}; its options are"
                f" {names}{nearest(key, allowed)}"
            )
        seen.add(key)
    node = plain(compose(["preset=profile", *words(text)]))["mixer"]
    check_node("mixer", node)
    return of_node(mixer, node)


@cache
def _defaults(mixer: str) -> dict[str, Any]:
    """Options of a mixer and their values, by dotted key."""
    if mixer not in groups()["mixer"]:
        raise unknown("mixer", mixer, groups()["mixer"])
    return _options(plain(compose(["preset=profile", f"mixer={mixer}"]))["mixer"])


def _options(node: Mapping[str, Any]) -> dict[str, Any]:
    """All keys of a node but those of Hydra."""
    flat = flatten(dict(node)).items()
    return {key: value for key, value in flat if not key.rpartition(".")[2].startswith("_")}


def _text(value: object) -> str:
    """A value as a command line has it."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    return str(value)
