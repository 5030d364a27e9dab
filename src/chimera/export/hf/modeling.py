"""Exported models of our parts as models of the transformers library: a class for each head."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.utils._pytree import tree_map
from transformers import GenerationConfig, PreTrainedModel
from transformers.cache_utils import Cache
from transformers.generation import GenerationMixin
from transformers.integrations.accelerate import get_device
from transformers.modeling_outputs import (
    BaseModelOutputWithPast,
    CausalLMOutputWithPast,
    MaskedLMOutput,
)
from transformers.utils import cached_file, can_return_tuple

from chimera.export.hf.configuration import ChimeraConfig
from chimera.export.hf.heads import Classifies, WithHead
from chimera.model.backbone import State, Trunk
from chimera.model.head import TableLayer
from chimera.model.hidden_states import hidden_states
from chimera.model.init import initialise
from chimera.model.language import LanguageModel
from chimera.model.stack import site_of, stack
from chimera.quant.shared.layers import Embedding
from chimera.quant.shared.packing import packed

#: The classes and functions that a configuration may name; an exported folder fills it below.
PARTS: dict[str, Any] = {}
#: Groups of the components that a model is built from.
GROUPS = ("mixer", "norm", "quant", "ffn", "position")
#: What a trunk consists of.
TRUNK = (
    "embedding", "scale", "position", "embedding_norm", "blocks", "norm", "loops", "dropout",
    "gradient_checkpointing", "_limited",
)  # fmt: skip
#: Arguments of `from_pretrained` that say where the files are.
PLACE = ("cache_dir", "force_download", "local_files_only", "token", "revision", "subfolder")


def made(node: Any) -> Any:
    """Build what a node of the configuration names: an object, or with `_partial_` a factory."""
    if isinstance(node, list):
        return [made(each) for each in node]
    if not isinstance(node, dict):
        return node
    steering = ("_target_", "_partial_", "callbacks")
    arguments = {key: made(value) for key, value in node.items() if key not in steering}
    if "_target_" not in node:
        return arguments
    target = PARTS[node["_target_"]]
    return partial(target, **arguments) if node.get("_partial_") else target(**arguments)


def build(config: ChimeraConfig) -> LanguageModel:
    """The language model of a configuration, with fresh weights."""
    chosen: Any = config.chimera
    factories = SimpleNamespace(**{group: made(chosen[group]) for group in GROUPS})
    shape: Any = SimpleNamespace(**(config.shape or {}))
    site = site_of(shape, causal=bool(config.is_decoder))
    model: Any = stack(site, shape, factories, vocab_size=config.vocab_size or 0)
    initialise(model, shape)
    return packed(model) if config.packed else model  # type: ignore[return-value]


class ChimeraCache(Cache):
    """The states of all layers: key-value caches, matrices of linear attention, and the like.

    `state` is None until the first pass, which makes it. A pass puts a new state in its place.
    """

    def __init__(self, state: State | None = None) -> None:
        super().__init__(layers=[])
        self.state = state

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Tokens so far, with padding."""
        return 0 if self.state is None else self.state.length

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Take the sequences of these numbers."""
        self.batch_select_indices(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Take the sequences of these numbers."""
        self._rows(lambda x: x.index_select(0, indices.to(x.device)))

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat each sequence."""
        self._rows(lambda x: x.repeat_interleave(repeats, 0))

    def reset(self) -> None:
        """Forget all tokens."""
        self.state = None

    def crop(self, *args: Any, **kwargs: Any) -> None:
        """Refuse: a recurrent state cannot forget its last tokens.

        Raises:
            ValueError: always.
        """
        raise ValueError("the state of this model cannot go back to fewer tokens")

    #: Of assisted generation, which takes back tokens.
    activate_past_recording = crop

    def _rows(self, change: Any) -> None:
        if self.state is not None:
            # A part that a mixer does without is a tensor of no sequences.
            slots = tree_map(
                lambda x: change(x) if torch.is_tensor(x) and len(x) else x, self.state.slots
            )
            self.state = self.state._replace(seen=change(self.state.seen), slots=slots)


@dataclass
class ChimeraOutput(BaseModelOutputWithPast):
    """Hidden states; `auxiliary` holds the auxiliary losses by key, if there are any."""

    auxiliary: dict[str, Tensor] | None = None


class ChimeraPreTrainedModel(PreTrainedModel):
    """What all exported models share: how they are loaded, and their embeddings."""

    config_class = ChimeraConfig
    base_model_prefix = "backbone"
    main_input_name = "input_ids"
    _input_embed_layer = "embedding"
    supports_gradient_checkpointing = True
    _no_split_modules = ["Block"]  # noqa: RUF012 - as the library declares it
    _supports_sdpa = True
    _is_stateful = True  # a recurrent state cannot go back, as assisted generation wants

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any) -> Any:
        """See the library. Packed weights keep their form, whatever `dtype` is asked for."""
        path = pretrained_model_name_or_path
        place = {key: kwargs[key] for key in PLACE if key in kwargs}
        config = kwargs.get("config") or cls.config_class.from_pretrained(path, **place)
        if not config.packed:
            return super().from_pretrained(path, *args, **kwargs)
        model: Any = cls(config)
        file = cached_file(path, "model.safetensors", **place)
        tensors = load_file(str(file))
        if isinstance(model, ChimeraModel):
            prefix = f"{cls.base_model_prefix}."
            tensors = {name.removeprefix(prefix): t for name, t in tensors.items()}
        missing = set(model.load_state_dict(tensors, strict=False).missing_keys)
        missing -= model._tied_weights_keys.keys()
        if any(not name.startswith("classifier.") for name in missing):
            raise ValueError(f"{file} lacks {', '.join(sorted(missing))}")
        if model.can_generate():
            with suppress(OSError):  # without the file the defaults serve
                model.generation_config = GenerationConfig.from_pretrained(path, **place)
        return model.to(kwargs.get("device_map") or "cpu").eval()

    @classmethod
    def get_init_context(cls, *args: Any, **kwargs: Any) -> list[Any]:
        """Contexts of the constructor: not on the meta device.

        Tables that are computed and not stored (rotations, slopes) would come out empty there.
        """
        contexts = super().get_init_context(*args, **kwargs)
        return [context for context in contexts if not isinstance(context, torch.device)]

    def _move_missing_keys_from_meta_to_device(
        self, missing_keys: Iterable[str], device_map: Any, *args: Any, **kwargs: Any
    ) -> None:
        """Move what the file lacks to its device, with the values that the constructor gave it."""
        for name in (*missing_keys, *(name for name, _ in self.named_non_persistent_buffers())):
            tensor = self.get_parameter_or_buffer(name)
            tensor.data = tensor.data.to(get_device(device_map, name, valid_torch_device=True))

    def post_init(self) -> None:
        """Name the tensors that are there under another name, too; ends a constructor."""
        first: dict[int, str] = {}
        state = self.state_dict(keep_vars=True)
        tied = {n: first[id(t)] for n, t in state.items() if first.setdefault(id(t), n) != n}
        self._tied_weights_keys = tied
        self._keys_to_ignore_on_load_missing = list(tied)
        super().post_init()

    def init_weights(self) -> None:
        """Keep what the constructor made; called by the library at the end of one."""

    def _init_weights(self, module: nn.Module) -> None:
        """Likewise, of what a file lacks."""

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace the token embedding, also as the matrix of a tied head."""
        if not hasattr(value, "table"):
            weight = cast(nn.Parameter, value.weight)
            value = Embedding(weight.shape[0], weight.shape[1])
            value.weight = weight
        super().set_input_embeddings(value)
        head = getattr(self, "head", None)
        if head is not None and head.table is not None:
            head.table = value.table
        elif head is not None and self.config.tie_word_embeddings:
            self.tie_weights()


class ChimeraModel(ChimeraPreTrainedModel, Trunk):
    """Token ids to hidden states.

    Args:
        config: of the model.
        trunk: the model's parts, if a head's class has built them.
    """

    def __init__(self, config: ChimeraConfig, trunk: Trunk | None = None) -> None:
        super().__init__(config)
        trunk = build(config).backbone if trunk is None else trunk
        for name in TRUNK:
            setattr(self, name, getattr(trunk, name))
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        past_key_values: ChimeraCache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        **kwargs: Any,
    ) -> ChimeraOutput:
        """Hidden states [b t d].

        Args:
            input_ids: [b t].
            attention_mask: [b t] or longer by the tokens in the cache, 0 for padding on any side.
            token_type_ids: ignored; the model was not trained with them.
            past_key_values: cache to continue; it is changed.
            inputs_embeds: refused.
            use_cache: return a cache; only a decoder has one. Without it, tokens are computed in
                the parallel form, as in training.
            output_hidden_states: also of the embedding and each logical layer; the last is normed.
            **kwargs: ignored (`position_ids` follow from the mask).

        Raises:
            ValueError: no ids, embeddings in their place, another model's cache.
        """
        if input_ids is None or inputs_embeds is not None:
            raise ValueError("this model takes input_ids, not inputs_embeds")
        cache = past_key_values
        if cache is not None and not isinstance(cache, ChimeraCache):
            raise ValueError(
                f"past_key_values is a {type(cache).__name__}; this model has states of"
                " its own kind: pass use_cache=True and give back what it returns"
            )
        if cache is None and use_cache and self.config.is_decoder:
            cache = ChimeraCache()
        state = None
        if cache is not None:
            state = self.init_state(len(input_ids)) if cache.state is None else cache.state
        wanted = output_hidden_states
        wanted = self.config.output_hidden_states if wanted is None else wanted
        collected: Any = hidden_states(self) if wanted else nullcontext([])
        with collected as layers:
            out = self.hidden(input_ids, _mask(attention_mask, input_ids.shape[1]), state)
        if cache is not None:
            cache.state = out.state
        return ChimeraOutput(
            last_hidden_state=out.y,
            past_key_values=cache,
            hidden_states=(*layers[:-1], out.y) if wanted else None,
            auxiliary=out.aux or None,
        )


def _mask(attention_mask: Tensor | None, tokens: int) -> Tensor | None:
    """Mask [b t] of these tokens; None if all are real."""
    if attention_mask is None:
        return None
    if attention_mask.ndim != 2:
        raise ValueError(f"attention_mask has {attention_mask.ndim} axes; this model takes [b t]")
    mask = attention_mask[:, -tokens:].bool()
    return None if bool(mask.all()) else mask


class _WithHead(WithHead, ChimeraPreTrainedModel):
    """A head on `ChimeraModel`."""

    backbone: ChimeraModel

    @property
    def states(self) -> ChimeraModel:
        """What computes the hidden states."""
        return self.backbone


class _LanguageModel(_WithHead):
    """Hidden states and the vocabulary head."""

    def __init__(self, config: ChimeraConfig) -> None:
        super().__init__(config)
        model = build(config)
        self.backbone = ChimeraModel(config, model.backbone)
        self.head = model.head
        embedding = model.backbone.embedding
        if self.head.table is not None and isinstance(embedding, nn.Embedding):
            self.head.add_layer(embedding, tied=config.tie_word_embeddings)
        self.post_init()

    def logits(self, out: Any, mask: Tensor | None, kept: Any) -> Tensor:
        return self.head(out.last_hidden_state[:, kept])

    def get_output_embeddings(self) -> nn.Module | None:
        """The head's matrix; None where it is an embedding's packed table."""
        return self.head.output

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None:
        """Replace the head's matrix."""
        old = self.head.output
        if isinstance(old, TableLayer) and type(new_embeddings) is nn.Linear:
            old.weight = new_embeddings.weight
            old.out_features = new_embeddings.out_features
        else:
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


class ChimeraForMaskedLM(_LanguageModel):
    """Logits of the token at each position."""

    result = MaskedLMOutput


class ChimeraForCausalLM(_LanguageModel, GenerationMixin):  # type: ignore[misc]
    """Logits of the token after each position; `generate` decodes with the model's states."""

    result = CausalLMOutputWithPast

    def new_cache(self) -> ChimeraCache:
        """An empty cache of this model's kind."""
        return ChimeraCache()


class ChimeraForSequenceClassification(Classifies, _WithHead):
    """A score per class of each sequence."""

    def __init__(self, config: ChimeraConfig) -> None:
        super().__init__(config)
        self.backbone = ChimeraModel(config)
        self.add_head(self.backbone.width, self.backbone.summary)
        self.post_init()
