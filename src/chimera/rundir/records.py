"""Keep finished runs as records in git, find the record of a run, make a data frame of all records.

<folder>/runs.jsonl.gz  a line of JSON per run: configuration, overrides, run.json, environment,
                        thinned step log
<folder>/runs.txt       a line of text per run, so that a diff shows which runs came

Records of a table's runs are in `experiments/<paper>/<table>/results/<scale>/`, a user's other ones
in `records/<scale>/`. Sweeps, reports, comparisons and `ch.runs` count a record as a finished run.
A record has no weights, no absolute path, no secret, no list of packages. It may be a stranger's,
so it is data: nothing that it names is imported, and a line that is damaged, or of another run than
its configuration says, does not count.
"""

from __future__ import annotations

import gzip
import itertools
import json
import math
import re
import shlex
import sys
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_origin, get_type_hints

from chimera.dotted import flatten
from chimera.errors import UserError, one_line
from chimera.paths import FOLDERS, home, records_roots
from chimera.rundir.directory import RunDir
from chimera.rundir.identity import identity, identity_settings, is_found_by_identity
from chimera.rundir.steps import read
from chimera.safe_io import (
    check_fields,
    locked,
    make_folder,
    parse_json,
    read_json,
    read_text,
    write_atomic,
)

if TYPE_CHECKING:
    import pandas

RUNS = "runs.jsonl.gz"
LIST = "runs.txt"
#: Columns of runs.txt.
COLUMNS = ("identity", "row", "seed", "metric", "value", "commit", "date")
#: Bytes of all records of a folder, uncompressed; a larger file is damaged or meant to do harm.
LARGEST = 1 << 28
#: Nodes and keys of a configuration that belong to the process that trained.
LEFT_OUT = ("logger", "launcher", "run_dir", "overwrite", "extend", "ckpt_path", "workers")
#: Packages whose versions are kept: those that compute.
PACKAGES = ("torch", "lightning", "numpy", "scipy", "transformers", "tokenizers", "sentencepiece")
#: Points of a thinned step log.
POINTS = 120
#: Columns of a step log that are kept, and those of them that are averaged over a stretch of steps;
#: of the others the last value of the stretch is kept.
STEP_COLUMNS = ("global_step", "loss", "accuracy", "learning_rate", "grad_norm")
AVERAGED = ("loss", "accuracy")
#: Names of keys whose value may be a secret, and addresses with a password.
_SECRET = re.compile(r"(?i)(^|_)(api_?key|secret|passw(or)?d|credentials?|(access|auth|hf)_token)$")
_LOGIN = re.compile(r"\w://[^/\s]*@")
#: An absolute path, which an address such as `https://…` does not begin.
_ABSOLUTE = re.compile(r"(?<![\w.~/])(?<!:(?=//[^/]))(?:/+[^/,\s\]'\"]+)*/+([^/,\s\]'\"]+)")
_told: set[str] = set()


@dataclass(frozen=True)
class Record:
    """What is kept of a finished run.

    Args:
        identity: of its settings.
        name: of the run, without the identity.
        date: when its last step was taken.
        config: resolved configuration.
        overrides: its command line.
        result: contents of run.json.
        environment: contents of environment.json.
        steps: thinned columns of steps.csv, and the seconds since the first step.
        folder: of the file that it was read from.
    """

    identity: str
    name: str
    date: str
    config: dict[str, Any] = field(repr=False)
    overrides: list[str] = field(repr=False)
    result: dict[str, Any] = field(repr=False)
    environment: dict[str, Any] = field(repr=False)
    steps: dict[str, list[Any]] = field(repr=False)
    folder: Path

    @property
    def path(self) -> Path:
        """A name of the record, for readers: its folder, and the directory that its run had."""
        return self.folder / f"{self.name}-{self.identity}"

    @property
    def metrics(self) -> dict[str, float]:
        """Metrics of the final validation and test."""
        return self.result["metrics"]

    @property
    def table(self) -> str | None:
        """Name of the table whose folder the record is in; of another folder, that of its row."""
        results = self.folder.parent
        if results.name == "results":
            return f"{results.parent.parent.name}/{results.parent.name}"
        return (self.config.get("table") or {}).get("name")

    @property
    def row(self) -> str:
        """Name of the table's row that the run is of; its name if it is of none."""
        return str((self.config.get("table") or {}).get("row") or self.name)


#: Fields of a line, and their types: those of a record but its folder.
FIELDS: dict[str, type] = {
    name: get_origin(hint) or hint for name, hint in get_type_hints(Record).items() if hint != Path
}


class Records:
    """The records below some folders, looked up by identity.

    Args:
        roots: the folders; None: those of this process.

    Attributes:
        refused: why records that were looked for do not count, by their identity.
    """

    def __init__(self, roots: Sequence[Path] | None = None) -> None:
        self.refused: dict[str, str] = {}
        self._folders: dict[str, Path] = {}
        for folder in folders(roots):
            listed = _listed(folder / LIST)
            if not listed and (folder / RUNS).exists():
                why = f"{LIST} beside it lists no run; restore both, or add the runs again"
                self.refused[str(folder)] = f"{folder / RUNS}: {why}"
            self._folders |= dict.fromkeys(listed, folder)

    def find(self, config: dict[str, Any], directory: RunDir) -> Record | None:
        """The record of a run that is not finished in its directory; None if there is none."""
        done = directory.status().get("state") == "DONE"
        return None if done or not is_found_by_identity(config) else self.get(identity(config))

    def get(self, digits: str) -> Record | None:
        """The record of this identity; None if there is none that counts."""
        if digits not in self._folders or digits in self.refused:
            return None
        try:
            return _record(self._folders[digits], digits)
        except UserError as error:
            self.refused[digits] = str(error)
            return None

    def __iter__(self) -> Iterator[str]:
        """The identities, folder by folder."""
        return iter(self._folders)

    def __contains__(self, digits: object) -> bool:
        return digits in self._folders

    def tell(self) -> None:
        """Say on standard error which records do not count, each once in a process."""
        for why in dict.fromkeys(self.refused.values()):
            if why not in _told:
                _told.add(why)
                print(f"not counted: {one_line(why)}", file=sys.stderr)


def folders(roots: Sequence[Path] | None = None) -> list[Path]:
    """Folders with records, below some folders or those of this process, sorted."""
    named = [root.rglob(name) for root in roots or records_roots() for name in (LIST, RUNS)]
    return sorted({file.parent for file in itertools.chain(*named)})


def records(folder: Path) -> list[Record]:
    """All records of a folder, in the order of its list.

    Raises:
        UserError: one does not count, or list and records differ; the line names the file.
    """
    listed = _listed(folder / LIST)
    kept = _lines(folder / RUNS)
    if missing := sorted(set(listed) ^ set(kept)):
        one = "lists" if missing[0] in listed else "does not list"
        raise UserError(
            f"{folder / LIST} {one} the run {missing[0]}, unlike {RUNS}; restore both files"
        )
    return [_record(folder, digits) for digits in listed]


def unfinished(runs: Iterable[Path]) -> list[Record]:
    """Records of runs that are not finished in any of these directories; no others are read."""
    kept = Records()
    there = set[str]()
    for run in runs:
        digits = run.name.rpartition("-")[2]
        if digits in kept and RunDir(run).status().get("state") == "DONE":
            there.add(digits)
    found = [kept.get(digits) for digits in kept if digits not in there]
    kept.tell()
    return [record for record in found if record is not None]


def frame(*tables: str) -> pandas.DataFrame:
    """Make a data frame of all records, one row each: settings and results in flat columns.

    Columns: table, row, scale, seed, identity, name, date, tags; each key of the configuration
    (`optim.lr`), each choice (`choices.mixer`), each metric (`val/perplexity`), each other number
    of run.json (`parameters.total`, `steps`), and of the machine processor, gpu, commit,
    git.changed.

    Args:
        tables: names, such as `saidl/attention`; none: all.

    Raises:
        UserError: a record does not count.
    """
    import pandas

    found = [record for folder in folders() for record in _of_tables(folder, tables)]
    return pandas.DataFrame([_flat(record) for record in found])


def _of_tables(folder: Path, tables: Sequence[str]) -> list[Record]:
    place = "/".join(folder.parts[-4:-2])
    if tables and folder.parent.name == "results" and place not in tables:
        return []
    return [each for each in records(folder) if not tables or each.table in tables]


def _flat(record: Record) -> dict[str, Any]:
    result = {k: v for k, v in record.result.items() if k not in ("metrics", "choices")}
    config = {k: v for k, v in record.config.items() if k not in ("scale", "table", "callbacks")}
    git = record.environment.get("git") or {}
    return {
        **flatten(result),
        **flatten(config),
        **record.metrics,
        "table": record.table,
        "row": record.row,
        "scale": record.config["choices"].get("scale"),
        "identity": record.identity,
        "date": record.date,
        "tags": record.result.get("tags") or record.config.get("tags"),
        "processor": record.environment.get("processor"),
        "gpu": record.environment.get("gpu"),
        "commit": git.get("commit"),
        "git.changed": git.get("changed"),
    }


def of_run(run: Path) -> Record:
    """The record of a finished run's directory.

    Raises:
        UserError: the run is not finished, its numbers depend on a path of this machine, or its
            settings may hold a secret.
    """
    directory = RunDir(run)
    state = directory.status().get("state", "no run")
    if state != "DONE":
        raise UserError(f"{run} is {state}; records are kept of finished runs")
    config = directory.config()
    log = read(directory.steps)
    try:
        digits = identity(config)
        values = {
            "identity": digits,
            "name": config["name"],
            "date": log["timestamp"].iloc[-1][:19] if len(log) else "",
            "config": portable_config(config, run),
            "overrides": portable_overrides(directory.overrides()),
            "result": portable_result(directory.record()) | {"identity": digits},
            "environment": portable_environment(read_json(run / "environment.json")),
            "steps": thinned(log),
        }
        folder = folder_of(config)
    except UserError:  # which is a ValueError
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{run}: its files are not those of a run: {error!r}") from error
    return _checked(values, digits, folder, run)


def folder_of(config: Mapping[str, Any]) -> Path:
    """Folder of the records of a configuration's table and scale."""
    scale = str(config["choices"].get("scale"))
    table = (config.get("table") or {}).get("name")
    return home() / f"experiments/{table}/results/{scale}" if table else home() / "records" / scale


def add(
    found: Iterable[Record], to: Path | None = None, *, overwrite: bool = False
) -> list[Record]:
    """Write records into their folders, or into one folder; return those that are new.

    Args:
        found: records of runs (`of_run`).
        to: folder of all of them.
        overwrite: replace a record of the same run with other numbers.

    Raises:
        UserError: a folder's records cannot be read, or it has another record of a run.
    """
    by_folder = defaultdict[Path, list[Record]](list)
    for record in found:
        by_folder[to or record.folder].append(record)
    return [each for place in by_folder for each in _write(place, by_folder[place], overwrite)]


def _write(folder: Path, found: Sequence[Record], overwrite: bool) -> list[Record]:
    """Write records into a folder beside those that are there; return those that are new.

    The list is written after the records: a process that is killed in between leaves records that
    nobody finds, until they are added again.

    Raises:
        UserError: the folder's records cannot be read, or it has another record of a run.
    """
    make_folder(folder, of=folder, key="to")
    with locked(folder):
        kept = {each: _record(folder, each) for each in _lines(folder / RUNS)}
        new = []
        for record in found:
            there = kept.get(record.identity)
            placed = replace(record, folder=folder)
            if there == placed:
                continue
            if there is not None and not overwrite:
                raise UserError(
                    f"{folder / RUNS} has another record of {placed.path.name}; overwrite=true"
                    " replaces it"
                )
            kept[record.identity] = placed
            new.append(placed)
        ordered = sorted(kept.values(), key=_order)
        if new or len(_listed(folder / LIST)) != len(kept):
            whole = "".join(f"{_line(each)}\n" for each in ordered)
            write_atomic(folder / RUNS, gzip.compress(whole.encode(), mtime=0))
            text = "".join("\t".join(_summary(each)) + "\n" for each in ordered)
            write_atomic(folder / LIST, "\t".join(COLUMNS) + "\n" + text)
    return new


def _summary(record: Record) -> list[str]:
    """The record's line of runs.txt."""
    named = (record.config.get("table") or {}).get("metric")
    keys = [key for key in (named, "val/perplexity", "val/accuracy", "val/loss") if key]
    key = next((key for key in keys if key in record.metrics), "")
    commit = str((record.environment.get("git") or {}).get("commit") or "")[:8]
    return [
        record.identity,
        one_line(record.row),
        str(record.config["seed"]),
        key,
        f"{record.metrics[key]:.6g}" if key else "",
        commit,
        record.date[:10],
    ]


def _order(record: Record) -> tuple[Any, ...]:
    return record.row, record.config["seed"], record.name, record.identity


def _line(record: Record) -> str:
    values = {name: getattr(record, name) for name in FIELDS}
    return json.dumps(values, ensure_ascii=False, separators=(",", ":"))


def _listed(file: Path) -> list[str]:
    """Identities in a list; empty where there is no file."""
    try:
        text = read_text(file)
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise UserError(f"{file} cannot be read: {one_line(error)}") from error
    return [line.partition("\t")[0] for line in text.split("\n")[1:] if line]


def _lines(file: Path) -> dict[str, bytes]:
    """Lines of a file of records by their identity; empty where there is no file.

    Raises:
        UserError: it cannot be read.
    """
    return _unpacked(file, file.stat().st_mtime_ns) if file.is_file() else {}


@lru_cache(maxsize=64)
def _unpacked(file: Path, changed: int) -> dict[str, bytes]:
    """`_lines` of a file that was changed at that time."""
    try:
        with gzip.open(file) as opened:
            whole = opened.read(LARGEST + 1)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise UserError(f"{file} cannot be read: {one_line(error)}") from error
    if len(whole) > LARGEST:
        raise UserError(f"{file} has more than {LARGEST:,} bytes")
    start = b'{"identity":"'
    found = {}
    for number, line in enumerate(whole.splitlines(), 1):
        digits = line.removeprefix(start)[:8].decode("ascii", "replace")
        if not line.startswith(start) or digits in found:
            raise UserError(f"{file}: line {number} is no record; restore the file")
        found[digits] = line
    return found


def _record(folder: Path, digits: str) -> Record:
    """The record of an identity in a folder that lists it.

    Raises:
        UserError: it does not count; the line names the file and says why.
    """
    file = folder / RUNS
    if (line := _lines(file).get(digits)) is None:
        raise UserError(f"{file} lacks the run {digits}, which {LIST} lists; restore both files")
    where = f"{file}: the record {digits}"
    return _checked(parse_json(line, where), digits, folder, where)


def _checked(values: dict[str, Any], digits: str, folder: Path, where: object) -> Record:
    """The record with these fields.

    Args:
        values: by field.
        digits: identity that it should have.
        folder: of the record.
        where: the fields are from, for the message.

    Raises:
        UserError: it would not count.
    """
    check_fields(values, FIELDS, where)
    metrics = values["result"].get("metrics")
    if not isinstance(metrics, dict) or not all(_is_number(value) for value in metrics.values()):
        raise UserError(f"{where} has no metrics; restore the file")
    log = values["steps"].values()
    lists = all(isinstance(column, list) for column in log) and len({*map(len, log)}) < 2
    if not lists or not all(x is None or _is_number(x) for x in itertools.chain(*log)):
        raise UserError(f"{where} has a step log that no run can have; restore the file")
    try:
        own = identity(values["config"])
        values["config"]["choices"].get("scale")
        record = Record(**{name: values[name] for name in FIELDS}, folder=folder)
        _summary(record)
        shlex.join(record.overrides)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{where} has a configuration that no run can have") from error
    if not own == digits == values["result"].get("identity"):
        raise UserError(f"{where} has settings of another run, {own}")
    return record


def _is_number(value: object) -> bool:
    return isinstance(value, float) or (type(value) is int and abs(value) < 1 << 63)


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
        counted = flatten(identity_settings(kept))
        changed = [k for k, v in counted.items() if portable_values(v) != v]
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
    return portable_values({**result, "data": data})


def thinned(log: pandas.DataFrame) -> dict[str, list[float | None]]:
    """Columns of a step log at `POINTS` steps at most; losses, accuracies: means since the last."""
    names = [name for name in STEP_COLUMNS if name in log]
    table = log[[*names, "seconds"]].replace([math.inf, -math.inf], math.nan)
    stretches = table.groupby(table.index // max(1, math.ceil(len(table) / POINTS)))
    kept = stretches.tail(1)
    for name in set(AVERAGED) & set(names):
        kept = kept.assign(**{name: stretches[name].mean().to_numpy()})
    found = {name: [_rounded(value) for value in kept[name]] for name in names}
    return {**found, "seconds": [round(float(value), 2) for value in kept["seconds"]]}


def _rounded(value: float) -> float | None:
    return None if math.isnan(value) else float(f"{value:.6g}")
