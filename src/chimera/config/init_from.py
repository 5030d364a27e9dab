"""What a run takes over from the model it starts from (`init_from=`): parts, shape, tokenizer.

`init_from` is a run's directory (its best checkpoint), one of its checkpoint files, a folder that
`export.py` wrote, a Hugging Face folder, or `owner/name` on the hub. The first three bring all that
makes up the model; a word of the command line overrules it, and whether the weights still fit is
seen when they are loaded. The last two are `model=hf model.name=`. `row:<paper>/<table>/<row>` is
that row's run at the same scale, which a sweep trains first where it is not there. Free of torch.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from chimera.data.source import hub
from chimera.errors import UserError
from chimera.paths import runs_root
from chimera.rundir.class_table import current
from chimera.rundir.directory import RunDir
from chimera.rundir.identity import identity

#: Groups whose nodes come with a model.
PARTS = ("model", "mixer", "norm", "quant", "ffn", "position")
#: Words that a row which is trained first has from the run that starts from it.
SHARED = ("scale=", "logger", "launcher", "trainer.progress=", "data.cache_dir=")
_ROW = "row:"
_TAKES = "a run's directory, one of its checkpoints, an exported folder, or a Hugging Face model"


@dataclass(frozen=True)
class Source:
    """A model of ours to start from.

    Args:
        config: of the run that it comes from.
        weights: a checkpoint, or safetensors.
        tokenizer: folder of its tokenizer.
        run: what stands for it in the identity of a run that starts from it.
    """

    config: dict[str, Any]
    weights: Path
    tokenizer: Path
    run: str


def words_of(row: str, words: Iterable[str]) -> list[str]:
    """The command line that trains the row which a run that `words` start begins with.

    Raises:
        UserError: no such row.
    """
    from chimera.config.tables import row_word

    return [row_word(row, "init_from"), *(w for w in words if w.startswith(SHARED))]


def place(config: Mapping[str, Any]) -> str | None:
    """What a composed run starts from, a row as the directory of its run."""
    start = config.get("init_from")
    if not start or not str(start).startswith(_ROW):
        return start
    there = sorted(runs_root().glob(f"*-{config['init_run']}"))
    return str(there[0] if there else runs_root() / f"start-{config['init_run']}")


def awaited(config: Mapping[str, Any]) -> RunDir | None:
    """The run of the row that a composed run starts from; None if it is done or none is meant."""
    start, where = config.get("init_from"), place(config)
    if where is None or where == start:
        return None
    run = RunDir(Path(where))
    return None if run.status().get("state") == "DONE" else run


@cache
def _row(words: tuple[str, ...]) -> dict[str, Any]:
    from chimera.config.compose import compose, plain

    return plain(compose(list(words)))


def source(init_from: str, words: Iterable[str] = ()) -> Source | None:
    """Where a model of ours is; None where a Hugging Face model is meant.

    Args:
        init_from: what a run starts from.
        words: that start this run, which a row has some of.

    Raises:
        UserError: there is neither, or it is not trained yet.
    """
    if init_from.startswith(_ROW):
        config = _row(tuple(words_of(init_from, words)))
        run = RunDir.of(config)
        return Source(config, run.checkpoints / "best.ckpt", run.tokenizer, identity(config))
    path = Path(init_from).expanduser()
    if path.is_file():
        folder = path.resolve().parent.parent
        if not (folder / "config.yaml").is_file():
            raise UserError(
                f"init_from={init_from} is a file outside a run's checkpoints/; give {_TAKES}"
            )
        return _of_run(RunDir(folder), path.resolve())
    if (path / "config.yaml").is_file():
        run = RunDir(path)
        state = run.status().get("state", "not started")
        if state != "DONE":
            raise UserError(
                f"init_from={init_from} is not finished ({state}); let it finish, or name one of"
                f" its checkpoints, {path / 'checkpoints'}/…"
            )
        best = run.checkpoints / "best.ckpt"
        return _of_run(run, best if best.exists() else run.checkpoints / "last.ckpt")
    if (path / "config.json").is_file():
        about = json.loads((path / "config.json").read_text(encoding="utf-8"))
        if "chimera" not in about:
            return None
        if (path / "adapter").is_dir():
            raise UserError(
                f"init_from={init_from} holds an adapter beside its weights ({about['adapter']});"
                " start from the model that it was put on"
            )
        if (path / "body").is_dir():
            about["chimera"]["model"] |= {"name": str(path / "body"), "pretrained": False}
        digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:8]
        if about["packed"]:
            raise UserError(f"init_from={init_from} is packed: its weights cannot be trained on")
        config = current(about["chimera"])
        return Source(config, path / "model.safetensors", path / "tokenizer", digest)
    if path.exists() or not hub.is_id(init_from):
        raise UserError(f"init_from={init_from} is no model; give {_TAKES}")
    return None


def _of_run(run: RunDir, checkpoint: Path) -> Source:
    if not checkpoint.exists():
        raise UserError(f"init_from={run.path} has no checkpoint ({checkpoint.name} is missing)")
    config = run.config()
    adapter = config["choices"]["adapter"]
    if adapter != "none":
        raise UserError(
            f"init_from={run.path} was trained with adapter={adapter}; merge it first: python"
            f" export.py run={run.path} to=<folder>, then init_from=<folder>"
        )
    found = identity(config)
    name = checkpoint.resolve().name
    which = found if checkpoint.name == "best.ckpt" else f"{found}:{name}"
    return Source(config, checkpoint, run.tokenizer, which)


def words(
    init_from: str | None, asked: Iterable[str], model: str, line: Iterable[str] = ()
) -> list[str]:
    """Choices that go before those of the command line.

    Args:
        init_from: what the run starts from.
        asked: groups that the command line chooses.
        model: the choice of `model=`.
        line: the whole command line.
    """
    found: dict[str, str] = {}
    ours = source(init_from, line) if init_from else None
    if ours is not None:
        chosen = ours.config["choices"]
        found = {group: chosen[group] for group in PARTS} | {"tokenizer": "own"}
    elif init_from or model == "hf":
        found = {"model": "hf", "tokenizer": "own"}
    asked = set(asked)
    return [f"{group}={choice}" for group, choice in found.items() if group not in asked]


def take_over(cfg: DictConfig, asked: Mapping[str, Any], line: Iterable[str] = ()) -> None:
    """Put the nodes of the source into a composed and bounded configuration, in place.

    Args:
        cfg: has `init_from`.
        asked: keys and groups of the command line, with what was said of them.
        line: the whole command line.
    """
    start = cfg.get("init_from")
    ours = source(start, line) if start else None
    with open_dict(cfg):
        if ours is not None:
            for group in PARTS:
                if group not in asked:
                    _put(cfg, group, ours.config[group], asked)
            cfg.init_run = ours.run
            if "causal" in cfg.task and cfg.task.causal is None:
                cfg.task.causal = causal_of(ours.config["task"])
            tokenizer = str(ours.tokenizer)
        elif start:
            cfg.model.name = cfg.model.name or start
            tokenizer = cfg.model.name
        else:
            tokenizer = cfg.model.get("name")
        if cfg.choices.tokenizer == "own" and cfg.tokenizer.path is None:
            cfg.tokenizer.path = tokenizer
        if cfg.choices.model == "hf" and cfg.model.name and "name" not in asked:
            cfg.name = f"{cfg.task.name}-{Path(cfg.model.name).name}"


def causal_of(task: Mapping[str, Any]) -> bool | None:
    """Whether a task reads from left to right; None: as its model does."""
    from chimera.config import static as schema

    own = task.get("causal")
    return own if own is not None else schema.attribute(str(task["_target_"]), "causal")


def _put(cfg: DictConfig, group: str, node: Any, asked: Mapping[str, Any]) -> None:
    cfg[group] = OmegaConf.create(node)
    for key, value in asked.items():
        if key.startswith(f"{group}."):
            OmegaConf.update(cfg, key, value)
