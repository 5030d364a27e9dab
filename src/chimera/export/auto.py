"""Address of the transformers classes that folders exported by the first release import."""

from chimera.export.hf.model import ChimeraConfig, ChimeraModel

__all__ = ["ChimeraConfig", "ChimeraModel"]
