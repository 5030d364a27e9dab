"""Build the data module and the task (model, start weights, head, adapter) of a configuration."""

from __future__ import annotations

from typing import Any

from hydra.utils import instantiate

from chimera.config.init_from import causal_of, location
from chimera.data.batch.module import DataModule
from chimera.model.assemble import build_model, choose
from chimera.model.restore import start_from
from chimera.task.base import Task


def make_data(config: dict[str, Any]) -> DataModule:
    """The data module of the task's batches; its `setup` reads the data.

    Args:
        config: checked.
    """
    corpus, tokenizer, task = (
        instantiate(config[group], _convert_="all") for group in ("data", "tokenizer", "task")
    )
    data: DataModule = task.func.data_module(corpus, tokenizer, config["seed"], task.keywords)
    return data


def make_task(
    config: dict[str, Any], vocab_size: int, *, start: bool = False, adapter: bool = True
) -> Task:
    """The task with its model: body, start weights, head, adapter.

    Args:
        config: checked.
        vocab_size: of the tokenizer.
        start: load the weights of `init_from`; not needed where a checkpoint is loaded next.
        adapter: False builds the model without the adapter that the configuration names.
    """
    choices = choose(config, adapter=adapter)
    model = build_model(
        instantiate(config["model"], _convert_="all"),
        choices,
        vocab_size=vocab_size,
        causal=causal_of(config["task"]),
        adapt=False,
    )
    if start:
        start_from(model, location(config))
    optim = instantiate(config["optim"], _convert_="all")
    factory = instantiate(config["task"], _convert_="all")
    task = factory(model, optim, config["trainer"]["max_steps"] or 1, vocab_size)
    assert isinstance(task, Task)
    task.configure_head(instantiate(config["data"], _convert_="all"))
    task.model = choices.adapter(task.model)
    return task
