"""Check a configuration before work begins: keys, types, ranges, pairs of parts, files, directory.

The constructors' signatures are the schema, so a component is described in one place only.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib.util import find_spec
from pkgutil import resolve_name
from typing import Any, TypeVar, cast, get_type_hints

from chimera import world
from chimera.config.groups import BUILT, ZOO, groups
from chimera.config.groups import node as node_of
from chimera.config.hydra_calls import make
from chimera.config.schema import RESERVED, attribute, check_node, check_value, nodes
from chimera.errors import UserError, nearest, one_line
from chimera.train import launch
from chimera.train.callbacks import nodes as ordered
from chimera.train.memory import allow_open_files

Result = TypeVar("Result")
#: Signatures of this package are read without importing it: torch and Lightning take seconds.
OURS = "chimera."
#: The logger that has names of its own checked by its library, which is imported before a run.
WANDB = "chimera.train.loggers.WandbRun"
#: Packages without which Lightning's loggers fail when they are built, after the run's start.
LOGGER_PACKAGES = {
    "lightning.pytorch.loggers.TensorBoardLogger": "tensorboard",
    "lightning.pytorch.loggers.MLFlowLogger": "mlflow",
    "lightning.pytorch.loggers.CometLogger": "comet_ml",
    "lightning.pytorch.loggers.NeptuneLogger": "neptune",
}


def check(config: dict[str, Any], *, data: bool = True) -> None:
    """Everything that can be known to be wrong before work begins, cheapest first.

    Args:
        config: the resolved configuration.
        data: the text is read, so it has to be here or on the network.

    Raises:
        UserError: one line. Nothing has been written by then.
    """
    check_settings(config, data=data)
    check_parts(config)


class Once:
    """Remembers what passed: the jobs of a sweep share most of their settings and parts."""

    def __init__(self) -> None:
        self._passed: dict[str, Any] = {}

    def __call__(self, name: str, subject: object, check: Callable[[], Result]) -> Result:
        """The result of a check that depends on nothing but its subject."""
        key = f"{name} {json.dumps(subject, sort_keys=True, default=str)}"
        if key not in self._passed:
            self._passed[key] = check()
        return cast(Result, self._passed[key])


def check_settings(
    config: dict[str, Any], once: Once | None = None, *, train: bool = True, data: bool = True
) -> None:
    """Check keys, values, files and the run's directory without torch: a sweep asks this first.

    Args:
        config: the resolved configuration.
        once: of a sweep; remembers what passed for another job.
        train: the run is trained, so the model that it starts from has to be here.
        data: the text is read, so it has to be here or on the network.

    Raises:
        UserError: one line.
    """
    once = once or Once()
    from chimera.config import start_model
    from chimera.config.settings import Run
    from chimera.rundir.directory import open_run

    hints = once("hints", None, lambda: get_type_hints(Run, include_extras=True))
    for key in hints:
        once(key, config[key], partial(check_value, key, config[key], hints[key]))
    for group in (*BUILT, "scale", "launcher"):
        if _ours(config[group]) or group not in (*ZOO, "task", "optim"):
            deep = group != "optim"
            once(group, config[group], partial(check_node, group, config[group], deep=deep))
    for where, node in _of_lightning(config):
        if _ours(node):
            once(where, node, partial(check_node, where, node))
    if train:
        start_model.check_present(config)
    # The tokenizer of a row that is trained first is not there yet.
    away = start_model.pending(config) or start_model.only_record(config)
    later = away and config["choices"]["tokenizer"] == "own"
    files = ["data"] * data + ["tokenizer"] * (not later)
    for group in ("trainer", "model", *files):
        node = config[group]
        once(f"{group}.check", node, partial(_check_itself, node))
    if not attribute(config["task"]["_target_"], "plain_text", True):
        once("corpus", (config["task"], config["data"]), lambda: _check_corpus(config))
    launch.check(config)
    if train:
        allow_open_files(config["data"].get("num_workers") or 0)
    if world.is_first():  # which may be at work in it before another process comes here
        open_run(config)


def check_parts(config: dict[str, Any], once: Once | None = None) -> None:
    """Check what other packages bring, the device, and the model that the parts make. Loads torch.

    Args:
        config: the resolved configuration.
        once: of a sweep; remembers what passed for another job.

    Raises:
        UserError: one line.
    """
    import torch

    from chimera.model.documents import check_documents
    from chimera.optim.optimizer import check_components

    once = once or Once()
    for group in (*ZOO, "task"):
        if not _ours(config[group]):
            once(group, config[group], partial(check_node, group, config[group]))
    optim = once("optim, made", config["optim"], lambda: _checked_optim(config["optim"]))
    for where, node in _of_lightning(config):
        if not _ours(node):
            once(where, node, partial(_check_foreign, where, node))
        elif node["_target_"] == WANDB and world.is_first():
            names = {**config["choices"], "task": config["task"]["name"], "tags": config["tags"]}
            once("tags", (node, names), partial(_check_wandb, node, names))
    gpu = torch.cuda.is_available() and config["trainer"]["accelerator"] != "cpu"
    if config["trainer"]["accelerator"] == "gpu" and not gpu:
        raise UserError("trainer.accelerator=gpu, but torch sees no GPU here; use auto or cpu")
    if (count := config["trainer"]["devices"]) > 1 and gpu and torch.cuda.device_count() < count:
        raise UserError(
            f"trainer.devices={count}, but torch sees {torch.cuda.device_count()} GPUs here; lower"
            " it, or use trainer.accelerator=cpu"
        )
    if config["model"].get("dtype") == "nf4" and not gpu:
        raise UserError("model.dtype=nf4 trains on a GPU of CUDA only; use model.dtype=bf16")
    if config["trainer"]["compile"] == "graphs":
        _check_graphs(config, gpu)
    if config["precision"] == "fp16":
        from chimera.train.trainer import device_of_fp16  # imports Lightning

        device_of_fp16(config["trainer"]["accelerator"])
    parts = {group: config[group] for group in ("model", "task", "choices", *ZOO)}
    model = once("model", parts, lambda: checked_model(parts))
    if config["data"].get("boundaries") == "attention":
        once("boundaries", parts, lambda: check_documents(model, config["choices"]["mixer"]))
    check_lengths(config, model)
    tables = config["optim"].get("rates"), config["optim"].get("decays")
    known = once("components", None, _components)
    once("rates", (parts, tables), lambda: check_components(optim, model, known))


def _check_graphs(config: dict[str, Any], gpu: bool) -> None:
    """Refuse CUDA graphs where a pass needs what the pass before left: each overwrites it.

    Raises:
        UserError: naming the setting.
    """
    trainer = config["trainer"]
    parts = trainer["accumulate_grad_batches"]
    several = trainer["devices"] > 1 or (trainer["num_nodes"] or 1) > 1 or world.world_size() > 1
    for found, what in (
        (not gpu, "without a GPU"),
        (parts > 1, f"with trainer.accumulate_grad_batches={parts}"),
        (several, "with several processes"),
        (config["model"].get("gradient_checkpointing"), "with model.gradient_checkpointing=true"),
        (config["task"].get("teacher"), "with task.teacher"),
    ):
        if found:
            raise UserError(f"trainer.compile=graphs does not run {what}; use trainer.compile=auto")


def check_lengths(config: dict[str, Any], model: Any) -> None:
    """Refuse sequences that are longer than the tables of positions of the model.

    Args:
        config: the resolved configuration.
        model: on the meta device.

    Raises:
        UserError: naming the part.
    """
    task = config["task"]
    length = config["data"].get("seq_len") or config["model"].get("max_len")
    if not length:
        return
    factors = [1, *(task.get("longer") or [])]  # of task=causal_lm
    lengths = [*(length * factor for factor in factors), *(task.get("cost_at") or [])]
    for part in model.modules():
        if hasattr(part, "check_positions"):
            part.check_positions(max(lengths))


def _checked_optim(node: dict[str, Any]) -> Any:
    """Settings of the optimiser, which can train a model."""
    from chimera.optim.optimizer import check as check_optim

    check_node("optim", node)
    optim = make(node)
    check_optim(optim)
    return optim


def checked_model(parts: dict[str, Any]) -> Any:
    """The model that the parts make, on the meta device."""
    from chimera.config.start_model import causal_of
    from chimera.model.assemble import check_model, choose
    from chimera.model.classifier import head_of

    settings = make(parts["model"])
    task = parts["task"]
    return check_model(settings, choose(parts), causal=causal_of(task), head=head_of(task))


def _components() -> set[str]:
    """Components of all parts, by which `optim.rates` of a table may speak."""
    mixers = (node_of("mixer", name)["_target_"] for name in groups()["mixer"])
    found = {attribute(target, "component", "attention") for target in mixers}
    named = (node_of("optim", name) for name in groups()["optim"])
    rates = {key for n in named for of in ("rates", "decays") for key in n.get(of, {})}
    return {"ffn", "head", "position", *found, *rates}


def _ours(part: dict[str, Any]) -> bool:
    return str(part["_target_"]).startswith(OURS)


def _of_lightning(config: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Loggers and callbacks of a run; those of its parts are checked with the parts."""
    callbacks = [each for each in ordered(config) if each[0].startswith("callbacks.")]
    guard = ("guard", config["guard"])
    for where, node in [*nodes("logger", config["logger"]), guard, *callbacks]:
        if not isinstance(node, dict) or "_target_" not in node:
            raise UserError(f"{where} names no class; it takes {where}._target_=package.Class")
        yield where, node


def _check_foreign(where: str, node: dict[str, Any]) -> None:
    """A class that was not written for this package takes any of its arguments by name."""
    target = node["_target_"]
    needed = LOGGER_PACKAGES.get(target)
    if needed is not None and find_spec(needed) is None:
        name = needed.replace("_", "-")
        raise UserError(f"{where}: {target} needs {needed}, which is not here; pip install {name}")
    try:
        taken = inspect.signature(resolve_name(target)).parameters
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        why = one_line(error)
        path = "; PYTHONPATH=. finds modules of this folder" if "No module" in why else ""
        raise UserError(f"{where}._target_={target} is not available: {why}{path}") from error
    free = any(p.kind is p.VAR_KEYWORD for p in taken.values())
    for key in node:
        if key not in RESERVED and key not in taken and not free:
            raise UserError(
                f"{where}.{key} is no argument of {target}{nearest(key, taken)}"
                f" (it has {', '.join(taken) or 'none'})"
            )
    for key, argument in taken.items():
        named = argument.kind in (argument.POSITIONAL_OR_KEYWORD, argument.KEYWORD_ONLY)
        given = {key, "_args_"} & set(node) or key == "save_dir"
        if named and argument.default is argument.empty and not given:
            raise UserError(f"{where}: {target} needs {key}; write +{where}.{key}=…")


def wandb_tags(params: Mapping[str, Any]) -> list[str]:
    """Tags of a W&B run: its task, mixer and scale, and those of `tags=`."""
    chosen = (params["task"], params["mixer"], f"scale={params['scale']}")
    return [*dict.fromkeys([*chosen, *(params.get("tags") or [])])]


def _check_wandb(node: Mapping[str, Any], params: Mapping[str, Any]) -> None:
    """Ask W&B whether it takes the project and the tags."""
    import wandb

    try:
        wandb.Settings(project=node["project"], run_tags=tuple(wandb_tags(params)))
    except (wandb.errors.Error, ValueError) as error:
        why = one_line(error).partition(" [type=")[0].partition("Value error, ")
        raise UserError(f"W&B refuses project or tags: {why[2] or why[0]}") from error


def _check_corpus(config: dict[str, Any]) -> None:
    labelled = "chimera.data.corpus.labelled.check_labelled"
    corpus_check = attribute(config["task"]["_target_"], "corpus_check", labelled)
    resolve_name(corpus_check)(make(config["data"]))


def _check_itself(node: dict[str, Any]) -> None:
    make(node).check()
