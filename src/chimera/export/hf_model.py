"""An exported model that only this package can build, as a model of the transformers library."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import SequenceClassifierOutput

from chimera.export.hf.configuration import ChimeraConfig
from chimera.export.load import load


class ChimeraModel(PreTrainedModel):
    """Loads itself from an exported folder; `inner` is the model, `tokenizer` its tokenizer."""

    config_class = ChimeraConfig
    inner: nn.Module
    tokenizer: Any

    @classmethod
    def from_pretrained(  # type: ignore[override]
        cls, pretrained_model_name_or_path: str | Path, *args: Any, **kwargs: Any
    ) -> ChimeraModel:
        """The folder, or a repository of the hub that holds one.

        Not the library's own way: that builds on the meta device and would leave tables that are
        computed and not stored (rotations, slopes) without their values.
        """
        folder = Path(pretrained_model_name_or_path)
        if not folder.is_dir():
            from huggingface_hub import snapshot_download

            folder = Path(snapshot_download(str(pretrained_model_name_or_path)))
        model = cls(kwargs.get("config") or ChimeraConfig.from_pretrained(folder))
        model.inner, model.tokenizer = load(folder)
        return model.eval()

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        **_: Any,
    ) -> SequenceClassifierOutput:
        """Logits [b t v] of a language model, [b c] of a classifier."""
        mask = None if attention_mask is None else attention_mask.bool()
        reads = getattr(self.inner, "reads_segments", False)  # a classifier's, where it does
        extra = {"segments": token_type_ids} if reads else {}
        return SequenceClassifierOutput(logits=self.inner(input_ids, mask, **extra).logits)


__all__ = ["ChimeraConfig", "ChimeraModel"]
