"""Hugging Face models with the interface of our own `LanguageModel` and `Backbone`.

An encoder is loaded with its masked-language-model head, a decoder with its causal one; sequence
classification takes the body alone. Weights are float32, as our own are; the trainer sets the
precision. `mask` is their attention mask; a decoder's positions count real tokens.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple, cast

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from chimera.config.groups import defaults
from chimera.contract import Out
from chimera.errors import UserError
from chimera.model.hf_settings import HuggingFace
from chimera.model.language import Prediction
from chimera.ops.cross_entropy import cross_entropy

#: Kinds whose positions begin behind the padding token's number.
SHIFTED = ("roberta", "xlm-roberta", "camembert")
#: Groups that make up a layer. A Hugging Face model has layers of its own.
LAYER_GROUPS = ("mixer", "norm", "quant", "ffn")


class Cache(NamedTuple):
    """Decoding state: transformers' cache, and which of its tokens are real [b s]."""

    past: Any
    mask: Bool[Tensor, "b s"]


class HuggingFaceBody(nn.Module):
    """Ids to hidden states, in the place of our `Backbone`."""

    component: ClassVar[str] = "pretrained"

    def __init__(self, inner: nn.Module, *, causal: bool) -> None:
        super().__init__()
        self.inner, self.causal = inner, causal
        config = cast(Any, inner.config)
        self.width: int = config.hidden_size
        self.reads_segments: bool = getattr(config, "type_vocab_size", 0) > 1
        self.summary = "last" if causal else "first"
        if getattr(inner, "pooler", None) is not None:
            # Its output would not be read, nor its weights trained.
            setattr(inner, "pooler", None)  # noqa: B010

    def forward(
        self,
        ids: Int[Tensor, "b t"],
        mask: Bool[Tensor, "b t"] | None = None,
        segments: Int[Tensor, "b t"] | None = None,
    ) -> Out:
        """Hidden states [b t d]."""
        extra: dict[str, Any] = {} if segments is None else {"token_type_ids": segments}
        if self.causal:
            extra |= {"position_ids": positions(ids, mask), "use_cache": False}
        whole = torch.ones_like(ids) if mask is None else mask.long()
        out = self.inner(input_ids=ids, attention_mask=whole, **extra)
        return Out(out.last_hidden_state)


class HuggingFaceModel(nn.Module):
    """Ids to vocabulary logits, in the place of our `LanguageModel`."""

    component: ClassVar[str] = "pretrained"

    def __init__(self, model: nn.Module, *, causal: bool) -> None:
        super().__init__()
        self.model, self.causal = model, causal

    @property
    def backbone(self) -> HuggingFaceBody:
        """The body alone, with the same weights."""
        return HuggingFaceBody(cast(Any, self.model).base_model, causal=self.causal)

    def init_state(self, batch: int) -> Cache:
        """A fresh decoding state for `batch` sequences."""
        from transformers import DynamicCache

        device = next(self.parameters()).device
        config = cast(Any, self.model).config
        empty = torch.zeros(batch, 0, dtype=torch.bool, device=device)
        return Cache(DynamicCache(config=config), empty)

    def check_reach(self, length: int) -> None:
        """Raise if the model's table of positions ends before `length`.

        Raises:
            UserError: naming its length.
        """
        most = _reach(cast(Any, self.model).config)
        if most is not None and length > most:
            raise UserError(
                f"model=hf of this kind knows {most} positions, the sequence has {length};"
                " take shorter ones"
            )

    def forward(
        self,
        ids: Int[Tensor, "b t"],
        mask: Bool[Tensor, "b t"] | None = None,
        *,
        index: Int[Tensor, " n"] | None = None,
        state: Cache | None = None,
        targets: Int[Tensor, " n"] | None = None,
        at_once: int = 1 << 25,
    ) -> Prediction:
        """Logits at `index`, flat positions in b·t order; everywhere if it is None.

        With `targets`: loss and accuracy, as in `LanguageModel`. The head of a Hugging Face model
        computes all logits at one time, so `at_once` saves less.
        """
        real = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask
        extra: dict[str, Any] = {}
        after = None
        if state is not None:
            seen = state.mask.sum(1, keepdim=True)
            after = Cache(state.past, torch.cat([state.mask, real], 1))
            at = seen + positions(ids, real)
            extra = {"past_key_values": state.past, "use_cache": True, "position_ids": at}
        elif self.causal:
            extra = {"use_cache": False, "position_ids": positions(ids, mask)}
        whole = real if after is None else after.mask
        logits = self.model(input_ids=ids, attention_mask=whole.long(), **extra).logits
        if index is not None:
            logits = logits.flatten(0, 1).index_select(0, index)
        if targets is not None:
            rows, width = logits.flatten(0, -2), logits.shape[-1]
            loss, hits = cross_entropy(nn.Identity(), rows, targets, width=width, at_once=at_once)
            return Prediction(rows[:0], cast(Any, after), loss=loss, accuracy=hits)
        return Prediction(logits, cast(Any, after))


def positions(ids: Int[Tensor, "b t"], mask: Bool[Tensor, "b t"] | None) -> Int[Tensor, "b t"]:
    """Index among the real tokens; padding repeats the position before it."""
    if mask is None:
        return torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
    return (mask.long().cumsum(1) - 1).clamp(min=0)


def build(
    settings: HuggingFace, choices: Any, *, vocab_size: int, causal: bool | None
) -> HuggingFaceModel:
    """Load the model that settings name.

    Args:
        settings: name, revision, with or without its weights.
        choices: of the six groups; those that make up a layer have to be the default ones.
        vocab_size: of the tokenizer.
        causal: what the task needs; None takes either.

    Raises:
        UserError: it does not fit the task, the tokenizer or the choices, or cannot be loaded.
    """
    for group in LAYER_GROUPS:
        if choices.names[group] != defaults()[group]:
            raise UserError(
                f"{group}={choices.names[group]} cannot be put into model=hf, whose layers are its"
                f" own; leave it out, or take another model"
            )
    from transformers import AutoConfig

    place = str(settings.folder() or settings.name)
    config = _tried(settings, lambda: AutoConfig.from_pretrained(place, revision=settings.revision))
    kind, is_causal = _kind(settings, config, causal)
    if config.vocab_size < vocab_size:
        raise UserError(
            f"model.name={settings.name} knows {config.vocab_size} tokens, the tokenizer has"
            f" {vocab_size}; use tokenizer=own"
        )
    reach = _reach(config)
    if reach is not None and settings.max_len > reach:
        raise UserError(
            f"model.name={settings.name} knows {reach} positions; model.max_len={settings.max_len}"
            " is too long for it"
        )
    on_meta = torch.empty(0).is_meta
    if on_meta or not settings.pretrained:
        model = _tried(settings, lambda: kind.from_config(config))
    else:
        _quiet()
        model = _tried(
            settings,
            lambda: kind.from_pretrained(
                place, config=config, revision=settings.revision, dtype=torch.float32
            ),
        )
    if settings.gradient_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    return HuggingFaceModel(model.train(), causal=is_causal)


def _kind(settings: HuggingFace, config: Any, causal: bool | None) -> tuple[Any, bool]:
    """The transformers class that loads the model, and whether it is a decoder."""
    from transformers import AutoModelForCausalLM, AutoModelForMaskedLM
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    )

    decodes = config.model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    encodes = config.model_type in MODEL_FOR_MASKED_LM_MAPPING_NAMES
    # BERT can be loaded as either; it was trained as an encoder.
    if encodes and not getattr(config, "is_decoder", False):
        decodes = False
    if not encodes and not decodes:
        raise UserError(
            f"model.name={settings.name} is a {config.model_type}, neither an encoder nor a decoder"
            " of text; take another model"
        )
    if causal is not None and causal != decodes:
        is_, need = ("decoder", "encoder") if decodes else ("encoder", "decoder")
        raise UserError(
            f"model.name={settings.name} is a {config.model_type}, {_a(is_)}; this task needs"
            f" {_a(need)}"
        )
    return (AutoModelForCausalLM if decodes else AutoModelForMaskedLM), decodes


def _reach(config: Any) -> int | None:
    """Length of a learned table of positions; None where positions are computed."""
    if getattr(config, "rope_parameters", None) or getattr(config, "relative_attention", False):
        return None
    entries = getattr(config, "max_position_embeddings", None)
    shift = config.pad_token_id + 1 if config.model_type in SHIFTED else 0
    return None if entries is None else entries - shift


def _tried(settings: HuggingFace, call: Any) -> Any:
    try:
        return call()
    except (OSError, ValueError, KeyError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"model.name={settings.name} cannot be loaded ({reason})") from error


def _quiet() -> None:
    """Silence transformers' report on heads that a checkpoint does not hold."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()


def _a(word: str) -> str:
    return f"an {word}" if word.startswith("e") else f"a {word}"
