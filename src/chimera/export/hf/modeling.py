"""Exported models of the transformers library: a class for each head.

The loss of `labels` is the one that the run was trained with: cross-entropy, or the squared error
of a regression, plus the auxiliary losses by their factors.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from transformers.generation import GenerationMixin
from transformers.modeling_outputs import (
    CausalLMOutputWithPast,
    MaskedLMOutput,
    SequenceClassifierOutput,
)

from chimera.export.hf.base import ChimeraModel, ChimeraOutput, ChimeraPreTrainedModel, build
from chimera.export.hf.cache import ChimeraCache
from chimera.export.hf.configuration import ChimeraConfig
from chimera.export.hf.losses import cross_entropy, of_labels, with_auxiliary
from chimera.model.classifier import ClassificationHead, pooled

__all__ = [
    "ChimeraConfig",
    "ChimeraForCausalLM",
    "ChimeraForMaskedLM",
    "ChimeraForSequenceClassification",
    "ChimeraModel",
]


class _LanguageModel(ChimeraPreTrainedModel):
    """Hidden states and the vocabulary head."""

    decodes: bool

    def __init__(self, config: ChimeraConfig) -> None:
        super().__init__(config)
        if bool(config.is_decoder) != self.decodes:
            kind, other = ("decoder", "CausalLM") if config.is_decoder else ("encoder", "MaskedLM")
            raise ValueError(
                f"this model is {'an' if kind[0] == 'e' else 'a'} {kind}; use AutoModelFor{other}"
            )
        model = build(config)
        self.backbone = ChimeraModel(config, model.backbone)
        self.head = model.head
        self.finish()

    def get_output_embeddings(self) -> nn.Module | None:
        """The head's matrix; None where it is the embedding's table."""
        return self.head.output

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None:
        """Replace the head's matrix, which is then not the embedding's table."""
        self.head.output = new_embeddings
        self.head.table = None

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> nn.Embedding:
        """Change the number of tokens; new ones have a bias of 0."""
        table = super().resize_token_embeddings(*args, **kwargs)
        size = self.config.vocab_size
        if self.head.bias is not None and len(self.head.bias) != size:
            bias = self.head.bias.new_zeros(size)
            kept = min(size, len(self.head.bias))
            bias[:kept] = self.head.bias.detach()[:kept]
            self.head.bias = nn.Parameter(bias)
        self.head.vocab_size = size
        return table

    def _total(self, loss: Tensor, out: ChimeraOutput) -> Tensor:
        return with_auxiliary(loss, out.auxiliary, self.config)


class ChimeraForMaskedLM(_LanguageModel):
    """Logits of the token at each position."""

    decodes = False

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        labels: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        **kwargs: Any,
    ) -> MaskedLMOutput | tuple[Any, ...]:
        """Logits [b t v]; a loss with `labels` [b t], −100 where there is none.

        The other arguments: see `ChimeraModel.forward`.
        """
        out = self.backbone(
            input_ids,
            attention_mask,
            inputs_embeds=inputs_embeds,
            output_hidden_states=output_hidden_states,
        )
        logits = self.head(out.last_hidden_state)
        loss = None
        if labels is not None:
            loss = self._total(cross_entropy(logits, labels, **kwargs), out)
        found = MaskedLMOutput(loss=loss, logits=logits, hidden_states=out.hidden_states)
        return found.to_tuple() if return_dict is False else found


class ChimeraForCausalLM(_LanguageModel, GenerationMixin):
    """Logits of the token after each position; `generate` decodes with the model's states."""

    decodes = True

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        past_key_values: ChimeraCache | None = None,
        labels: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast | tuple[Any, ...]:
        """Logits [b t v]; a loss with `labels` [b t], which are shifted here, −100 for none.

        Args:
            logits_to_keep: only of the last so many positions, or of these; 0 for all.

        The other arguments: see `ChimeraModel.forward`.
        """
        out = self.backbone(
            input_ids,
            attention_mask,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            output_hidden_states=output_hidden_states,
        )
        x = out.last_hidden_state
        if isinstance(logits_to_keep, Tensor):
            x = x[:, logits_to_keep]
        elif logits_to_keep:
            x = x[:, -logits_to_keep:]
        logits = self.head(x)
        loss = None
        if labels is not None:
            loss = cross_entropy(logits[:, :-1], labels[:, 1:], **kwargs)
            loss = self._total(loss, out)
        found = CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            past_key_values=out.past_key_values,
            hidden_states=out.hidden_states,
        )
        return found.to_tuple() if return_dict is False else found

    def _prepare_cache_for_generation(  # type: ignore[override]
        self, generation_config: Any, model_kwargs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> None:
        """Begin with an empty cache of this model's kind."""
        if generation_config.use_cache is not False:
            model_kwargs.setdefault("past_key_values", ChimeraCache())


class ChimeraForSequenceClassification(ChimeraPreTrainedModel):
    """A score per class of each sequence."""

    def __init__(self, config: ChimeraConfig) -> None:
        super().__init__(config)
        head: dict[str, Any] = {"pool": "auto", "dropout": 0.1, "hidden": True}
        head |= config.classifier or {}
        self.backbone = ChimeraModel(config)
        self.pool: Any = self.backbone.summary if head["pool"] == "auto" else head["pool"]
        self.classifier = ClassificationHead(
            self.backbone.width,
            config.num_labels or 1,
            dropout=head["dropout"],
            hidden=head["hidden"],
        )
        config.outputs = config.num_labels
        config.classifier = head
        self.finish()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        labels: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        **kwargs: Any,
    ) -> SequenceClassifierOutput | tuple[Any, ...]:
        """Logits [b c]; a loss with `labels`: classes [b], scores [b], or several classes [b c].

        The other arguments: see `ChimeraModel.forward`.
        """
        out = self.backbone(
            input_ids,
            attention_mask,
            inputs_embeds=inputs_embeds,
            output_hidden_states=output_hidden_states,
        )
        mask = None if attention_mask is None else attention_mask.bool()
        logits = self.classifier(pooled(out.last_hidden_state, mask, self.pool))
        loss = None
        if labels is not None:
            loss = with_auxiliary(
                of_labels(logits, labels, self.config), out.auxiliary, self.config
            )
        found = SequenceClassifierOutput(loss=loss, logits=logits, hidden_states=out.hidden_states)
        return found.to_tuple() if return_dict is False else found
