"""Hugging Face models with the interfaces of `LanguageModel` and `Backbone`.

An encoder has its masked-language-model head, a decoder its causal head; sequence classification
uses the backbone only. Weights are float32, as in Chimera's models, unless `dtype` says
otherwise; the trainer sets the precision.
`mask` becomes the attention mask; positions of a decoder count real tokens.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple, cast

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from chimera.config.groups import defaults
from chimera.contract import Out
from chimera.errors import UserError
from chimera.model import four_bit
from chimera.model.hf_settings import FOUR_BIT, HuggingFace
from chimera.model.language import Prediction
from chimera.ops.cross_entropy import cross_entropy

#: Model types whose position indices begin at pad_token_id + 1.
SHIFTED = ("roberta", "xlm-roberta", "camembert")
#: Groups of components in a layer; a Hugging Face model cannot use them.
LAYER_GROUPS = ("mixer", "norm", "quant", "ffn")


class Cache(NamedTuple):
    """Decoding state: transformers' cache, and the mask [b s] of its real tokens."""

    past: Any
    mask: Bool[Tensor, "b s"]


class HuggingFaceBody(nn.Module):
    """Token ids to hidden states, with the interface of `Backbone`."""

    component: ClassVar[str] = "pretrained"

    def __init__(self, inner: nn.Module, *, causal: bool) -> None:
        super().__init__()
        self.inner = inner
        self.causal = causal
        config = cast(Any, inner.config)
        self.width: int = config.hidden_size
        self.reads_segments: bool = getattr(config, "type_vocab_size", 0) > 1
        self.summary = "last" if causal else "first"
        if getattr(inner, "pooler", None) is not None:
            # The pooler's output is not used, so its weights would get no gradients.
            setattr(inner, "pooler", None)  # noqa: B010

    @property
    def torch_draws(self) -> str:
        """Where torch's generator draws dropout; see `contract.Mixer.torch_draws`."""
        return _torch_draws(self.inner)

    def forward(
        self,
        ids: Int[Tensor, "b t"],
        mask: Bool[Tensor, "b t"] | None = None,
        segments: Int[Tensor, "b t"] | None = None,
        draws: Int[Tensor, " b"] | None = None,
    ) -> Out:
        """Hidden states [b t d]; `segments` is 1 in the second text, `draws` is for adapters."""
        kwargs: dict[str, Any] = {} if segments is None else {"token_type_ids": segments}
        if self.causal:
            kwargs |= {"position_ids": positions(ids, mask), "use_cache": False}
        attention_mask = torch.ones_like(ids) if mask is None else mask.long()
        out = self.inner(input_ids=ids, attention_mask=attention_mask, **kwargs)
        return Out(out.last_hidden_state)


class HuggingFaceModel(nn.Module):
    """Token ids to vocabulary logits, with the interface of `LanguageModel`."""

    component: ClassVar[str] = "pretrained"

    def __init__(self, model: nn.Module, *, causal: bool) -> None:
        super().__init__()
        self.model = model
        self.causal = causal

    @property
    def backbone(self) -> HuggingFaceBody:
        """Backbone that shares the weights of this model."""
        return HuggingFaceBody(cast(Any, self.model).base_model, causal=self.causal)

    @property
    def torch_draws(self) -> str:
        """Where torch's generator draws dropout; see `contract.Mixer.torch_draws`."""
        return _torch_draws(self.model)

    def init_state(self, batch: int) -> Cache:
        """Empty decoding state for `batch` sequences."""
        from transformers import DynamicCache

        device = next(self.parameters()).device
        config = cast(Any, self.model).config
        empty = torch.zeros(batch, 0, dtype=torch.bool, device=device)
        return Cache(DynamicCache(config=config), empty)

    def check_positions(self, length: int) -> None:
        """As `check_length`."""
        self.check_length(length)

    def check_length(self, length: int) -> None:
        """Check that the model accepts `length` positions.

        Raises:
            UserError: the model's table of positions is shorter.
        """
        max_positions = _max_positions(cast(Any, self.model).config)
        if max_positions is not None and length > max_positions:
            raise UserError(
                f"model=hf: this model has {max_positions} positions, but the sequence has"
                f" {length}; use shorter sequences"
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
        draws: Int[Tensor, " b"] | None = None,
    ) -> Prediction:
        """Logits, or loss and accuracy if `targets` are given; see `LanguageModel.forward`.

        The head of a Hugging Face model computes all logits at one time, so `at_once` saves less
        memory than in `LanguageModel`.
        """
        real = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask
        kwargs: dict[str, Any] = {}
        new_state = None
        if state is not None:
            seen = state.mask.sum(1, keepdim=True)
            new_state = Cache(state.past, torch.cat([state.mask, real], 1))
            pos = seen + positions(ids, real)
            kwargs = {"past_key_values": state.past, "use_cache": True, "position_ids": pos}
        elif self.causal:
            kwargs = {"use_cache": False, "position_ids": positions(ids, mask)}
        attention_mask = real if new_state is None else new_state.mask
        logits = self.model(input_ids=ids, attention_mask=attention_mask.long(), **kwargs).logits
        if index is not None:
            logits = logits.flatten(0, 1).index_select(0, index)
        if targets is not None:
            rows = logits.flatten(0, -2)
            width = logits.shape[-1]
            loss, accuracy = cross_entropy(
                nn.Identity(), rows, targets, width=width, at_once=at_once
            )
            return Prediction(rows[:0], cast(Any, new_state), loss=loss, accuracy=accuracy)
        return Prediction(logits, cast(Any, new_state))


def _torch_draws(model: nn.Module) -> str:
    config = cast(Any, model).config.to_dict()
    shares = [value for key, value in config.items() if "dropout" in key or key.endswith("pdrop")]
    drops = any(isinstance(value, float) and value > 0 for value in shares)
    return "the Hugging Face body" if drops else ""


def positions(ids: Int[Tensor, "b t"], mask: Bool[Tensor, "b t"] | None) -> Int[Tensor, "b t"]:
    """Positions [b t]: index among the real tokens; padding repeats the last position."""
    if mask is None:
        return torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
    return (mask.long().cumsum(1) - 1).clamp(min=0)


def build(
    settings: HuggingFace, choices: Any, *, vocab_size: int, causal: bool | None
) -> HuggingFaceModel:
    """Load a Hugging Face model; the `builder` of model=hf.

    Args:
        settings: name and revision of the model, with or without pretrained weights.
        choices: choices of all groups; `LAYER_GROUPS` must have their defaults.
        vocab_size: entries of the tokenizer.
        causal: True for a decoder, False for an encoder, None for either.

    Raises:
        UserError: the model does not fit task, tokenizer or choices, or cannot be loaded.
    """
    for group in LAYER_GROUPS:
        if choices.names[group] != defaults()[group]:
            raise UserError(
                f"{group}={choices.names[group]} cannot be used with model=hf, which has its own"
                f" layers; omit {group}=, or use another model"
            )
    dtype = _dtype(settings, choices.names.get("adapter"))
    from transformers import AutoConfig

    path = str(settings.folder() or settings.name)
    config = _load(
        settings,
        lambda: AutoConfig.from_pretrained(
            path, revision=settings.revision, trust_remote_code=False
        ),
    )
    auto_class, is_causal = _auto_class(settings, config, causal)
    if config.vocab_size < vocab_size:
        raise UserError(
            f"model.name={settings.name} has {config.vocab_size} tokens, but the tokenizer has"
            f" {vocab_size}; use tokenizer=own"
        )
    max_positions = _max_positions(config)
    if max_positions is not None and settings.max_len > max_positions:
        raise UserError(
            f"model.name={settings.name} has {max_positions} positions, fewer than"
            f" model.max_len={settings.max_len}; lower model.max_len"
        )
    model = _loaded(settings, auto_class, path, config, dtype)
    if settings.gradient_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    return HuggingFaceModel(model.train(), causal=is_causal)


def _loaded(
    settings: HuggingFace, auto_class: Any, path: str, config: Any, dtype: torch.dtype
) -> Any:
    """The model with its weights; on the meta device, or by choice, with fresh ones."""
    quantised = settings.dtype == FOUR_BIT
    options = {"dtype": dtype, "trust_remote_code": False}
    if torch.empty(0).is_meta:
        model = _load(settings, lambda: auto_class.from_config(config, **options))
        return four_bit.outline(model) if quantised else model
    if quantised:
        settings.check_packages()
    _silence_transformers()
    if settings.pretrained:
        options |= {"config": config, "revision": settings.revision}
        options |= four_bit.options() if quantised else {}
        model = _load(settings, lambda: auto_class.from_pretrained(path, **options))
    else:
        model = _load(settings, lambda: auto_class.from_config(config, **options))
        model = four_bit.rounded(model) if quantised else model
    return four_bit.prepare(model) if quantised else model


def _dtype(settings: HuggingFace, adapter: str | None) -> torch.dtype:
    if settings.dtype is None:
        return torch.float32
    if adapter == "none":
        raise UserError(
            f"model.dtype={settings.dtype} is for frozen weights, as it is too coarse for training;"
            " use an adapter, such as adapter=lora, or model.dtype=null"
        )
    return torch.bfloat16


def _auto_class(settings: HuggingFace, config: Any, causal: bool | None) -> tuple[Any, bool]:
    """Auto class of transformers that loads the model, and True for a decoder."""
    from transformers import AutoModelForCausalLM, AutoModelForMaskedLM
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    )

    decodes = config.model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    encodes = config.model_type in MODEL_FOR_MASKED_LM_MAPPING_NAMES
    # transformers can load BERT as either; it was trained as an encoder.
    if encodes and not getattr(config, "is_decoder", False):
        decodes = False
    if not encodes and not decodes:
        raise UserError(
            f"model.name={settings.name} is a {config.model_type}, neither an encoder nor a decoder"
            " of text; use another model"
        )
    if causal is not None and causal != decodes:
        actual, required = ("decoder", "encoder") if decodes else ("encoder", "decoder")
        raise UserError(
            f"model.name={settings.name} is a {config.model_type}, {_a(actual)}; this task needs"
            f" {_a(required)}"
        )
    return (AutoModelForCausalLM if decodes else AutoModelForMaskedLM), decodes


def _max_positions(config: Any) -> int | None:
    """Length of a learned table of positions; None for computed positions."""
    if getattr(config, "rope_parameters", None) or getattr(config, "relative_attention", False):
        return None
    entries = getattr(config, "max_position_embeddings", None)
    shift = config.pad_token_id + 1 if config.model_type in SHIFTED else 0
    return None if entries is None else entries - shift


def _load(settings: HuggingFace, call: Any) -> Any:
    """Return call(); raise UserError if transformers cannot load the model."""
    try:
        return call()
    except (OSError, ValueError, KeyError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"model.name={settings.name} cannot be loaded ({reason})") from error


def _silence_transformers() -> None:
    """Switch off transformers' warnings about heads that a checkpoint lacks."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()


def _a(word: str) -> str:
    return f"an {word}" if word.startswith("e") else f"a {word}"
