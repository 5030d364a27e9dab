"""GLUE and Spanish tasks, from the hub or from local files (SPEC D2).

Local folders have the layout of GLUE's download, `<data.path>/CoLA/train.tsv` and so on, or
`data.path` is the folder of the task.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from chimera.data.corpus.glue_files import parts_of_hub, read
from chimera.data.corpus.glue_tasks import SPECS, Name, SpanishName, Spec
from chimera.data.corpus.labelled import Examples, Labelled, evenly
from chimera.data.source import hub
from chimera.data.source.fingerprint import file_fingerprint, fingerprint_of
from chimera.errors import UserError

log = logging.getLogger("chimera")

_INSTEAD = "data.path=<a folder with GLUE's files>, or take data=acceptability"


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
        return self.spec.labels

    @property
    def metrics(self) -> tuple[str, ...]:
        return self.spec.metrics

    @property
    def submission(self) -> dict[str, str]:
        return dict(self.spec.submission)

    def check(self) -> None:
        """See `Corpus.check`."""
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
            part: read(file, self.spec, labelled=part in ("train", "valid", "valid_mismatched"))
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
            part: list(parts_of_hub(splits[split], self.spec, f"{name} ({config}, {split})"))
            for part, split in self.spec.splits.items()
            if split in splits
        }

    def _files(self) -> dict[str, Path]:
        """Local file of each part.

        Raises:
            UserError: no such folder, or no file for train or valid.
        """
        root = Path(str(self.path)).expanduser()
        folder = root / self.spec.folder if (root / self.spec.folder).is_dir() else root
        if not folder.is_dir():
            raise UserError(f"data.path={self.path} is no folder; give {_INSTEAD}")
        keys = {"train": self.train_file, "valid": self.valid_file, "test": self.test_file}
        files: dict[str, Path] = {}
        for part, names in self.spec.files.items():
            chosen = keys.get(part)
            names = (chosen,) if chosen else names
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
