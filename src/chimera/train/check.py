"""Hold a configuration against the constructors it names: keys, types, ranges. One line an error.

The constructor's signature is the schema, so a component is described in one place only.
"""

from __future__ import annotations

from typing import Any, get_type_hints

from hydra.utils import get_object

from chimera.config import static as schema
from chimera.config.schema import check_node, check_value
from chimera.errors import UserError

#: Groups whose classes are free of torch; they are checked first, within a second.
LIGHT = ("trainer", "guard", "optim", "model", "scale", "logger", "launcher", "data", "tokenizer")


def check(config: dict[str, Any]) -> None:
    """Everything that can be known to be wrong before work begins, cheapest first.

    Raises:
        UserError: one line. Nothing has been written by then.
    """
    check_settings(config)
    check_parts(config)


def check_settings(config: dict[str, Any]) -> None:
    """What needs no torch: a sweep asks it of all its jobs first.

    Raises:
        UserError: one line.
    """
    from chimera.config import init_from as inherit
    from chimera.config.settings import Run
    from chimera.rundir.directory import RunDir

    hints = get_type_hints(Run, include_extras=True)
    for key, hint in hints.items():
        check_value(key, config[key], hint)
    for group in LIGHT:
        check_node(group, config[group], deep=False)
    # The tokenizer of a row that is trained first is not there yet.
    later = inherit.awaited(config) and config["choices"]["tokenizer"] == "own"
    for group in ("trainer", "model", "data", *([] if later else ["tokenizer"])):
        _instantiate(config[group]).check()
    if not schema.attribute(config["task"]["_target_"], "plain_text", True):
        _check_corpus(config)
    RunDir.of(config).check()


def check_parts(config: dict[str, Any]) -> None:
    """The components, the task, and the model that they make together. Loads torch.

    Raises:
        UserError: one line.
    """
    import torch

    from chimera.config.groups import ZOO
    from chimera.config.init_from import causal_of
    from chimera.model.assemble import check_model, choose
    from chimera.model.classifier import head_of
    from chimera.optim.optimizer import check as check_optim

    for group in (*ZOO, "task", "optim"):
        check_node(group, config[group])
    check_optim(_instantiate(config["optim"]))
    gpu = torch.cuda.is_available() and config["trainer"]["accelerator"] != "cpu"
    if config["trainer"]["accelerator"] == "gpu" and not gpu:
        raise UserError("trainer.accelerator=gpu, but torch sees no GPU here; use auto or cpu")
    settings, choices = _instantiate(config["model"]), choose(config)
    check_model(settings, choices, causal=causal_of(config["task"]), head=head_of(config["task"]))


def _check_corpus(config: dict[str, Any]) -> None:
    labelled = "chimera.data.corpus.labelled.check_labelled"
    wants = schema.attribute(config["task"]["_target_"], "wants", labelled)
    get_object(wants)(_instantiate(config["data"]))


def _instantiate(node: dict[str, Any]) -> Any:
    from hydra.utils import instantiate

    return instantiate(node, _convert_="all")
