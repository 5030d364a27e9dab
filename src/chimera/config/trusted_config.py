"""Check a configuration that is read back from a directory before anything is built from it.

A directory may come from a stranger, so its configuration is data: it names classes only that
`conf/`, `experiments/`, a plugin or a folder of `--config-dir` declare for that group. Nodes that
reading back never builds (loggers, callbacks, …) are left out. A model that has to be fetched, or
read from another folder, takes `trust=true` on the command line.
"""

from __future__ import annotations

import re
import shlex
from collections import defaultdict
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import StringConstraints

from chimera import dotted
from chimera.config.groups import BUILT, contents, roots
from chimera.config.schema import call_later, check_node, check_value, shown
from chimera.config.settings import Precision
from chimera.errors import UserError, one_line
from chimera.paths import FOLDERS
from chimera.program import again
from chimera.rundir.directory import RunDir
from chimera.safe_io import check_links, read_json
from chimera.types import NAME, NonNegativeInt, PositiveInt, Seed

#: Top-level nodes that are not built when a configuration is read back: they belong to the process
#: that trained.
LEFT_OUT = ("logger", "callbacks", "guard", "launcher")
#: First line of a file that fills another node than that of its group.
PACKAGE = re.compile(r"# @package (\S+)")
#: Name of an option, which may be in a folder of its group (`data=mad/mqar`).
Option = Annotated[str, StringConstraints(pattern=rf"^(\w+/)?{NAME}$")]
#: Nodes of `optim` that only training builds.
TRAINING = ("optimizer", "schedule")
#: Any optimiser of torch; README offers them by their paths.
OPTIMISERS = re.compile(r"torch\.optim\.[A-Z]\w*")
#: Keys with which Hydra's `instantiate` is steered; this project uses these two.
STEERING = re.compile(r"_\w+_")
USED = ("_target_", "_partial_")
#: Keys by which a model's configuration makes its own library fetch code or more files.
FETCHING = re.compile(r"auto_map|quantization_config|_?(attn|experts)_implementation(_internal)?")
#: What else `config.json` of an exported folder holds and reading it uses.
EXPORTED: dict[str, Any] = {
    "chimera": dict[str, Any],
    "vocab_size": PositiveInt,
    "outputs": NonNegativeInt,
    "packed": bool,
    "adapter": str,
    "tied": dict[str, str],
}


class UndeclaredError(UserError):
    """A configuration names a class that no file declares."""


def recorded(directory: RunDir, *, training: bool = False) -> dict[str, Any]:
    """The configuration of a run's directory, checked; nodes that are not built are left out.

    Args:
        directory: of a run, whoever made it.
        training: keep the optimiser and the schedule, to repeat a step of training.

    Raises:
        UserError: no run, or a configuration that is more than data.
    """
    if directory.path.is_file():
        run = next(above for above in directory.path.parents if above.name != "checkpoints")
        raise UserError(f"run={directory.path} is a file; name the run's directory, run={run}")
    check_links(directory.path, "checkpoints", "tokenizer")
    try:
        return checked(directory.config(), f"run={directory.path}", training=training)
    except UndeclaredError as error:
        folders = read_json(directory.path / "environment.json").get(FOLDERS)
        if not isinstance(folders, list) or not folders:
            raise
        words = one_line(" ".join(f"--config-dir={shlex.quote(str(folder))}" for folder in folders))
        raise UserError(
            f"{error}; this run was trained with {words}; if that is yours: {again()} {words}"
        ) from error


def checked(config: Mapping[str, Any], where: str, *, training: bool = False) -> dict[str, Any]:
    """A configuration as it was read from a file, without what is never built; nothing is imported.

    Args:
        config: of a run or an export.
        where: it was read, for the message.
        training: see `recorded`.

    Raises:
        UserError: it lacks a part, or names a class that is not declared.
    """
    found = {key: value for key, value in config.items() if key not in LEFT_OUT}
    for group in BUILT:
        if not isinstance(dotted.get(found, f"{group}._target_"), str):
            raise UserError(f"{where}: its configuration has no node {group} with a _target_")
    if not training:
        found["optim"] = {k: v for k, v in found["optim"].items() if k not in TRAINING}
    expected = {f"choices.{group}": Option for group in ("preset", *BUILT)}
    for key, hint in {**expected, "seed": Seed, "precision": Precision}.items():
        check_value(f"{where}: {key}", dotted.get(found, key), hint)
    check_targets(found, where)
    call_later(found, f"{where}: ")
    try:
        for group in BUILT:
            check_node(group, found[group], deep=group != "optim")
    except UserError as error:
        raise UserError(f"{where}: {error}") from error
    return found


def exported(folder: Path, where: str) -> dict[str, Any] | None:
    """The contents of an exported folder's config.json, `chimera` checked; None if it is no export.

    Raises:
        UserError: as of `checked`.
    """
    about = read_json(folder / "config.json")
    if "chimera" not in about:
        return None
    check_value(f"{where}:", {key: about.get(key) for key in EXPORTED}, EXPORTED)
    check_links(folder, "tokenizer", "body", "adapter")
    return about | {"chimera": checked(about["chimera"], where)}


def check_targets(config: Mapping[str, Any], where: str) -> None:
    """Check every class that a configuration names, at any depth, and all other keys and values.

    Args:
        config: plain containers; the first keys are groups.
        where: it was read, for the message.

    Raises:
        UserError: a class that is not declared for its group, a key that steers Hydra, a value that
            would be interpreted.
    """
    for key, value in dotted.walk(config, lists=True):
        group = key.partition(".")[0]
        name = key.rpartition(".")[2]
        if name == "_target_":
            known = declared().get(group, ())
            of_torch = key == "optim.optimizer._target_" and OPTIMISERS.fullmatch(str(value))
            if not (isinstance(value, str) and (value in known or of_torch)):
                raise UndeclaredError(
                    f"{where}: {key}={shown(value)} is not declared; only a class that a file of"
                    f" conf/, experiments/ or a plugin names for {group} is built, or one of your"
                    " own folder: add --config-dir=<folder>"
                )
            continue
        steers = STEERING.fullmatch(name) and (name not in USED or not isinstance(value, bool))
        interpreted = isinstance(value, str) and ("${" in value or value == "???")
        plain = isinstance(value, str | bool | int | float | dict | list | None)
        if steers or interpreted or not plain:
            raise UserError(
                f"{where}: {key}={shown(value)} is no setting of a recorded run; its file holds"
                " texts, numbers, lists and mappings"
            )


def trusted_model(
    config: Mapping[str, Any],
    folder: Path,
    where: str,
    *,
    trust: bool = False,
    advice: str = "add trust=true if you know it",
) -> dict[str, Any]:
    """The node `model`, which needs nothing but the folder that it was read from.

    A model of another library is built by the configuration in `body/`, with fresh weights.

    Args:
        config: checked.
        folder: of a run or an export.
        where: it was read, for the message.
        trust: the user has said that the model named in the file may be loaded.
        advice: how the user says so.

    Raises:
        UserError: there is no `body/`, and no such word.
    """
    node = dict(config["model"])
    body = folder / "body"
    if (body / "config.json").is_file():
        check_fetching(body / "config.json")
        return node | {"name": str(body), "revision": None, "pretrained": False}
    if node.get("name") and not trust:
        raise UserError(
            f"{where}: its file names the model {shown(node['name'])}, which is not loaded on a"
            f" file's word; {advice}"
        )
    return node


def check_fetching(file: Path) -> None:
    """Refuse the configuration of another library's model that would make it fetch code.

    Raises:
        UserError: naming the key.
    """
    for key, value in dotted.walk(read_json(file), lists=True):
        if FETCHING.fullmatch(key.rpartition(".")[2]) and value is not None:
            raise UserError(f"{file}: {key} would fetch code or other files; drop it")


def without_fetching(node: Any) -> Any:
    """A model's configuration without the keys that `check_fetching` refuses."""
    if isinstance(node, dict):
        kept = {key: value for key, value in node.items() if not FETCHING.fullmatch(key)}
        return {key: without_fetching(value) for key, value in kept.items()}
    return [without_fetching(value) for value in node] if isinstance(node, list) else node


@cache
def declared() -> dict[str, set[str]]:
    """By group, the classes and functions that its files name, at any depth."""
    found = defaultdict[str, set[str]](set)
    for root in roots():
        for file in sorted(root.rglob("*.yaml")):
            text = file.read_text(encoding="utf-8", errors="replace")
            package = PACKAGE.match(text)  # schedule/ fills optim.schedule, a preset _global_
            place = package[1] if package else file.relative_to(root).parts[0]
            node = contents(file) if "_target_" in text else {}
            for key, value in dotted.walk(node, f"{place}.", lists=True):
                group, _, name = key.removeprefix("_global_.").partition(".")
                if f".{name}".endswith("._target_"):
                    found[group].add(value)
    return dict(found)
