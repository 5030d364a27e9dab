"""Runs and models that a run starts from or learns from: `init_from=`, `needs:`, `task.teacher=`.

`init_from` is a run's directory (its best checkpoint), one of its checkpoint files, a folder that
`export.py` wrote, a Hugging Face folder, or `owner/name` on the hub. The first three set all parts
of the model that the command line does not set; whether the weights fit is checked when they are
loaded. The last two mean `model=hf model.name=`. `hf:<folder>` is a checkpoint of transformers
whose weights our own parts take (`config/from_hf.py`). `row:<paper>/<table>/<row>` is the run of
that row at the same scale. A run that is gone, but of which there is a record, still names the runs
that started from it, so that reports find them.

`needs: <paper>/<table>/<row>` in the YAML of a row or preset names the row whose model it
fine-tunes. A sweep trains that model first, at the same scale. On the command line `init_from=`
names another model, and `needs.<key>=<value>` sets what that row has: `needs.data=text
needs.data.path=<file>`. `needs: none` is for a preset that trains from scratch: an `init_from=` of
its table is not for it.

`task.teacher=row:<paper>/<table>/<row>` is trained with the overrides of its student. Imports torch
only for `hf:`.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from chimera.config import from_hf, tables
from chimera.config.choices import Selection, scale_of, select
from chimera.config.groups import groups, is_part
from chimera.config.overrides import NEEDS, CommandLine, read
from chimera.config.schema import attribute, check_value
from chimera.config.trusted_config import checked, exported, recorded, trusted_model
from chimera.data.source import hub
from chimera.errors import UserError, one_line, unknown
from chimera.paths import runs_root
from chimera.program import command_name
from chimera.rundir.directory import RunDir, directory_of_row, directory_of_teacher
from chimera.rundir.identity import identity
from chimera.rundir.records import Record, Records
from chimera.rundir.tensors import digest
from chimera.safe_io import expanded, read_json, sha256_of

#: Groups whose nodes are copied from the model to start from.
PARTS = ("model", "mixer", "norm", "quant", "ffn", "position")
#: Value of `needs` for rows that train from scratch.
NONE = "none"
_NEEDS = re.compile(r"\+*(needs\.)")
_TAKES = "a run's directory, one of its checkpoints, an exported folder, or a Hugging Face model"
#: Prefixes of the overrides that a run shares with the row that it needs.
SHARED = ("scale=", "logger", "launcher", "trainer.progress=", "data.cache_dir=")
#: Prefixes of the overrides of a student that are not for its teacher.
STUDENT_ONLY = ("run_dir", "overwrite", "name", "table", "task.teacher", "task.distil", NEEDS)


@dataclass(frozen=True)
class Source:
    """A Chimera model to start from.

    Args:
        config: of the run that trained it.
        weights: file of a checkpoint, or of safetensors; the folder of `hf:<folder>`.
        tokenizer: folder of its tokenizer.
        run: identity of the model, which is hashed into the identity of the run that starts from
            it.
    """

    config: dict[str, Any]
    weights: Path
    tokenizer: Path
    run: str


def start_model(chosen: Selection, line: CommandLine) -> str | None:
    """`init_from` of a run: the command line's, or `row:` with what its row or preset needs.

    Args:
        chosen: options and files of the choices.
        line: of the run.

    Raises:
        UserError: the command line speaks of a start model that the run does not have.
    """
    needed = _needed(chosen, line.choices)
    given = line.settings.get("init_from")
    if needed == NONE and given is not None:
        rows = [option for group, option in chosen.options.items() if "/" in group]
        name = rows[-1] if rows else f"preset={chosen.options['preset']}"
        raise UserError(
            f"init_from={given}: {name} trains a model from scratch, whose shape no other model"
            " has; leave init_from= out"
        )
    found = given
    if "init_from" not in line.settings and needed != NONE:
        found = f"{tables.ROW}{needed}" if needed else chosen.value("init_from")
    check_value("init_from", found, str | None)
    own = [key for key in line.settings if key.startswith(NEEDS)]
    if own and not str(found).startswith(tables.ROW):
        raise UserError(
            f"{own[0]}= is for the row that a run starts from, and this run starts from none; leave"
            " it out"
        )
    return found


def _needed(chosen: Selection, choices: Sequence[str]) -> str | None:
    """What the chosen row or preset needs at the chosen scale; None if `model=` is chosen."""
    if any(choice.startswith("model=") for choice in choices):
        return None
    needed = scale_of(chosen)["values"].get("needs", chosen.value("needs"))
    return None if needed is None else str(needed)


def applicable(overrides: Sequence[str]) -> list[str]:
    """Overrides of a job without those about a start model that its row does not have."""
    given = [text for text in overrides if text.startswith("init_from=")]
    own = [text for text in overrides if _NEEDS.match(text)]
    line = read(overrides) if given or own else None
    if line is None or not any("/" in choice.partition("=")[0] for choice in line.choices):
        return list(overrides)
    needed = _needed(select(tuple(line.choices)), line.choices)
    row = str(line.settings["init_from"]).startswith(tables.ROW) if given else needed is not None
    unused = [*(given if needed == NONE else []), *(own if needed == NONE or not row else [])]
    return [text for text in overrides if text not in unused]


def row_overrides(row: str, overrides: Iterable[str]) -> list[str]:
    """Overrides that train the row named by `init_from`.

    Args:
        row: `row:<paper>/<table>/<row>`.
        overrides: of the run that starts from the row.

    Raises:
        UserError: no such row.
    """
    overrides = list(overrides)
    own = [text[: m.start(1)] + text[m.end(1) :] for text in overrides if (m := _NEEDS.match(text))]
    keys = {text.partition("=")[0] for text in own}
    shared = [o for o in overrides if o.startswith(SHARED) and o.partition("=")[0] not in keys]
    return [tables.row_override(row, "init_from"), *shared, *own]


def teacher_overrides(teacher: str, overrides: Iterable[str]) -> list[str]:
    """Overrides that train the teacher of a run.

    Args:
        teacher: `row:<paper>/<table>/<row>`.
        overrides: of the student.

    Raises:
        UserError: no such row.
    """
    shared = [tables.row_override(teacher, "task.teacher")]
    for text in overrides:
        key = text.lstrip("+").partition("=")[0]
        of_table = key in groups() and not is_part(key)
        if not of_table and not key.startswith(STUDENT_ONLY):
            shared.append(text)
    return shared


def identities(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Identities of the runs that a composed run needs, done or not."""
    both = (config["task"].get("teacher_run"), config.get("init_run"))
    return tuple(identity for identity in both if identity)


def teacher_directory(config: Mapping[str, Any]) -> RunDir | None:
    """Where the teacher of a composed run is, or will be; None without a teacher."""
    teacher = config["task"].get("teacher")
    return directory_of_teacher(teacher, config["task"]["teacher_run"]) if teacher else None


def start_directory(config: Mapping[str, Any]) -> RunDir | None:
    """Where the run of the row that `init_from` names is, or will be; None if it is no row."""
    is_row = str(config.get("init_from")).startswith(tables.ROW)
    return directory_of_row(str(config["init_run"])) if is_row else None


def location(config: Mapping[str, Any]) -> str | None:
    """`init_from` of a composed configuration; for a row, the directory of its run."""
    run = start_directory(config)
    return config.get("init_from") if run is None else str(run.path)


def pending(config: Mapping[str, Any]) -> RunDir | None:
    """Run of the row named by `init_from`; None if the run is done or `init_from` is no row."""
    run = start_directory(config)
    return run if run and run.status().get("state") != "DONE" else None


def wait_for_all(config: Mapping[str, Any], overrides: Sequence[str]) -> None:
    """Return when every run that this one needs is done; wait for those that are being trained.

    Args:
        config: of the run.
        overrides: of the run.

    Raises:
        UserError: one is neither done nor being trained; the message says how to train it.
    """
    teacher = ("task.teacher", "teacher", str(config["task"].get("teacher")), teacher_overrides)
    start = ("init_from", "model to start from", str(config.get("init_from")), row_overrides)
    both = ((teacher, teacher_directory(config)), (start, start_directory(config)))
    for (key, role, name, words), run in both:
        told = False
        while run is not None and run.status().get("state") != "DONE":
            if not run.is_running():
                command = "the command in its overrides.txt"
                if name.startswith(tables.ROW):
                    command = f"{command_name('train')} {' '.join(words(name, overrides))}"
                raise UserError(f"{key}={name} is not trained yet; train it first: {command}")
            if not told:
                print(f"waiting for the {role} in {run.path}", file=sys.stderr, flush=True)
            told = True
            time.sleep(2.0)


def source(init_from: str, *, trust: bool = False) -> Source | None:
    """Find the Chimera model of a run or an export; None if it is a Hugging Face model.

    Args:
        init_from: see above.
        trust: the user has named the Hugging Face model that the folder's file names.

    Raises:
        UserError: no model is found, the run is not finished, the weights cannot be trained on
            (an adapter beside them, packed), or a file holds more than data.
    """
    if init_from.startswith(from_hf.PREFIX):
        folder = expanded(init_from.removeprefix(from_hf.PREFIX))
        return Source(from_hf.configuration(folder), folder, folder, digest(folder))
    path = expanded(init_from)
    if path.is_file() or (path / "config.yaml").is_file() or _record_of(path):
        return _of_run(init_from, path, trust)
    if (path / "config.json").is_file():
        return _of_export(init_from, path)
    of_runs = path.absolute().parent == runs_root().absolute()
    if path.exists() or of_runs or not hub.is_id(init_from):
        raise UserError(f"init_from={init_from} is not a model; give {_TAKES}")
    return None


def _of_run(init_from: str, path: Path, trust: bool) -> Source:
    """The model of a run's directory, of one of its checkpoints, or of a run that is gone."""
    where = f"init_from={init_from}"
    run = RunDir(path.resolve().parent.parent if path.is_file() else path)
    best = run.checkpoints / "best.ckpt"
    if record := _record_of(path):
        config = checked(record.config, where)
        weights = best
        model = record.identity
    elif not (run.path / "config.yaml").is_file():
        raise UserError(f"{where} is a file outside a run's checkpoints/; give {_TAKES}")
    else:
        state = run.status().get("state", "not started")
        if state != "DONE" and not path.is_file():
            raise UserError(
                f"{where} is not finished ({state}); let it finish, or name one of its"
                f" checkpoints, {run.checkpoints}/…"
            )
        config = recorded(run)
        model = identity(run.config())
        weights = best if best.exists() else run.checkpoints / "last.ckpt"
        if path.is_file():
            weights = path.resolve()
        if weights != best:
            model = f"{model}:{weights.resolve().name}"
        if not weights.exists():
            raise UserError(f"{where} has no checkpoint ({weights.name} is missing)")
    adapter = config["choices"]["adapter"]
    if adapter != "none":
        raise UserError(
            f"{where} was trained with adapter={adapter}; merge it first:"
            f" {command_name('export')} run={run.path} to=<folder>, then init_from=<folder>"
        )
    advice = f"add model.name={config['model'].get('name')} if you know it"
    config["model"] = trusted_model(config, run.path, where, trust=trust, advice=advice)
    return Source(config, weights, run.tokenizer, model)


def _of_export(init_from: str, folder: Path) -> Source | None:
    """The model of a folder that `export.py` wrote; None for another one of transformers."""
    where = f"init_from={init_from}"
    about = exported(folder, where)
    if about is None:
        return None
    if (folder / "adapter").is_dir():
        raise UserError(
            f"{where} holds an adapter beside its weights ({about['adapter']}); start from the"
            " model that the adapter was trained on"
        )
    if about["packed"]:
        raise UserError(
            f"{where} is packed, so its weights cannot be trained; export the run again with"
            " packed=false"
        )
    config = about["chimera"] | {"model": trusted_model(about["chimera"], folder, where)}
    content = read_json(folder / "config.json")  # stands for the model in identities
    if (folder / "body").is_dir():
        content["chimera"]["model"] |= {"name": str(folder / "body"), "pretrained": False}
    model = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:8]
    return Source(config, folder / "model.safetensors", folder / "tokenizer", model)


def only_record(config: Mapping[str, Any]) -> Record | None:
    """The record of the run that `init_from` names, if it is all there is of the run."""
    init_from = config.get("init_from")
    if not init_from or str(init_from).startswith((tables.ROW, from_hf.PREFIX)):
        return None
    return _record_of(expanded(init_from))


def check_present(config: Mapping[str, Any]) -> None:
    """Refuse to train from a run of which only the record is here.

    Raises:
        UserError: the line has the command that trains it.
    """
    if record := only_record(config):
        raise UserError(
            f"of init_from={config['init_from']} only the record is here, in {record.folder},"
            " without weights; train it first:"
            f" {command_name('train')} {one_line(shlex.join(record.overrides))}"
        )


def _record_of(path: Path) -> Record | None:
    """The record of a run's directory that is gone."""
    return None if path.exists() else Records().get(path.name.rpartition("-")[2])


def source_choices(
    source: Source | None, init_from: str | None, settings: Mapping[str, Any]
) -> list[str]:
    """Choices that `init_from` implies, without groups that the command line chooses.

    Args:
        source: the Chimera model that `init_from` names, if it is one.
        init_from: its value.
        settings: keys and groups of the command line, with their values.
    """
    options: dict[str, str] = {}
    if source is not None:
        chosen = source.config["choices"]
        for group in PARTS:  # a name of Hydra's would be a path to a file of the source's
            if group not in settings and chosen[group] not in groups()[group]:
                raise unknown(f"init_from={init_from}: its {group}", chosen[group], groups()[group])
        options = {group: chosen[group] for group in PARTS} | {"tokenizer": "own"}
    elif init_from or settings.get("model") == "hf":
        options = {"model": "hf", "tokenizer": "own"}
    return [f"{group}={option}" for group, option in options.items() if group not in settings]


def apply_source(cfg: DictConfig, source: Source | None, settings: Mapping[str, Any]) -> None:
    """Copy the source's nodes and tokenizer into a composed and bounded configuration, in place.

    Args:
        cfg: with `init_from` set.
        source: the Chimera model that `init_from` names, if it is one.
        settings: keys and groups of the command line, with their values.
    """
    init_from = cfg.get("init_from")
    tokenizer = cfg.model.get("name")
    with open_dict(cfg):
        if source is not None:
            for group in PARTS:
                if group not in settings:
                    cfg[group] = OmegaConf.create(source.config[group])
            for key, value in settings.items():
                if key.partition(".")[0] in PARTS and "." in key:
                    OmegaConf.update(cfg, key, value)
            cfg.init_run = source.run
            if "causal" in cfg.task and cfg.task.causal is None:
                cfg.task.causal = causal_of(source.config["task"])
            tokenizer = str(source.tokenizer)
        elif init_from:
            tokenizer = cfg.model.name = cfg.model.name or init_from
        if cfg.choices.tokenizer == "own" and cfg.tokenizer.path is None:
            cfg.tokenizer.path = tokenizer
        if cfg.choices.model == "hf" and cfg.model.name and "name" not in settings:
            model = Path(init_from if source is not None else cfg.model.name).name
            cfg.name = re.sub(r"[^\w.+-]", "_", f"{cfg.task.name}-{model}")


def apply_checkpoint(cfg: DictConfig) -> None:
    """Note the checksum of the checkpoint that `ckpt_path` names, for the run's identity, in place.

    Raises:
        UserError: there is no such file.
    """
    cfg.ckpt_sha256 = None
    if cfg.ckpt_path is None:
        return
    file = expanded(cfg.ckpt_path)
    if not file.is_file():
        raise UserError(f"ckpt_path={file} is no file; name a checkpoint, as in <run>/checkpoints/")
    cfg.ckpt_sha256 = sha256_of(file)


def causal_of(task: Mapping[str, Any]) -> bool | None:
    """Whether a task reads from left to right; None: as its model does.

    Args:
        task: the node `task` of a configuration; its key `causal` wins over the class attribute.
    """
    causal = task.get("causal")
    return causal if causal is not None else attribute(str(task["_target_"]), "causal")
