"""Models, data, training and the table of runs: `ch.build`, `ch.load`, `ch.fit` and others.

Choices are words of the command line, as `chimera train` takes them; keyword arguments are keys of
a choice.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_type_hints

import pandas
import torch
from hydra.utils import instantiate

from chimera.config.compose import compose, plain
from chimera.config.groups import ZOO, read_folders
from chimera.config.schema import check_node, check_value
from chimera.config.start_model import location, wait_for_all
from chimera.data.batch.module import DataModule
from chimera.dotted import flatten
from chimera.errors import UserError, unknown
from chimera.export import Exported
from chimera.export import load as load_exported
from chimera.generate.settings import Generation
from chimera.generate.text import write
from chimera.model.assemble import choose, unadapted
from chimera.model.language import LanguageModel
from chimera.model.restore import start_from
from chimera.paths import runs_root
from chimera.rundir.directory import RunDir
from chimera.rundir.records import Record, unfinished
from chimera.safe_io import expanded, read_text
from chimera.train.build import build_data
from chimera.train.check import check, check_settings
from chimera.train.launch import launch
from chimera.train.restore import restore
from chimera.train.run import run as train
from chimera.types import PositiveInt

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
        return self.record.get("metrics", {})

    @property
    def record(self) -> dict[str, Any]:
        """Contents of run.json; empty before the run is done."""
        return RunDir(self.path).record()

    @property
    def steps(self) -> pandas.DataFrame:
        """A row per optimiser step: loss, rates, norms, tokens per second."""
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
        pieces: list[str] = []
        write(settings, pieces.append)
        return "".join(pieces).removesuffix("\n")

    def load(self) -> Exported:
        """The model and the tokenizer; see `chimera.load`."""
        return load(self.path)


def build(*words: str, vocab_size: int | None = None) -> LanguageModel:
    """Build a model of choices: `ch.build("mixer=retnet", "quant=bitnet158", "model.dim=256")`.

    It is called as `model(ids, mask=None)`, ids [b t] of int64, and returns `logits` [b t v] and
    auxiliary losses `aux`. `task=causal_lm` makes a decoder. Weights are drawn from `seed=` (by
    default 0), so that equal words make equal models; torch's generator is left as it was.

    Args:
        words: of the command line; what they do not say has the defaults of `chimera train`.
        vocab_size: entries of the vocabulary; None: those of `tokenizer=`.

    Raises:
        UserError: an unknown choice or key, a wrong value, parts that do not fit each other.
    """
    config = composed(overrides_of(words))
    check_value("vocab_size", vocab_size, PositiveInt | None)
    instantiate(config["model"], _convert_="all").check()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config["seed"])
        choices = choose(config)
        vocabulary = _vocabulary(config) if vocab_size is None else vocab_size
        model = unadapted(config, choices, vocabulary)
        if config["init_from"]:
            start_from(model, location(config))
        return choices.adapter(model)  # type: ignore[return-value]


def load(path: str | Path, *, trust: bool = False) -> Exported:
    """Load the model and the tokenizer of a run or of an exported folder.

    Returns:
        `(model, tokenizer)`. The model is in evaluation mode, without gradients, on the CPU; of a
        run it has the weights of the checkpoint that the final test was made with.

    Args:
        path: directory of a run, or a folder that `chimera export` wrote. Its files are data, never
            programs.
        trust: load the Hugging Face model that a run's file names, if it has to be.

    Raises:
        UserError: neither of both, or files that are damaged or more than data.
    """
    folder = expanded(path)
    if not (folder / "config.yaml").is_file():
        if not (folder / "config.json").is_file():
            raise UserError(
                f"{folder} is neither a run nor an exported model; name a directory that"
                " has a config.yaml (of chimera train) or a config.json (of chimera export)"
            )
        return load_exported(folder)
    threads = torch.get_num_threads()
    try:
        run = restore(RunDir(folder), trust=trust)
    finally:
        torch.set_num_threads(threads)  # those of the run are not for the caller
    return Exported(run.task.model.eval().requires_grad_(False), run.tokenizer)


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
    overrides = overrides_of(words)
    config = plain(compose(overrides))
    check(config)
    wait_for_all(config, overrides)
    code = launch(config, overrides)
    if code:
        raise RuntimeError(f"the processes of the run ended with code {code}; they have said why")
    if code is None:
        train(config, overrides)
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
    root = expanded(folder) if folder is not None else runs_root()
    paths = list(root.iterdir()) if root.is_dir() else []
    kept = unfinished(paths) if folder is None else []
    if not root.is_dir() and not kept:
        raise UserError(f"{root} is no folder; name one that holds the directories of runs")
    by_name: dict[str, Path | Record] = {path.name: path for path in paths}
    by_name |= {record.path.name: record for record in kept}
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


def overrides_of(words: Sequence[object]) -> list[str]:
    """The overrides among words of a command line; folders of configuration are read.

    Args:
        words: as `chimera train` takes them: `group=choice`, `key=value`, `--config-dir=<folder>`.

    Raises:
        UserError: a word that is no text, or a flag other than `--config-dir`.
    """
    for word in words:
        if not isinstance(word, str):
            raise UserError(f"{word!r} is no text; write 'group=choice' or 'key=value'")
    left = read_folders([str(word) for word in words])
    if flags := [word for word in left if word.startswith("-")]:
        raise UserError(f"{flags[0]} is a flag of the command line; here only --config-dir is one")
    return left


def composed(words: Sequence[str]) -> dict[str, Any]:
    """The configuration of these overrides, with model, task and parts checked.

    Raises:
        UserError: one line.
    """
    config = plain(compose(list(words)))
    for group in ("model", "task", *ZOO):
        check_node(group, config[group])
    return config


def settings(group: str, options: Mapping[str, Any]) -> list[str]:
    """Overrides `group.key=value` of keyword arguments."""
    return [f"{group}.{key}={_text(value)}" for key, value in options.items()]


def _text(value: Any) -> str:
    """A value in Hydra's notation.

    Raises:
        UserError: it is no number, text, truth value, None, or list or dictionary of these.
    """
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        escaped = value.replace("\\'", "\\\\'").replace("'", "\\'")
        return f"'{escaped}'"
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_text, value))}]"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{_text(item)}" for key, item in value.items()) + "}"
    raise UserError(
        f"{value!r} is no value of a setting; give a number, a text, True, False, None, a list or a"
        " dictionary"
    )


def _vocabulary(config: dict[str, Any]) -> int:
    """Entries of the vocabulary of `tokenizer=`, whose text is not read.

    Raises:
        UserError: its files are missing.
    """
    check_node("tokenizer", config["tokenizer"])
    tokenizer = instantiate(config["tokenizer"], _convert_="all")
    if tokenizer.learns:
        return int(config["tokenizer"]["vocab_size"])
    tokenizer.check()
    return int(tokenizer.build(()).vocab_size)
