"""GLUE and Spanish tasks, from the hub or from local files (SPEC D2).

GLUE: arXiv 1804.07461. XNLI: arXiv 1809.05053. PAWS-X: arXiv 1908.11828. STS-B in Spanish is the
machine translation `PhilipMay/stsb_multi_mt`. The parts are `train`, `valid` and `test`; MNLI also
has `valid_mismatched`, `test_mismatched` and the diagnostic set `ax`. `glue.yaml` describes the
tasks.

Local folders have the layout of GLUE's download, `<data.path>/CoLA/train.tsv` and so on, or
`data.path` is the folder of the task. Many sentences contain a single `"`, so TSV files are read
without quoting. The CSV files (Spanish STS-B) contain commas inside quoted fields.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from chimera.data.corpus.labelled import Example, Examples, Labelled, evenly
from chimera.data.source import hub
from chimera.data.source.cache import file_fingerprint, fingerprint_of
from chimera.data.source.files import by_name, check_once, read_rows
from chimera.errors import UserError, one_line
from chimera.safe_io import expanded

log = logging.getLogger("chimera")

Name = Literal["cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli"]
SpanishName = Literal["xnli_es", "pawsx_es", "stsb_es"]

_INSTEAD = "data.path=<a folder with GLUE's files>, or take data=acceptability"
#: Candidates for the local file of a part; the first that exists is read. If a folder holds only a
#: sample of the official train part, its held-out rows replace the official dev part; the log names
#: the file.
_FILES = {
    "train": ["train.tsv", "train_9k.tsv"],
    "valid": ["dev.tsv", "train_holdout_1k.tsv"],
    "test": ["test.tsv"],
}
_SPLITS = {"train": "train", "valid": "validation", "test": "test"}
#: All parts, in the order in which they are read.
_PARTS = ("train", "valid", "valid_mismatched", "test", "test_mismatched", "ax")
#: Range of the scores of STS-B in both languages.
LOWEST = 0.0
HIGHEST = 5.0


@dataclass(frozen=True, kw_only=True)
class Spec:
    """One task.

    Args:
        folder: name of the folder of its local files.
        hub: data set and configuration on the hub.
        first, second, label: possible names of these columns, on the hub or in a file; `second` is
            empty for a task of single texts.
        labels: names in files and submissions, in the order of their numbers; empty for a score,
            which is predicted by regression.
        metrics: names of the official metrics; their mean is the task's score.
        files: part to its possible file names.
        splits: part to its split on the hub.
        columns: names of the columns of files without a header row.
        submission: part to the name of its file in GLUE's submission.
        broken_rows: skip rows with too few fields, which are known to occur.
    """

    folder: str
    hub: tuple[str, str]
    first: Sequence[str]
    second: Sequence[str] = ()
    label: Sequence[str] = ("label",)
    labels: Sequence[str] = ("0", "1")
    metrics: Sequence[str] = ("accuracy",)
    files: Mapping[str, Sequence[str]]
    splits: Mapping[str, str]
    columns: Sequence[str] = ()
    submission: Mapping[str, str] = field(default_factory=dict)
    broken_rows: bool = False

    @classmethod
    def of(cls, hub: Sequence[str], files: Any = None, splits: Any = None, **keys: Any) -> Spec:
        """A task with the usual files and splits, but for those given."""
        all_files = _FILES | (files or {})
        all_splits = _SPLITS | (splits or {})
        return cls(
            hub=(hub[0], hub[1]),
            files={part: all_files[part] for part in _PARTS if part in all_files},
            splits={part: all_splits[part] for part in _PARTS if part in all_splits},
            **keys,
        )


SPECS: dict[str, Spec] = {
    name: Spec.of(**keys)
    for name, keys in yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text()).items()
}


@dataclass(frozen=True, kw_only=True)
class _Tasks(Labelled):
    """Base of the English and the Spanish tasks."""

    task: str
    path: str | None = None
    train_file: str | None = None
    valid_file: str | None = None
    test_file: str | None = None

    @property
    def spec(self) -> Spec:
        """Description of the chosen task."""
        return SPECS[self.task]

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(self.spec.labels)

    @property
    def metrics(self) -> tuple[str, ...]:
        return tuple(self.spec.metrics)

    @property
    def submission(self) -> dict[str, str]:
        return dict(self.spec.submission)

    def check(self) -> None:
        """See `Data.check`."""
        if self.path is None:
            hub.check_dataset(*self.spec.hub, _INSTEAD)
        else:
            self._files()

    def fingerprint(self) -> str:
        """Hash of the local files; for the hub, of the name."""
        source: object = self.spec.hub
        if self.path is not None:
            source = [(part, file_fingerprint(file)) for part, file in self._files().items()]
        return fingerprint_of("glue", 1, self.task, source, self.max_bytes)

    def examples(self) -> Examples:
        """All parts of the data set; of train up to `max_bytes`, at equal distances."""
        parts = self._from_hub() if self.path is None else self._from_files()
        return parts | {"train": evenly(parts["train"], self.max_bytes)}

    def _from_files(self) -> Examples:
        return {
            part: read_file(file, self.spec, labelled=_needs_labels(part))
            for part, file in self._files().items()
        }

    def _from_hub(self) -> Examples:
        name, config = self.spec.hub
        splits = hub.load_splits(name, config, _INSTEAD)
        required = [s for p, s in self.spec.splits.items() if p in ("train", "valid")]
        for split in required:
            if split not in splits:
                raise UserError(f"{name} has no split {split}; it has {', '.join(splits)}")
        return {
            part: read_hub(
                splits[split],
                self.spec,
                f"{name} ({config}, {split})",
                labelled=_needs_labels(part),
            )
            for part, split in self.spec.splits.items()
            if split in splits
        }

    def _files(self) -> dict[str, Path]:
        """Local file of each part.

        Raises:
            UserError: no such folder, or no file for train or valid.
        """
        root = expanded(str(self.path))
        folder = root / self.spec.folder if (root / self.spec.folder).is_dir() else root
        if not folder.is_dir():
            raise UserError(f"data.path={self.path} is no folder; give {_INSTEAD}")
        keys = {"train": self.train_file, "valid": self.valid_file, "test": self.test_file}
        files: dict[str, Path] = {}
        for part, names in self.spec.files.items():
            chosen = keys.get(part)
            names = [chosen] if chosen else names
            file = next((folder / n for n in names if (folder / n).is_file()), None)
            if file is None and (chosen or part in ("train", "valid")):
                present = ", ".join(sorted(f.name for f in folder.iterdir())) or "nothing"
                raise UserError(
                    f"data.task={self.task}: {folder} has no {' or '.join(names)} (it has"
                    f" {present}); data.{part}_file=<name> takes another file"
                )
            if file is not None:
                files[part] = file
                if not chosen and file.name != names[0]:
                    log.info("data: %s of %s is %s", part, self.task, file.name)
        return files


@dataclass(frozen=True, kw_only=True)
class Glue(_Tasks):
    """A task of GLUE.

    Args:
        task: name of the task.
        path: a folder with GLUE's files; None reads from the hub.
        train_file, valid_file, test_file: names of files that replace the official ones.
    """

    task: Name = "cola"


@dataclass(frozen=True, kw_only=True)
class SpanishGlue(_Tasks):
    """A Spanish task of natural language understanding.

    Args:
        task: name of the task.
        path: a folder with the files; None reads from the hub.
        train_file, valid_file, test_file: names of files that replace the official ones.
    """

    task: SpanishName = "xnli_es"


def read_file(file: Path, spec: Spec, *, labelled: bool) -> list[Example]:
    """Read the examples of one file.

    Args:
        file: `.csv`; any other suffix is read as TSV.
        spec: of the task.
        labelled: whether labels are required; if not, they are read where the file has them.

    Raises:
        UserError: a missing column, a row that is too short, a label that the task does not have.
    """
    rows = list(read_rows(file))
    names, first = _header(file, rows[0][1] if rows else [], spec)
    where = f"{file}: line"
    named = ((line, by_name(names, row, f"{where} {line}")) for line, row in rows[first:])
    return _examples(named, names, spec, where, labelled=labelled)


def read_hub(rows: Any, spec: Spec, where: str, *, labelled: bool) -> list[Example]:
    """Examples of one split of a data set on the hub.

    Args:
        rows: the split, of the library datasets.
        spec: of the task.
        where: name of the split, for messages.
        labelled: as of `read_file`.

    Raises:
        UserError: a missing column, a label that the task does not have.
    """
    names = list(rows.column_names)
    return _examples(enumerate(rows), names, spec, f"{where}: row", labelled=labelled)


def _needs_labels(part: str) -> bool:
    return part in ("train", "valid", "valid_mismatched")


def _examples(
    rows: Iterable[tuple[int, Mapping[str, Any]]],
    names: Sequence[str],
    spec: Spec,
    where: str,
    *,
    labelled: bool,
) -> list[Example]:
    """Make examples of numbered rows; `where` and the number name one in messages."""
    source = where.rpartition(":")[0]
    needed = [spec.first, *([spec.second] if spec.second else []), spec.label]
    columns = [_first_of(candidates, names) for candidates in needed]
    for name, candidates in zip(columns, needed, strict=True):
        if name is None and (labelled or candidates is not spec.label):
            raise UserError(
                f"{source} has no column {' or '.join(candidates)}; it has {_shown(names)}"
            )
        check_once(name or "", names, source)
    first = columns[0] or ""
    label = columns[-1]
    second = columns[1] if spec.second else None
    index = _first_of(("index", "idx"), names)
    examples: list[Example] = []
    broken = 0
    unlabelled: list[int] = []
    for number, row in rows:
        if any(name and name not in row for name in columns):
            if not spec.broken_rows:
                least = 1 + max(names.index(name) for name in columns if name)
                raise UserError(f"{where} {number} has {len(row)} fields, {least} are needed")
            broken += 1
            continue
        value = parse_label(row[label], spec, f"{where} {number}") if label else None
        if value is None and labelled:
            unlabelled.append(number)
            continue
        row_number = str(row.get(index, "")) if index else ""
        examples.append(
            Example(
                row[first],
                row[second] if second else None,
                value,
                int(row_number) if re.fullmatch("[0-9]{1,18}", row_number) else len(examples),
            )
        )
    if broken:
        log.warning("data: %s: %d broken rows are skipped", source, broken)
    if unlabelled:
        rest = f" and {len(unlabelled) - 1} more" if len(unlabelled) > 1 else ""
        log.warning("data: %s %d%s: left out, without a label", where, unlabelled[0], rest)
    if not examples:
        raise UserError(f"{source} holds no rows{' with labels' if unlabelled else ''}")
    return examples


def parse_label(value: Any, spec: Spec, where: str) -> float | int | None:
    """Convert a label to its number or score; None for −1, the hub's mark of an unlabelled row.

    Args:
        value: label, as text or number.
        spec: of the task.
        where: file and line, for messages.

    Raises:
        UserError: the task has no such label; the message lists its labels.
    """
    text = one_line(value)[:100]
    if spec.labels:
        if text in spec.labels:
            return spec.labels.index(text)
        if text == "-1":
            return None
        numbers = [str(number) for number in range(len(spec.labels))]
        if text in numbers:
            return numbers.index(text)
        raise UserError(f"{where}: label '{text}' is none of {', '.join(spec.labels)}")
    try:
        score = float(text)
    except ValueError:
        score = math.nan
    if score == -1:
        return None
    if not LOWEST <= score <= HIGHEST:
        raise UserError(f"{where}: score '{text}' is no number from {LOWEST:g} to {HIGHEST:g}")
    return score


def _header(file: Path, row: Sequence[str], spec: Spec) -> tuple[Sequence[str], int]:
    """Column names, and the index of the first row of data; `row` is the first one."""
    first = [name.strip() for name in row]
    # One known name suffices for a header; `_examples` then reports a missing column.
    if any(_first_of(candidates, first) for candidates in (spec.first, spec.second, spec.label)):
        return first, 1
    # Without a header; the first row may lack the columns that no example reads.
    names = spec.columns[: len(first)]
    if spec.columns and all(_first_of(c, names) for c in (spec.first, spec.label)):
        return spec.columns, 0
    raise UserError(f"{file} has no column {spec.first[0]}; its first row is {_shown(first)}")


def _first_of(candidates: Sequence[str], names: Sequence[str]) -> str | None:
    """First candidate that is among `names`; None if there is none."""
    return next((name for name in candidates if name in names), None)


def _shown(names: Sequence[str]) -> str:
    text = one_line(", ".join(names))
    return text if len(text) < 200 else f"{text[:200]}…"
