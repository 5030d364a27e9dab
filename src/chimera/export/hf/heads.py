"""What exported models with a head share: one forward pass, and the head of a classifier.

The loss of `labels` is the library's own for the class (`ForMaskedLM`, `ForCausalLM`, …), plus the
auxiliary losses of the run by their factors.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from torch import Tensor
from transformers.modeling_outputs import SequenceClassifierOutput
from transformers.utils import can_return_tuple

from chimera.model.classifier import ClassificationHead, pooled


class WithHead:
    """A forward pass from token ids to logits and a loss."""

    config: Any
    loss_function: Any
    #: Method of ids, mask, segments and other arguments of `forward`: the output below the head.
    states: Any
    #: Class of what `forward` returns.
    result: Any

    def logits(self, out: Any, mask: Tensor | None, kept: Any) -> Tensor:
        """Logits of what `states` returned; a language model's at the positions `kept` only."""
        raise NotImplementedError

    def new_cache(self) -> Any:
        """An empty cache, with which `generate` begins."""
        raise NotImplementedError

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        labels: Tensor | None = None,
        logits_to_keep: int | Tensor = 0,
        num_items_in_batch: Tensor | int | None = None,
        **kwargs: Any,
    ) -> Any:
        """Logits [b t v] of tokens or [b c] of classes; a loss with `labels`.

        Args:
            input_ids: [b t].
            attention_mask: [b t], 0 for padding.
            token_type_ids: 1 in the second text, for bodies that read it.
            labels: tokens [b t], −100 for none, which a decoder shifts; classes [b], scores [b],
                or several classes [b c].
            logits_to_keep: only of the last so many positions, or of these; 0 for all.
            num_items_in_batch: what a sum of losses is divided by; None: the labels that there are.
            **kwargs: of the model below the head (`past_key_values`, `use_cache`,
                `output_hidden_states`).
        """
        out = self.states(input_ids, attention_mask, token_type_ids, return_dict=True, **kwargs)
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.logits(out, attention_mask, kept)
        loss = None
        if labels is not None:
            loss = self.loss_function(
                logits=logits,
                labels=labels,
                num_items_in_batch=num_items_in_batch,
                vocab_size=logits.shape[-1],
                pooled_logits=logits.float(),
                config=self.config,
            )
            auxiliary = out.get("auxiliary") or {}
            for key, factor in (self.config.auxiliary or {}).items():
                loss = loss + factor * auxiliary.get(key, 0.0)
        names = {field.name for field in fields(self.result)}
        more = {name: out.get(name) for name in names & {"past_key_values", "hidden_states"}}
        return self.result(loss=loss, logits=logits, **more)

    def _prepare_cache_for_generation(
        self, generation_config: Any, model_kwargs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> None:
        """Begin with a cache of this model's kind; called by the library's `generate`."""
        if generation_config.use_cache is not False:
            model_kwargs.setdefault("past_key_values", self.new_cache())


class Classifies(WithHead):
    """A score per class of each sequence."""

    result: Any = SequenceClassifierOutput

    def add_head(self, width: int, summary: str) -> None:
        """Add the head that the configuration describes.

        Args:
            width: of the hidden states.
            summary: pooling of the model, for `auto`.
        """
        head = {"pool": "auto", "dropout": 0.1, "hidden": True} | (self.config.classifier or {})
        self.config.classifier = head
        self.config.outputs = self.config.num_labels
        self.pool: Any = summary if head["pool"] == "auto" else head["pool"]
        self.classifier = ClassificationHead(
            width, self.config.num_labels or 1, dropout=head["dropout"], hidden=head["hidden"]
        )

    def logits(self, out: Any, mask: Tensor | None, kept: Any) -> Tensor:
        mask = None if mask is None else mask.bool()
        return self.classifier(pooled(out.last_hidden_state, mask, self.pool))
