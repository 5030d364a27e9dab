"""Settings of `model=hf`: any Hugging Face encoder or decoder as the backbone. Free of torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from chimera.data.source import hub
from chimera.data.tokenizer.own import require_transformers
from chimera.errors import UserError
from chimera.types import PositiveInt

#: One of these holds a model's weights, or says which files do.
_WEIGHTS = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)


@dataclass(frozen=True, kw_only=True)
class HuggingFace:
    """A model of the transformers library.

    Args:
        name: `owner/name` on the hub or a local folder.
        revision: branch, tag or commit on the hub.
        pretrained: take its weights; otherwise its shape only, with fresh ones.
        max_len: tokens per sequence.
        gradient_checkpointing: recompute each block in the backward pass.
    """

    builder: ClassVar[str] = "chimera.model.hf.build"

    name: str | None = None
    revision: str | None = None
    pretrained: bool = True
    max_len: PositiveInt = 128
    gradient_checkpointing: bool = False

    def check(self) -> None:
        """Look for the model without loading it.

        Raises:
            UserError: naming what to fetch.
        """
        if self.name is None:
            raise UserError("model=hf needs model.name=<owner/name on the hub, or a local folder>")
        require_transformers("model=hf")
        folder = self.folder()
        if folder is not None:
            wanted = ["config.json", *([" or ".join(_WEIGHTS[::2])] if self.pretrained else [])]
            exist = [(folder / "config.json").is_file(), _any(folder)]
            missing = [w for w, exists in zip(wanted, exist, strict=False) if not exists]
            if missing:
                raise UserError(f"model.name={self.name} holds no {' and no '.join(missing)}")
        elif not self._cached() and not hub.reachable():
            raise UserError(
                f"model.name={self.name} is not on this machine and the hub cannot be reached;"
                f" fetch it once while connected (hf download {self.name}), or give model.name=<a"
                " folder that holds it>"
            )

    def folder(self) -> Path | None:
        """The local folder; None for one of the hub.

        Raises:
            UserError: it is neither.
        """
        folder = Path(str(self.name)).expanduser()
        if folder.is_dir():
            return folder
        if hub.is_id(str(self.name)):
            return None
        raise UserError(f"model.name={self.name} is not there; name a folder or owner/name")

    def _cached(self) -> bool:
        from huggingface_hub import try_to_load_from_cache

        files = ("config.json", *(_WEIGHTS if self.pretrained else ()))
        kept = [
            isinstance(try_to_load_from_cache(str(self.name), f, revision=self.revision), str)
            for f in files
        ]
        return kept[0] and (any(kept[1:]) or not self.pretrained)


def _any(folder: Path) -> bool:
    return any((folder / name).is_file() for name in _WEIGHTS)
