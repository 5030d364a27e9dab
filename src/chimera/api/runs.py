"""Data, training and the table of runs: `ch.datamodule`, `ch.fit`, `ch.runs`."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

from chimera.api.words import overrides_of, settings
from chimera.config.compose import compose, plain
from chimera.config.schema import check_value
from chimera.dotted import flatten
from chimera.errors import UserError, unknown
from chimera.generate.settings import Generation
from chimera.paths import runs_root
from chimera.rundir.directory import RunDir
from chimera.rundir.records import Record, unfinished
from chimera.safe_io import read_text

if TYPE_CHECKING:
    import pandas

    from chimera.data.batch.module import DataModule
    from chimera.export import Exported

#: Facts of run.json that have a column, and their dotted keys.
FACTS = {
    "identity": "identity",
    "seed": "seed",
    "parameters": "parameters.total",
    "steps": "steps",
    "tokens_per_second": "tokens_per_second",
    "peak_memory_gb": "peak_memory_gb",
    "wall_seconds": "wall_seconds",
}


@dataclass(frozen=True)
class Run:
    """A run on the disk.

    Args:
        path: its directory.
    """

    path: Path

    @property
    def metrics(self) -> dict[str, float]:
        """Metrics of the final validation and test; empty before the run is done."""
        metrics: dict[str, float] = self.record.get("metrics", {})
        return metrics

    @property
    def record(self) -> dict[str, Any]:
        """Contents of run.json; empty before the run is done."""
        return RunDir(self.path).record()

    @property
    def steps(self) -> pandas.DataFrame:
        """A row per optimiser step: loss, rates, norms, tokens per second."""
        import pandas

        return pandas.read_csv(io.StringIO(read_text(RunDir(self.path).steps)))

    def generate(self, prompt: str = "", **options: Any) -> str:
        """Continue a text with a run of `task=causal_lm`; returns prompt and continuation.

        Args:
            prompt: text to continue; empty starts a document.
            options: of `chimera generate`, such as `max_new=32`, `greedy=True`, `seed=1`.

        Raises:
            UserError: an unknown option, a wrong value, a run that is no decoder.
        """
        hints = get_type_hints(Generation, include_extras=True)
        for key, value in options.items():
            if key not in hints:
                raise unknown("option", key, hints)
            check_value(key, value, hints[key])
        settings = Generation(run=str(self.path), prompt=prompt, **options)
        settings.check()
        from chimera.generate.text import write

        pieces: list[str] = []
        write(settings, pieces.append)
        return "".join(pieces).removesuffix("\n")

    def load(self) -> Exported:
        """The model and the tokenizer; see `chimera.load`."""
        from chimera.api.models import load

        return load(self.path)


def datamodule(name: str = "pydocs", *words: str, **options: Any) -> DataModule:
    """Make the data module of a corpus, a `LightningDataModule`.

    It works with a Lightning Trainer and without one: `for batch in module.train_dataloader()`. The
    tokenizer is `module.prepared.tokenizer`. Text is read, and kept in the cache, at the first use.

    Args:
        name: a choice of `data=`, such as pydocs (needs no download) or text.
        words: further words of the command line, such as `task=causal_lm` (batches for a decoder;
            the default masks words) or `tokenizer.vocab_size=8000`.
        options: keys of the choice, such as `path="my.txt"`, `seq_len=128`, `batch_size=16`.

    Raises:
        UserError: an unknown choice or key, a wrong value, missing files.
    """
    from chimera.train.build import build_data
    from chimera.train.check import check_settings

    config = plain(compose([f"data={name}", *overrides_of(words), *settings("data", options)]))
    check_settings(config)
    return build_data(config["data"], config["tokenizer"], config["task"], config["seed"])


def fit(*words: str) -> Run:
    """Train a run, as `chimera train` with the same words does: `ch.fit("mixer=retnet")`.

    A finished run is shown and not repeated, an interrupted one goes on. Its directory is below
    `./runs`, or `run_dir=`.

    Args:
        words: of the command line, without `-m`.

    Raises:
        UserError: a mistake in the words; nothing has been written then.
        Interrupted: the run was asked to stop (Ctrl-C) and is saved; the same call resumes it.
        NotFiniteError: a loss or gradient is not finite; the directory has a report.
        RuntimeError: one of several processes (`trainer.devices=2`) failed.
    """
    from chimera.config.start_model import wait_for_all
    from chimera.train.check import check
    from chimera.train.launch import launch

    overrides = overrides_of(words)
    config = plain(compose(overrides))
    check(config)
    wait_for_all(config, overrides)
    code = launch(config, overrides)
    if code:
        raise RuntimeError(f"the processes of the run ended with code {code}; they have said why")
    if code is None:
        from chimera.train.run import run

        run(config, overrides)
    return Run(RunDir.of(config).path)


def runs(folder: str | Path | None = None, *, keys: Sequence[str] = ()) -> pandas.DataFrame:
    """Make a data frame of the runs below a folder, one row each, sorted by name.

    Without a folder, records of runs that are not finished in `./runs` are rows, too.

    Its columns: name, state (DONE, RUNNING, …), path, facts (seed, parameters, steps, tokens per
    second, …), the choice of each group, each metric, each of `keys`. What a run lacks is missing.

    Args:
        folder: of runs; None: that of new runs, `./runs`.
        keys: keys of the configuration to show too, such as `optim.lr`.

    Raises:
        UserError: no such folder.
    """
    root = Path(folder).expanduser() if folder is not None else runs_root()
    paths = list(root.iterdir()) if root.is_dir() else []
    kept = unfinished(paths) if folder is None else []
    if not root.is_dir() and not kept:
        raise UserError(f"{root} is no folder; name one that holds the directories of runs")
    by_name: dict[str, Path | Record] = {path.name: path for path in paths}
    by_name |= {record.path.name: record for record in kept}
    import pandas

    frame = pandas.DataFrame(list(_rows([by_name[name] for name in sorted(by_name)], keys)))
    return frame if len(frame) else pandas.DataFrame(columns=["name", "state", "path"])


def _rows(found: Sequence[Path | Record], keys: Sequence[str]) -> Iterator[dict[str, Any]]:
    for each in found:
        path = each if isinstance(each, Path) else each.path
        row: dict[str, Any] = {"name": path.name, "state": "unreadable", "path": str(path)}
        state: Any
        if isinstance(each, Record):
            state = "DONE"
            record = each.result
            config = each.config
        elif not (path / "status.json").is_file():
            continue
        else:
            run = RunDir(path)
            try:
                state = run.status().get("state")
                record = run.record()
                config = run.config() if keys or not record else {}
            except UserError:  # one damaged file does not hide the other runs
                yield row
                continue
            state = "STOPPED" if state == "RUNNING" and not run.is_running() else state
        row["state"] = state
        facts = flatten(record)
        row |= {name: facts[key] for name, key in FACTS.items() if key in facts}
        row |= dict(record.get("choices") or config.get("choices") or {})
        row |= dict(record.get("metrics") or {})
        flat = flatten(config)
        row |= {key: flat.get(key) for key in keys}
        yield row
