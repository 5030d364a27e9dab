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
from transformers.modeling_outputs import (
    BaseModelOutputWithPast,
    CausalLMOutputWithPast,
    MaskedLMOutput,
    SequenceClassifierOutput,
)

from chimera.export.hf.configuration import ChimeraConfig
from chimera.export.hf.losses import cross_entropy, of_labels
from chimera.model.classifier import ClassificationHead, pooled


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
        settings = dict(config.body or {})
        body: Any = AutoConfig.for_model(settings.pop("model_type"), **settings)
        if config.outputs:
            self.backbone = _Inner(AutoModel.from_config(body))
        else:
            kind = AutoModelForCausalLM if config.is_decoder else AutoModelForMaskedLM
            self.model = kind.from_config(body)
        self.reads_segments = getattr(body, "type_vocab_size", 0) > 1
        if type(self) is ChimeraBodyModel:
            self.post_init()

    @property
    def language(self) -> Any:
        """The body with its own head."""
        return self.model

    @property
    def body(self) -> Any:
        """The body without a head."""
        return self.backbone.inner if self.config.outputs else self.language.base_model

    def get_input_embeddings(self) -> nn.Module:
        """The token embedding."""
        table: nn.Module = self.body.get_input_embeddings()
        return table

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace the token embedding."""
        self.body.set_input_embeddings(value)

    def inputs(
        self, ids: Tensor | None, mask: Tensor | None, segments: Tensor | None, more: Any
    ) -> dict[str, Any]:
        """Arguments of the body."""
        given = {key: more[key] for key in ("past_key_values", "use_cache") if key in more}
        given |= {k: more[k] for k in ("inputs_embeds", "output_hidden_states") if k in more}
        if self.reads_segments and segments is not None:
            given["token_type_ids"] = segments
        if mask is None and ids is not None and given.get("past_key_values") is None:
            mask = torch.ones_like(ids)
        if self.config.is_decoder and mask is not None and ids is not None:
            real = (mask.long().cumsum(1) - 1).clamp(min=0)
            given["position_ids"] = real[:, -ids.shape[1] :]
        return given | {"input_ids": ids, "attention_mask": mask}

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPast | tuple[Any, ...]:
        """Hidden states [b t d]; `output_hidden_states=True` those of every layer."""
        out = self.body(**self.inputs(input_ids, attention_mask, token_type_ids, kwargs))
        found = BaseModelOutputWithPast(
            last_hidden_state=out.last_hidden_state, hidden_states=out.get("hidden_states")
        )
        return found.to_tuple() if kwargs.get("return_dict") is False else found


class ChimeraBodyForMaskedLM(ChimeraBodyModel):
    """Logits of the token at each position."""

    def __init__(self, config: ChimeraConfig) -> None:
        super().__init__(config)
        self.post_init()

    def get_output_embeddings(self) -> nn.Module:
        """The head's matrix."""
        matrix: nn.Module = self.language.get_output_embeddings()
        return matrix

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None:
        """Replace the head's matrix."""
        self.language.set_output_embeddings(new_embeddings)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        labels: Tensor | None = None,
        **kwargs: Any,
    ) -> Any:
        """Logits [b t v]; a loss with `labels` [b t], −100 where there is none."""
        out = self.language(**self.inputs(input_ids, attention_mask, token_type_ids, kwargs))
        loss = None if labels is None else self.loss_of(out.logits, labels, kwargs)
        found = self.output(loss, out)
        return found.to_tuple() if kwargs.get("return_dict") is False else found

    def loss_of(self, logits: Tensor, labels: Tensor, more: Any) -> Tensor:
        """Loss of labels at their places."""
        return cross_entropy(logits, labels, more.get("num_items_in_batch"))

    def output(self, loss: Tensor | None, out: Any) -> Any:
        """What `forward` returns."""
        return MaskedLMOutput(loss=loss, logits=out.logits, hidden_states=out.get("hidden_states"))


class ChimeraBodyForCausalLM(ChimeraBodyForMaskedLM, GenerationMixin):
    """Logits of the token after each position, and `generate`."""

    def loss_of(self, logits: Tensor, labels: Tensor, more: Any) -> Tensor:
        """Loss of the labels after their places."""
        return cross_entropy(logits[:, :-1], labels[:, 1:], more.get("num_items_in_batch"))

    def output(self, loss: Tensor | None, out: Any) -> Any:
        """What `forward` returns."""
        return CausalLMOutputWithPast(
            loss=loss,
            logits=out.logits,
            past_key_values=out.get("past_key_values"),
            hidden_states=out.get("hidden_states"),
        )

    def _prepare_cache_for_generation(  # type: ignore[override]
        self, generation_config: Any, model_kwargs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> None:
        """Begin with an empty cache of the body's layers."""
        if generation_config.use_cache is not False:
            model_kwargs.setdefault("past_key_values", DynamicCache(config=self.language.config))


class ChimeraBodyForSequenceClassification(ChimeraBodyModel):
    """A score per class of each sequence."""

    def __init__(self, config: ChimeraConfig) -> None:
        super().__init__(config)
        head: dict[str, Any] = dict(config.classifier or {})
        automatic = "last" if config.is_decoder else "first"
        self.pool: Any = automatic if head["pool"] == "auto" else head["pool"]
        self.classifier = ClassificationHead(
            self.body.config.hidden_size,
            config.num_labels or 1,
            dropout=head["dropout"],
            hidden=head["hidden"],
        )
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        labels: Tensor | None = None,
        **kwargs: Any,
    ) -> Any:
        """Logits [b c]; a loss with `labels`: classes [b], scores [b], or several classes [b c]."""
        out = self.body(**self.inputs(input_ids, attention_mask, token_type_ids, kwargs))
        mask = None if attention_mask is None else attention_mask.bool()
        logits = self.classifier(pooled(out.last_hidden_state, mask, self.pool))
        loss = None if labels is None else of_labels(logits, labels, self.config)
        found = SequenceClassifierOutput(
            loss=loss, logits=logits, hidden_states=out.get("hidden_states")
        )
        return found.to_tuple() if kwargs.get("return_dict") is False else found


__all__ = [
    "ChimeraBodyForCausalLM",
    "ChimeraBodyForMaskedLM",
    "ChimeraBodyForSequenceClassification",
    "ChimeraBodyModel",
    "ChimeraConfig",
]
