"""A causal model of transformers with LiZAttention grafted in: the code of its exported folder."""

from __future__ import annotations

from typing import Any

from transformers import LlamaForCausalLM  # a folder has the class of its own base here

from chimera.adapter.graft.attach import attach


class LizaForCausalLM(LlamaForCausalLM):
    """The base's class; the entry `liza` of its configuration has the options of the memories."""

    _keep_in_fp32_modules_strict = ["liza"]  # noqa: RUF012 - as the library declares it

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        attach(self, inner=lambda model: model, train="inner", **config.liza)
        self.requires_grad_(True)
