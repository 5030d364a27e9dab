"""Settings of `model=hf`: any Hugging Face encoder or decoder. Does not import torch."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar, Literal

from chimera.data.source import hub
from chimera.data.tokenizer.own import require_transformers
from chimera.errors import UserError
from chimera.paths import named
from chimera.types import PositiveInt

#: The `dtype` of weights of 4 bits; see `model.four_bit`.
FOUR_BIT = "nf4"
#: Files of which one has a model's weights, or an index of its weight files.
_WEIGHTS = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)


@dataclass(frozen=True, kw_only=True)
class HuggingFace:
    """Model of the transformers library.

    Args:
        name: `owner/name` on the hub, or a local folder.
        revision: branch, tag or commit on the hub.
        pretrained: load pretrained weights; False uses its configuration with random weights.
        dtype: of the frozen weights: `bf16`; `nf4` for linear layers of 4 bits beside bf16, on a
            GPU; None for float32. An adapter's are float32.
        max_len: tokens per sequence.
        gradient_checkpointing: recompute each block in the backward pass.
    """

    builder: ClassVar[str] = "chimera.model.hf.build"

    name: str | None = None
    revision: str | None = None
    pretrained: bool = True
    dtype: Literal["bf16", "nf4"] | None = None
    max_len: PositiveInt = 128
    gradient_checkpointing: bool = False

    def check(self) -> None:
        """Check that the model exists, without loading it.

        Raises:
            UserError: the model, or a file of it, is missing.
        """
        if self.name is None:
            raise UserError("model=hf needs model.name=<owner/name on the hub, or a local folder>")
        require_transformers("model=hf")
        self.check_packages()
        folder = self.folder()
        if folder is not None:
            files = ["config.json", *([" or ".join(_WEIGHTS[::2])] if self.pretrained else [])]
            exist = [(folder / "config.json").is_file(), _has_weights(folder)]
            missing = [file for file, exists in zip(files, exist, strict=False) if not exists]
            if missing:
                raise UserError(f"model.name={self.name} has no {' and no '.join(missing)}")
        elif not self._cached() and not hub.reachable():
            raise UserError(
                f"model.name={self.name} is not on this machine and the hub cannot be reached;"
                f" download it once while connected (hf download {self.name}), or use"
                " model.name=<folder of the model>"
            )

    def check_packages(self) -> None:
        """Check that the packages that load weights of 4 bits are installed.

        Raises:
            UserError: with the command that installs them.
        """
        missing = [name for name in ("bitsandbytes", "accelerate") if find_spec(name) is None]
        if self.dtype == FOUR_BIT and missing:
            raise UserError(
                f"model.dtype={self.dtype} needs a GPU, {' and '.join(missing)}: pip install -c"
                " constraints.txt '.[four_bit]'"
            )

    def folder(self) -> Path | None:
        """Local folder of the model; None for a model of the hub.

        Raises:
            UserError: `name` is neither a folder nor a hub id.
        """
        folder = named(str(self.name))
        if folder.is_dir():
            return folder
        if hub.is_id(str(self.name)):
            return None
        raise UserError(
            f"model.name={self.name} does not exist; name a folder, or owner/name on the hub"
        )

    def _cached(self) -> bool:
        from huggingface_hub import try_to_load_from_cache

        files = ("config.json", *(_WEIGHTS if self.pretrained else ()))
        cached = [
            isinstance(try_to_load_from_cache(str(self.name), f, revision=self.revision), str)
            for f in files
        ]
        return cached[0] and (any(cached[1:]) or not self.pretrained)


def _has_weights(folder: Path) -> bool:
    return any((folder / name).is_file() for name in _WEIGHTS)
