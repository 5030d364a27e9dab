"""Build the data module and the task (model, start weights, head, adapter) of a configuration."""

from __future__ import annotations

from typing import Any

from hydra.utils import instantiate

from chimera.data.batch.module import DataModule
from chimera.model.assemble import choose, unadapted
from chimera.model.restore import start_from
from chimera.task.base import Task

Node = dict[str, Any]


def build_data(data: Node, tokenizer: Node, task: Node, seed: int) -> DataModule:
    """The data module of the task's batches; its `setup` reads the data.

    Args:
        data, tokenizer, task: nodes of a checked configuration.
        seed: of the order of the training examples.
    """
    corpus, words, factory = (instantiate(n, _convert_="all") for n in (data, tokenizer, task))
    return factory.func.data_module(corpus, words, seed, factory.keywords)


def build_task(
    config: dict[str, Any],
    vocab_size: int,
    *,
    start_weights: str | None = None,
    adapter: bool = True,
) -> Task:
    """The task with its model: body, start weights, head, adapter.

    Args:
        config: checked; its parts, model, optim, task and data are read.
        vocab_size: of the tokenizer.
        start_weights: a model whose weights are loaded, as of `init_from`; not needed where a
            checkpoint is loaded next.
        adapter: False builds the model without the adapter that the configuration names.
    """
    choices = choose(config, adapter=adapter)
    model = unadapted(config, choices, vocab_size)
    start_from(model, start_weights)
    optim = instantiate(config["optim"], _convert_="all")
    factory = instantiate(config["task"], _convert_="all")
    task = factory(model, optim, 1, vocab_size)  # the run sets the number of steps
    assert isinstance(task, Task)
    task.configure_head(instantiate(config["data"], _convert_="all"))
    task.model = choices.adapter(task.model)
    return task
