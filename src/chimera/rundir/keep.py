"""Put the record of a finished run into the run store, without what is of one machine only."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from chimera.errors import UserError, one_line
from chimera.paths import store_root
from chimera.rundir.atomic import make_folder
from chimera.rundir.directory import RunDir
from chimera.rundir.identity import NUMERICS, flatten, identity, numerics_of
from chimera.rundir.kept_weights import SUMS, write
from chimera.rundir.steps import read
from chimera.rundir.store import FILES, STATUS, STORED, digest, is_stored

#: Nodes and keys of a configuration that are of the process that trained.
LEFT_OUT = ("logger", "launcher", "run_dir", "overwrite", "extend", "ckpt_path", "workers")
#: Packages whose versions are kept: those that compute.
PACKAGES = ("torch", "lightning", "numpy", "scipy", "transformers", "tokenizers", "sentencepiece")
#: Rows of a stored step log.
ROWS = 120
#: Columns of a step log that are averaged; of the others the last value of a stretch is kept.
AVERAGED = ("loss", "accuracy")
#: Names of keys whose value may be a secret, and addresses with a password.
_SECRET = re.compile(r"(?i)(^|_)(api_?key|secret|passw(or)?d|credentials?|(access|auth|hf)_token)$")
_LOGIN = re.compile(r"\w://[^/\s]*@")
#: An absolute path; `https://` begins none.
_ABSOLUTE = re.compile(r"(?<![\w.~/])(?<!:(?=//[^/]))(?:/+[^/,\s\]'\"]+)*/+([^/,\s\]'\"]+)")


def portable(text: str) -> str:
    """Text in which absolute paths are `path/to/<name>`: those of one machine help no reader."""
    return _ABSOLUTE.sub(r"path/to/\1", text)


def add(
    run: Path,
    root: Path | None = None,
    *,
    replace: bool = False,
    weights: bool = False,
    rows: int = ROWS,
) -> tuple[Path, bool]:
    """Store the record of a finished run.

    Args:
        run: its directory.
        root: of the store; None: that of this process.
        replace: a record of the same run with other numbers.
        weights: keep the weights and the tokenizer, too (`rundir.kept_weights`).
        rows: of the step log, at most.

    Returns:
        The record's directory, and whether it was written: an equal one is left alone.

    Raises:
        UserError: the run is not finished, is of other numerics, depends on a path of this machine,
            has a secret in its settings, has no weights that a store keeps, or another record of it
            is there.
    """
    directory = RunDir(run)
    if is_stored(directory):
        raise UserError(f"{run} is a record of a store already")
    state = directory.status().get("state", "no run")
    if state != "DONE":
        raise UserError(f"{run} is {state}; a store takes finished runs")
    whole = directory.config()
    if (number := numerics_of(whole)) != NUMERICS:
        raise UserError(f"{run} is of numerics {number}; this version stores numerics {NUMERICS}")
    config = _portable_config(run, whole)
    texts = {
        "config.yaml": yaml.safe_dump(config, sort_keys=False),
        "overrides.txt": "".join(f"{word}\n" for word in _words(run / "overrides.txt")),
        "environment.json": _json(_environment(run / "environment.json")),
        "run.json": _json(_record(directory.record())),
        "steps.csv": thinned(run / "steps.csv", rows),
    }
    place = (root or store_root()) / f"{whole['name']}-{identity(whole)}"
    if (place / STATUS).is_file():
        there = {name: _text(place / name) for name in FILES}
        has = SUMS in RunDir(place).status().get(STORED, {})
        if there == texts and (has or not weights):
            return place, False
        if there != texts and not replace:
            raise UserError(f"{place} has another record of this run; overwrite=true replaces it")
        if has and not weights:
            raise UserError(f"{place} has weights; weights=true replaces them, too")
    _write(place, texts, directory if weights else None)
    return place, True


def thinned(log: Path, rows: int = ROWS) -> str:
    """A step log of so many rows: losses and accuracies are means since the row before.

    Args:
        log: steps.csv of a run; may be missing.
        rows: at most.
    """
    steps = read(log) if log.is_file() else []
    size = max(1, math.ceil(len(steps) / rows))
    out = io.StringIO()
    names = list(steps[0]) if steps else ["global_step", "loss"]
    writer = csv.DictWriter(out, names, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    for start in range(0, len(steps), size):
        part = steps[start : start + size]
        row = {name: _short(text) for name, text in part[-1].items() if isinstance(text, str)}
        for name in AVERAGED:
            values = [value for step in part if math.isfinite(value := _number(step.get(name)))]
            if values and len(part) > 1:
                row[name] = f"{sum(values) / len(values):.6g}"
        writer.writerow(row)
    return out.getvalue()


def _portable_config(run: Path, config: dict[str, Any]) -> dict[str, Any]:
    """The configuration without places; what its numbers depend on is unchanged.

    Raises:
        UserError: its numbers depend on a path of this machine, or a setting may be a secret.
    """
    kept: dict[str, Any] = {k: v for k, v in config.items() if k not in LEFT_OUT}
    for key, value in flatten(kept).items():
        text = str(value)
        secret = value not in (None, "") and _SECRET.search(key.rpartition(".")[2])
        if secret or _LOGIN.search(text):
            raise UserError(f"{run}: {key} may be a secret, so its record is not stored")
    # What reading asks for on each look-up; these runs are in no directory of their own.
    found: dict[str, Any] = _mapped(kept) | {"overwrite": False, "run_dir": None}
    if identity(found) != identity(config):
        changed = [k for k, v in flatten(kept).items() if _mapped(v) != v]
        raise UserError(
            f"{run} depends on a path of this machine ({', '.join(changed)}), so its record would"
            " be of no other; train it with a path below the current folder"
        )
    return found


def _mapped(node: Any) -> Any:
    """Plain values with portable texts."""
    if isinstance(node, Mapping):
        return {key: _mapped(value) for key, value in node.items()}
    if isinstance(node, list):
        return [_mapped(value) for value in node]
    if not isinstance(node, str):
        return node
    # A path that is the whole value may have blanks in it.
    return f"path/to/{Path(node).name}" if node.startswith("/") else portable(node)


def _words(file: Path) -> Iterator[str]:
    """Words of the command line that another machine can use."""
    for line in file.read_text(encoding="utf-8").splitlines() if file.is_file() else ():
        key = line.lstrip("+~").partition("=")[0]
        if key.partition(".")[0] not in (*LEFT_OUT, "hydra") and key != "data.cache_dir":
            yield portable(one_line(line))


def _environment(file: Path) -> dict[str, Any]:
    about = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    versions = about.pop("packages", {})
    kept = {name: versions[name] for name in PACKAGES if name in versions}
    return {**_mapped(about), "packages": kept}


def _record(record: dict[str, Any]) -> dict[str, Any]:
    """run.json without the folders of the cache."""
    kept = {k: v for k, v in record.items() if k != "data"}
    data = {k: v for k, v in record.get("data", {}).items() if k != "cache"}
    found: dict[str, Any] = _mapped({**kept, "data": data})
    return found


def _write(place: Path, texts: Mapping[str, str], weights: RunDir | None) -> None:
    """Write a record, with the weights of that run, beside its place, then put it there."""
    writing = place.with_name(f".{place.name}.{os.getpid()}")
    shutil.rmtree(writing, ignore_errors=True)
    make_folder(writing, of=place.parent, key="CHIMERA_STORE")
    try:
        for name, text in texts.items():
            (writing / name).write_text(text, encoding="utf-8", newline="\n")
        sums = {name: digest(writing / name) for name in texts}
        stored: dict[str, Any] = {"sha256": sums}
        if weights is not None:
            stored[SUMS] = write(weights, writing)
        status = _json({"state": "DONE", STORED: stored})
        (writing / STATUS).write_text(status, encoding="utf-8", newline="\n")
        if place.is_dir():
            shutil.rmtree(place)
        os.replace(writing, place)
    finally:
        shutil.rmtree(writing, ignore_errors=True)


def _json(value: object) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False) + "\n"


def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8") if file.is_file() else ""


def _number(text: object) -> float:
    try:
        return float(str(text))
    except ValueError:
        return math.nan


def _short(text: str) -> str:
    """A number in six digits; any other text as it is."""
    value = _number(text)
    return f"{value:.6g}" if math.isfinite(value) and len(text) > 8 and "." in text else text


def words_of(place: Path) -> Sequence[str]:
    """Words of the command line that trains a stored run."""
    return _text(place / "overrides.txt").split("\n")[:-1]
