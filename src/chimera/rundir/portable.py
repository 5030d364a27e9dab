"""Take from a run what may leave this machine: no absolute path, no secret, no package list."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chimera.dotted import flatten
from chimera.errors import UserError, one_line
from chimera.paths import FOLDERS
from chimera.rundir.identity import identity

if TYPE_CHECKING:
    import pandas

#: Nodes and keys of a configuration that belong to the process that trained.
LEFT_OUT = ("logger", "launcher", "run_dir", "overwrite", "extend", "ckpt_path", "workers")
#: Packages whose versions are kept: those that compute.
PACKAGES = ("torch", "lightning", "numpy", "scipy", "transformers", "tokenizers", "sentencepiece")
#: Points of a thinned step log.
POINTS = 120
#: Columns of a step log that are kept, and those of them that are averaged over a stretch of steps;
#: of the others the last value of the stretch is kept.
COLUMNS = ("global_step", "loss", "accuracy", "learning_rate", "grad_norm")
AVERAGED = ("loss", "accuracy")
#: Names of keys whose value may be a secret, and addresses with a password.
_SECRET = re.compile(r"(?i)(^|_)(api_?key|secret|passw(or)?d|credentials?|(access|auth|hf)_token)$")
_LOGIN = re.compile(r"\w://[^/\s]*@")
#: An absolute path, which an address such as `https://…` does not begin.
_ABSOLUTE = re.compile(r"(?<![\w.~/])(?<!:(?=//[^/]))(?:/+[^/,\s\]'\"]+)*/+([^/,\s\]'\"]+)")


def portable(text: str) -> str:
    """Replace absolute paths in a text by `path/to/<name>`."""
    return _ABSOLUTE.sub(r"path/to/\1", text)


def portable_config(config: Mapping[str, Any], where: Path) -> dict[str, Any]:
    """The configuration without paths and keys of this machine; its identity is unchanged.

    Args:
        config: of a run.
        where: the run's directory, for the message.

    Raises:
        UserError: its numbers depend on a path of this machine, or a setting may be a secret.
    """
    kept: dict[str, Any] = {k: v for k, v in config.items() if k not in LEFT_OUT}
    for key, value in flatten(kept).items():
        secret = value not in (None, "") and _SECRET.search(key.rpartition(".")[2])
        if secret or _LOGIN.search(str(value)):
            raise UserError(f"{where}: {key} may be a secret, so no record of it is kept")
    found: dict[str, Any] = portable_values(kept)
    if identity(found) != identity(dict(config)):
        changed = [k for k, v in flatten(kept).items() if portable_values(v) != v]
        raise UserError(
            f"{where} depends on a path of this machine ({', '.join(changed)}), so nobody else"
            " could repeat it; train it with a path below the current folder"
        )
    return found


def portable_values(node: Any) -> Any:
    """Plain values, with absolute paths replaced in every text."""
    if isinstance(node, Mapping):
        return {key: portable_values(value) for key, value in node.items()}
    if isinstance(node, list):
        return [portable_values(value) for value in node]
    if not isinstance(node, str):
        return node
    # A path that is the whole value may have blanks in it.
    return f"path/to/{Path(node).name}" if node.startswith("/") else portable(node)


def portable_overrides(lines: Iterable[str]) -> list[str]:
    """The words of a command line that another machine can use."""
    kept = []
    for line in lines:
        key = line.lstrip("+~").partition("=")[0]
        if key.partition(".")[0] not in (*LEFT_OUT, "hydra") and key != "data.cache_dir":
            kept.append(portable(one_line(line)))
    return kept


def portable_environment(about: Mapping[str, Any]) -> dict[str, Any]:
    """The machine, with the versions of those packages only that compute."""
    versions = about.get("packages") or {}
    kept = {name: versions[name] for name in PACKAGES if name in versions}
    machine = {key: value for key, value in about.items() if key not in ("packages", FOLDERS)}
    return {**portable_values(machine), "packages": kept}


def portable_result(result: Mapping[str, Any]) -> dict[str, Any]:
    """Contents of run.json without the folders of the cache."""
    data = {k: v for k, v in (result.get("data") or {}).items() if k != "cache"}
    found: dict[str, Any] = portable_values({**result, "data": data})
    return found


def thinned(log: pandas.DataFrame, points: int = POINTS) -> dict[str, list[float | None]]:
    """Columns of a step log at so many steps; losses and accuracies are means since the last one.

    Args:
        log: as `steps.read` reads it.
        points: at most.
    """
    names = [name for name in COLUMNS if name in log]
    table = log[[*names, "seconds"]].replace([math.inf, -math.inf], math.nan)
    stretches = table.groupby(table.index // max(1, math.ceil(len(table) / points)))
    kept = stretches.tail(1)
    for name in set(AVERAGED) & set(names):
        kept = kept.assign(**{name: stretches[name].mean().to_numpy()})
    found = {name: [_rounded(value) for value in kept[name]] for name in names}
    return {**found, "seconds": [round(float(value), 2) for value in kept["seconds"]]}


def _rounded(value: float) -> float | None:
    return None if math.isnan(value) else float(f"{value:.6g}")
