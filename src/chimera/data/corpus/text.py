"""Your own text: a file, a folder, a glob or a data set of the hub (SPEC D3).

Files are UTF-8 text, JSON (lines or a list), CSV, TSV or Parquet, all but the last possibly
compressed. The units of a text file are its paragraphs, separated by blank lines, or its lines if
it has no blank lines; the units of other files are rows. Consecutive short units are joined to
documents of at least `SHORTEST` characters. A file in a folder called train, valid (dev) or test,
or whose name contains one of these words, belongs to that split, other files to train. A missing
split takes documents of train by their hashes.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from glob import has_magic
from itertools import takewhile
from pathlib import Path

from chimera.data.corpus.base import StreamedText
from chimera.data.source import hub
from chimera.data.source.cache import file_fingerprints, fingerprint_of
from chimera.data.source.files import (
    COMPRESSED,
    FORMATS,
    MARKED,
    PARQUET,
    TEXT,
    Repeatable,
    check_beginning,
    field_texts,
    files_below,
    format_of,
    paragraphs,
    regular,
    split_of,
)
from chimera.data.source.splits import Sources, Split, bounded, shares_of, trimmed
from chimera.errors import UserError, one_line
from chimera.safe_io import expanded

SHORTEST = 2000
#: Files whose beginnings are read before a run; the others are when the text is.
LOOKED_AT = 20

log = logging.getLogger("chimera")
_NAMED = (
    f"{', '.join(FORMATS)}, all but {PARQUET} also with {' or '.join(COMPRESSED)} behind; code and"
    f" marked text is read where the path or glob ends in its suffix ({', '.join(MARKED)})"
)
_TAKES = "a file, a folder, a glob, or owner/name of a data set on the hub"
_INSTEAD = f"data.path=<{_TAKES}>"


@dataclass(frozen=True, kw_only=True)
class Text(StreamedText):
    """Text of your own.

    Args:
        path: a file, a folder (its files of the formats above), a glob, or `owner/name` of a data
            set on the hub.
        valid_path, test_path: files, folders or globs for these splits; None uses the file names.
        field: field of the text in JSON, tables, Parquet and data sets of the hub.
        config: configuration of the data set, if it has several.
        stream: of a data set of the hub read only the first `max_bytes` of its train split, for
            data sets that are too large to fetch as a whole.
    """

    path: str | None = None
    valid_path: str | None = None
    test_path: str | None = None
    field: str = "text"
    config: str | None = None
    stream: bool = False

    def check(self) -> None:
        """See `Data.check`."""
        if self.path is None:
            raise UserError(f"data=text needs {_INSTEAD}")
        for key in ("path", "valid_path", "test_path"):
            if getattr(self, key) == "":  # which would be the working directory
                raise UserError(f"data.{key}= is empty; it takes {_TAKES}")
        self._named()
        if self.stream and not (self._on_hub() and self.max_bytes):
            raise UserError(
                "data.stream=true needs data.path=<owner/name of a data set on the hub> and"
                " data.max_bytes=<how much of it to read>"
            )
        if self.stream and hub.is_streamed(self.cache, *self._streamed):
            return
        if self._on_hub():
            hub.check_dataset(self.path, self.config, _INSTEAD)
        else:
            for file in _find("data.path", self.path)[:LOOKED_AT]:
                if format_of(file) != PARQUET:
                    check_beginning(file)

    def fingerprint(self) -> str:
        """Hash of all files; for the hub, of the name."""
        by_split = {} if self._on_hub() else self._files()
        contents = [(s, file_fingerprints(by_split[s], self.cache)) for s in sorted(by_split)]
        named = sorted((s, file_fingerprints(f, self.cache)) for s, f in self._named().items())
        source = (self.path, self.config) if self._on_hub() else contents
        stream = ("stream",) if self.stream else ()
        settings = (self.field, self.max_bytes, *self.variant, *stream)
        return fingerprint_of("text", 2, source, named, *settings)

    @property
    def where(self) -> str:
        """See `StreamedText.where`."""
        return f"data.path={self.path}"

    def sources(self) -> Sources:
        """Documents by the splits of the files or the data set."""
        rows: dict[Split, Iterable[str]] = {}
        if self.stream:
            shards = hub.streamed(self.cache, *self._streamed, _INSTEAD)
            return {
                "train": [
                    Repeatable(gather, Repeatable(field_texts, shard, "text")) for shard in shards
                ]
            }
        if self._on_hub():
            rows = hub.load_rows(str(self.path), self.config, self.field, _INSTEAD)
        else:
            _tell_left_out(expanded(str(self.path)))
        by_split = self._named() if self._on_hub() else self._files()
        sources: dict[Split, Sequence[Iterable[str]]] = {}
        for split, share in shares_of(rows.keys() | by_split.keys()).items():
            max_bytes = None if self.max_bytes is None else int(self.max_bytes * share)
            if split in by_split:
                sources[split] = self._parts(by_split[split], max_bytes)
            else:
                sources[split] = [Repeatable(gather, rows[split], max_bytes)]
        return sources

    @property
    def _streamed(self) -> tuple[str, str | None, str, int]:
        return str(self.path), self.config, self.field, self.max_bytes or 0

    def _parts(self, files: Sequence[Path], max_bytes: int | None) -> Sequence[Iterable[str]]:
        sizes = [max(1, file.stat().st_size) for file in files]
        total = sum(sizes)
        # The same share of each file, so that a bound does not leave out whole files.
        bounds = [None if max_bytes is None else -(-max_bytes * size // total) for size in sizes]
        return [
            Repeatable(gather, self._units(file, bound), bound)
            for file, bound in zip(files, bounds, strict=True)
        ]

    def _units(self, file: Path, max_bytes: int | None) -> Iterable[str]:
        if format_of(file) in (*TEXT, *MARKED):
            return Repeatable(paragraphs, file, max_bytes)
        return Repeatable(field_texts, file, self.field, max_bytes)

    def _on_hub(self) -> bool:
        path = str(self.path)
        named = format_of(Path(path)) in FORMATS  # a file that is not there
        return hub.is_id(path) and not Path(path).exists() and not named

    def _named(self) -> dict[Split, list[Path]]:
        """Files of `valid_path` and `test_path`, by split."""
        named: dict[Split, list[Path]] = {}
        if self.valid_path is not None:
            named["valid"] = _find("data.valid_path", self.valid_path)
        if self.test_path is not None:
            named["test"] = _find("data.test_path", self.test_path)
        return named

    def _files(self) -> dict[Split, list[Path]]:
        named = self._named()
        named_files = {file.resolve() for files in named.values() for file in files}
        files = [f for f in _find("data.path", str(self.path)) if f.resolve() not in named_files]
        fixed = takewhile(lambda part: not has_magic(part), expanded(str(self.path)).parts)
        root = Path(*fixed)
        by_split: dict[Split, list[Path]] = {}
        for file in files:
            # A single file is train, even if its name contains valid or test.
            split = (split_of(file.relative_to(root)) if len(files) > 1 else None) or "train"
            by_split.setdefault(split, []).append(file)
        return by_split | named


def gather(
    units: Iterable[str], max_bytes: int | None = None, shortest: int = SHORTEST
) -> Iterator[str]:
    """Join consecutive units to documents of at least `shortest` characters; the last may be less.

    Args:
        units: texts; blank lines around them and blanks behind them are removed.
        max_bytes: of the documents together; None takes all.
        shortest: least number of characters.
    """
    return bounded(_joined(units, shortest), max_bytes)


def _joined(units: Iterable[str], shortest: int) -> Iterator[str]:
    document = []
    size = 0
    for unit in units:
        if unit := trimmed(unit):
            document.append(unit)
            size += len(unit)
        if size >= shortest:
            yield "\n".join(document)
            document = []
            size = 0
    if document:
        yield "\n".join(document)


def _find(key: str, path: str) -> list[Path]:
    local = expanded(path)
    if local.is_file():
        files = [local]
    elif local.is_dir():
        files = [file for file in files_below(local) if format_of(file) in FORMATS]
        if not files:
            raise UserError(
                f"{key}={path} holds no file that is read ({_NAMED}); it takes {_TAKES}"
            )
    else:
        files = _matching(key, path, local)
    named = {format_of(local)} & {*MARKED}
    for file in files:
        if format_of(file) not in (*FORMATS, *named):
            raise UserError(f"{key}: the format of {file} is not known; files end in {_NAMED}")
    return files


def _matching(key: str, path: str, pattern: Path) -> list[Path]:
    """Files that a glob matches; links to folders below `**` and hidden files are left out."""
    named = pattern.parts[bool(pattern.anchor) :]
    try:
        found = [f for f in Path(pattern.anchor).glob("/".join(named)) if not f.is_dir()]
    except (ValueError, NotImplementedError) as error:
        raise UserError(
            f"{key}={path} is no glob ({one_line(error)}); it takes {_TAKES}"
        ) from error
    files = [f for f in found if not any(p[0] == "." and p not in named for p in f.parts)]
    if not files:
        raise UserError(f"{key}={path} does not exist; it takes {_TAKES}")
    return regular(files)


def _tell_left_out(folder: Path) -> None:
    """Say in the log which files of a folder are not read."""
    below = files_below(folder) if folder.is_dir() else []
    suffixes = Counter(format_of(f) or "none" for f in below if format_of(f) not in FORMATS)
    if suffixes:
        named = ", ".join(f"{count} of {suffix}" for suffix, count in suffixes.most_common(5))
        log.warning("data: %s: files of other suffixes are left out: %s", folder, named)
