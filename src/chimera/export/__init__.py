"""A trained run as a folder that loads anywhere this package is installed (SPEC Q7, A1-A3).

    from chimera.export import load
    model, tokenizer = load("folder")

`AutoModel.from_pretrained("folder", trust_remote_code=True)` gives the same model as one of the
transformers library. The files of a folder: `chimera.export.folder`.
"""

from chimera.export.folder import export
from chimera.export.load import Exported, load

__all__ = ["Exported", "export", "load"]
