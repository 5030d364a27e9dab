"""LiZAttention in a pretrained Hugging Face causal model (SPEC A4; TPTT 3.4): `chimera.graft`.

    from chimera import graft

    model = graft.liza("meta-llama/Llama-3.2-1B")

`chimera.adapter.graft.pretrained` documents the functions.
"""

from chimera.adapter.graft.pretrained import liza, load, memories, save, set_weight

__all__ = ["liza", "load", "memories", "save", "set_weight"]
