"""Base class of the exported models, and the model without a head: hidden states of token ids."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn
from transformers import GenerationConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPast
from transformers.utils import cached_file

from chimera.export.hf.build import build
from chimera.export.hf.cache import ChimeraCache
from chimera.export.hf.configuration import ChimeraConfig
from chimera.model.backbone import Trunk
from chimera.quant.shared.layers import Embedding

#: What a trunk consists of.
TRUNK = (
    "embedding", "scale", "position", "embedding_norm", "blocks", "norm", "loops", "dropout",
    "gradient_checkpointing", "_limited",
)  # fmt: skip
#: Arguments of `from_pretrained` that say where the files are.
PLACE = ("cache_dir", "force_download", "local_files_only", "token", "revision", "subfolder")
#: A module's own tensors as its constructor made them, while weights are loaded.
MADE = "_as_constructed"


@dataclass
class ChimeraOutput(BaseModelOutputWithPast):
    """Hidden states; `auxiliary` holds the auxiliary losses by key, if there are any."""

    auxiliary: dict[str, Tensor] | None = None


@contextmanager
def _loading() -> Iterator[None]:
    ChimeraPreTrainedModel.loading = True
    try:
        yield
    finally:
        ChimeraPreTrainedModel.loading = False


class ChimeraPreTrainedModel(PreTrainedModel):
    """What all exported models share: how they are loaded, and their embeddings."""

    config_class = ChimeraConfig
    base_model_prefix = "backbone"
    main_input_name = "input_ids"
    supports_gradient_checkpointing = True
    _no_split_modules = ["Block"]  # noqa: RUF012 - as the library declares it
    _supports_sdpa = True
    _is_stateful = True  # a recurrent state cannot go back, as assisted generation wants
    loading: ClassVar[bool] = False

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any) -> Any:
        """See the library. Packed weights keep their form, whatever `dtype` is asked for."""
        config = kwargs.get("config")
        if config is None:
            place = {key: kwargs[key] for key in PLACE if key in kwargs}
            config = cls.config_class.from_pretrained(pretrained_model_name_or_path, **place)
        if config.packed:
            return cls._with_packed_weights(pretrained_model_name_or_path, config, kwargs)
        loaded = super().from_pretrained(pretrained_model_name_or_path, *args, **kwargs)
        model = loaded[0] if isinstance(loaded, tuple) else loaded
        for module in model.modules():
            module.__dict__.pop(MADE, None)
        return loaded

    @classmethod
    def _with_packed_weights(cls, path: Any, config: ChimeraConfig, kwargs: dict[str, Any]) -> Any:
        """A model with packed weights, whose layers unpack what they load."""
        from safetensors.torch import load_file

        place = {key: kwargs[key] for key in PLACE if key in kwargs}
        model = cls(config)
        file = cached_file(path, "model.safetensors", **place)
        tensors = load_file(str(file))
        prefix = f"{cls.base_model_prefix}."
        if isinstance(model, ChimeraModel):
            tensors = {name.removeprefix(prefix): t for name, t in tensors.items()}
        names = model.state_dict()
        missing = names.keys() - tensors.keys() - (model._tied_weights_keys or {}).keys()
        if any(not name.startswith("classifier.") for name in missing):
            raise ValueError(f"{file} lacks {', '.join(sorted(missing))}")
        model.load_state_dict({k: t for k, t in tensors.items() if k in names}, strict=False)
        if model.can_generate():
            with suppress(OSError):  # without the file the defaults serve
                model.generation_config = GenerationConfig.from_pretrained(path, **place)
        return cast(Any, model).to(kwargs.get("device_map") or "cpu").eval()

    @classmethod
    def get_init_context(cls, *args: Any, **kwargs: Any) -> list[Any]:
        """Contexts of the constructor: not on the meta device.

        Tables that are computed and not stored (rotations, slopes) would come out empty there.
        """
        contexts = super().get_init_context(*args, **kwargs)
        return [*(c for c in contexts if not isinstance(c, torch.device)), _loading()]

    def finish(self) -> None:
        """Last line of a constructor."""
        if self.loading:
            for module in self.modules():
                tensors = {**module._parameters, **module._buffers}
                module.__dict__[MADE] = {k: t for k, t in tensors.items() if t is not None}
        first: dict[int, str] = {}
        state = self.state_dict(keep_vars=True)
        tied = {n: first[id(t)] for n, t in state.items() if first.setdefault(id(t), n) != n}
        self._tied_weights_keys = tied
        self._keys_to_ignore_on_load_missing = list(tied)
        self.post_init()

    def _move_missing_keys_from_meta_to_device(
        self, missing_keys: Iterable[str], *args: Any, **kwargs: Any
    ) -> None:
        """Leave out names of tensors that are there under another name."""
        missing = set(missing_keys) - set(self._tied_weights_keys or {})
        super()._move_missing_keys_from_meta_to_device(cast(Any, missing), *args, **kwargs)

    def init_weights(self) -> None:
        """Keep what the constructor made; called by the library at the end of one."""

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Give a module's tensors that the file lacks the values of its constructor."""
        for name, tensor in module.__dict__.get(MADE, {}).items():
            current = getattr(module, name)
            if current is not tensor and not getattr(current, "_is_hf_initialized", False):
                current.copy_(tensor)

    def get_input_embeddings(self) -> nn.Module:
        """The token embedding."""
        return cast(nn.Module, self.base_model.embedding)

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace the token embedding, also as the matrix of a tied head."""
        if not hasattr(value, "table"):
            weight = cast(nn.Parameter, value.weight)
            value = Embedding(weight.shape[0], weight.shape[1])
            value.weight = weight
        self.base_model.embedding = value
        head = getattr(self, "head", None)
        if head is not None and head.table is not None:
            head.table = value.table


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
        self.finish()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        past_key_values: ChimeraCache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        **kwargs: Any,
    ) -> ChimeraOutput | tuple[Any, ...]:
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
            return_dict: False for a tuple.
            **kwargs: ignored (`position_ids` follow from the mask).

        Raises:
            ValueError: no ids, embeddings in their place, another model's cache.
        """
        if input_ids is None or inputs_embeds is not None:
            raise ValueError("this model takes input_ids, not inputs_embeds")
        if past_key_values is not None and not isinstance(past_key_values, ChimeraCache):
            raise ValueError(
                f"past_key_values is a {type(past_key_values).__name__}; this model has states of"
                " its own kind: pass use_cache=True and give back what it returns"
            )
        cache = past_key_values
        if cache is None and use_cache and self.config.is_decoder:
            cache = ChimeraCache()
        state = None
        if cache is not None:
            state = self.init_state(len(input_ids)) if cache.state is None else cache.state
        mask = _mask(attention_mask, input_ids.shape[1])
        wanted = (
            self.config.output_hidden_states
            if output_hidden_states is None
            else output_hidden_states
        )
        with _seen(self, bool(wanted)) as layers:
            out = self.hidden(input_ids, mask, state)
        if cache is not None:
            cache.state = out.state
        found = ChimeraOutput(
            last_hidden_state=out.y,
            past_key_values=cache,
            hidden_states=(*layers[:-1], out.y) if wanted else None,
            auxiliary=out.aux or None,
        )
        return found.to_tuple() if return_dict is False else found


def _mask(attention_mask: Tensor | None, tokens: int) -> Tensor | None:
    """Mask [b t] of these tokens; None if all are real."""
    if attention_mask is None:
        return None
    if attention_mask.ndim != 2:
        raise ValueError(f"attention_mask has {attention_mask.ndim} axes; this model takes [b t]")
    mask = attention_mask[:, -tokens:].bool()
    return None if bool(mask.all()) else mask


@contextmanager
def _seen(model: Trunk, wanted: bool) -> Iterator[list[Tensor]]:
    """Collect the embedding and the output of each logical layer during a pass."""
    layers: list[Tensor] = []
    hooks: list[Any] = []
    if wanted:
        first = model.blocks[0].register_forward_pre_hook(
            lambda _module, given: layers.append(given[0]) if not layers else None
        )
        hooks = [first]
        hooks += [
            b.register_forward_hook(lambda _m, _i, o: layers.append(o.y)) for b in model.blocks
        ]
    try:
        yield layers
    finally:
        for hook in hooks:
            hook.remove()
