"""Exported models whose body is transformers' own: its classes, and a classifier's head of ours.

Tensors have their names in a run: `model.` of a language model, `backbone.inner.` of a classifier.
Positions of a decoder count real tokens, as in training.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    DynamicCache,
    PreTrainedModel,
)
from transformers.generation import GenerationMixin
from transformers.modeling_outputs import CausalLMOutputWithPast, MaskedLMOutput

from chimera.export.hf.configuration import ChimeraConfig
from chimera.export.hf.heads import Classifies, WithHead

#: Arguments of a forward pass that the body gets as they are.
PASSED = ("past_key_values", "use_cache", "inputs_embeds", "output_hidden_states", "return_dict")


class _Inner(nn.Module):
    """The place of a body below a classifier."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        if getattr(inner, "pooler", None) is not None:
            setattr(inner, "pooler", None)  # noqa: B010 - a module's attribute


class ChimeraBodyModel(PreTrainedModel):
    """Hidden states of token ids, by the body alone."""

    config_class = ChimeraConfig
    base_model_prefix = ""
    supports_gradient_checkpointing = True
    _supports_sdpa = True

    def __init__(self, config: ChimeraConfig) -> None:
        super().__init__(config)
        settings = {**(config.body or {}), "tie_word_embeddings": config.tie_word_embeddings}
        body: Any = AutoConfig.for_model(settings.pop("model_type"), **settings)
        if config.outputs:
            self.backbone = _Inner(AutoModel.from_config(body))
        else:
            kind = AutoModelForCausalLM if config.is_decoder else AutoModelForMaskedLM
            self.model = kind.from_config(body)
        self.reads_segments = getattr(body, "type_vocab_size", 0) > 1
        self.post_init()

    @property
    def body(self) -> Any:
        """The body without a head."""
        return self.backbone.inner if self.config.outputs else self.model.base_model

    @property
    def part(self) -> Any:
        """The module of transformers that a forward pass runs."""
        return self.body

    def get_input_embeddings(self) -> nn.Module:
        """The token embedding."""
        return self.body.get_input_embeddings()

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace the token embedding."""
        self.body.set_input_embeddings(value)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        **kwargs: Any,
    ) -> Any:
        """Hidden states [b t d]; `output_hidden_states=True` those of every layer."""
        mask = attention_mask
        passed = {key: kwargs[key] for key in PASSED if key in kwargs}
        if self.reads_segments and token_type_ids is not None:
            passed["token_type_ids"] = token_type_ids
        if mask is None and input_ids is not None and passed.get("past_key_values") is None:
            mask = torch.ones_like(input_ids)
        if self.config.is_decoder and mask is not None and input_ids is not None:
            real = (mask.long().cumsum(1) - 1).clamp(min=0)
            passed["position_ids"] = real[:, -input_ids.shape[1] :]
        return self.part(input_ids=input_ids, attention_mask=mask, **passed)


class ChimeraBodyForMaskedLM(WithHead, ChimeraBodyModel):
    """Logits of the token at each position."""

    result: Any = MaskedLMOutput
    states = ChimeraBodyModel.forward

    @property
    def part(self) -> Any:
        """The body with its own head."""
        return self.model

    def logits(self, out: Any, mask: Tensor | None, kept: Any) -> Tensor:
        return out.logits[:, kept]

    def get_output_embeddings(self) -> nn.Module:
        """The head's matrix."""
        return self.model.get_output_embeddings()

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None:
        """Replace the head's matrix."""
        self.model.set_output_embeddings(new_embeddings)


class ChimeraBodyForCausalLM(ChimeraBodyForMaskedLM, GenerationMixin):  # type: ignore[misc]
    """Logits of the token after each position, and `generate`."""

    result = CausalLMOutputWithPast

    def new_cache(self) -> DynamicCache:
        """An empty cache of the body's layers."""
        return DynamicCache(config=self.model.config)


class ChimeraBodyForSequenceClassification(Classifies, ChimeraBodyModel):
    """A score per class of each sequence."""

    states = ChimeraBodyModel.forward

    def __init__(self, config: ChimeraConfig) -> None:
        super().__init__(config)
        self.add_head(self.body.config.hidden_size, "last" if config.is_decoder else "first")
        self.post_init()
