"""Configuration of an exported model as the transformers library reads it from config.json.

No default equals a value that an export writes: `save_pretrained` leaves out equal ones, and
`chimera.export.load` wants them all.
"""

from __future__ import annotations

import json
from typing import Any, ClassVar

from transformers import PretrainedConfig


class ChimeraConfig(PretrainedConfig):
    """What the model is built from.

    Args:
        chimera: configuration of the run; its nodes mixer, norm, quant, ffn and position are built.
        body: configuration of a body of transformers; None for one of our parts.
        shape: settings of `model=`, every one of them.
        packed: whether ternary weights are stored in 1.6 bits.
        outputs: classes, or 1 for a regression; 0 for a language model.
        classifier: pooling, dropout and dense layer of the classifier's head.
        auxiliary: factor of each auxiliary loss by key (load balance of experts, and the like).
        adapter: what became of the run's adapter, in words.
        tied: names of tensors that are stored under another name.
        is_decoder: whether a token sees only those before it.
    """

    model_type: ClassVar[str] = "chimera"
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["past_key_values"]

    chimera: dict[str, Any] | None = None
    body: dict[str, Any] | None = None
    shape: dict[str, Any] | None = None
    packed: bool | None = None
    outputs: int | None = None
    classifier: dict[str, Any] | None = None
    auxiliary: dict[str, float] | None = None
    adapter: str | None = None
    tied: dict[str, str] | None = None
    vocab_size: int | None = None
    hidden_size: int | None = None
    num_hidden_layers: int | None = None
    num_attention_heads: int | None = None
    max_position_embeddings: int | None = None
    is_decoder: bool | None = None
    use_cache: bool = True
    tie_word_embeddings: bool = False
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | None = None

    def to_json_string(self, use_diff: bool = True) -> str:
        """As the library's, which sorts keys; a router numbers its members by their order."""
        about = json.loads(super().to_json_string(use_diff))
        if self.chimera is not None:
            about["chimera"] = self.chimera
        return json.dumps(about, indent=2) + "\n"
