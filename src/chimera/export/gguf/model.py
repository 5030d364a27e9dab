"""A language model as one of llama.cpp's architectures: its tensors and settings under their names.

    x += W_o attention(RMSNorm(x));   x += W_down(act(W_gate x̄) ⊙ W_up x̄), x̄ = RMSNorm(x)
    logits = W RMSNorm(x)

    llama    a SiLU gate
    arcee    squared ReLU without a gate
    bitnet   a SiLU gate, an RMSNorm before `attn_output` and `ffn_down` too, one table for
             embeddings and logits; pairs channel i of a head with i + k/2 where it rotates

What differs from ours is folded into the weights: the factor of the embeddings, loops over blocks
(written several times), the layout of rotated channels. A norm of ours before layers with a norm
of their own (norm=rmsnorm quant=bitnet158) becomes one norm, because bitnet has no two in a row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from chimera.contract_gguf import GGUF, NotInGGUF, in_gguf, joined
from chimera.errors import UserError
from chimera.model.backbone import Block, Trunk
from chimera.model.head import Head
from chimera.model.language import LanguageModel

#: Architectures, in the order of preference.
ARCHITECTURES = ("llama", "arcee", "bitnet")
#: Those that pair channel i with i + k/2; ours and the others pair 2i with 2i + 1.
HALVES = frozenset({"bitnet"})
#: Norm of a block, by the layers that read its result.
BEFORE = {"attn_norm": ("attn_q", "attn_k", "attn_v"), "ffn_norm": ("ffn_up", "ffn_gate")}
#: Norm inside a block, by the layer behind it.
INSIDE = {"attn_sub_norm": "attn_output", "ffn_sub_norm": "ffn_down"}
ROTATED = {"attn_q": "attention.head_count", "attn_k": "attention.head_count_kv"}


@dataclass
class Converted:
    """A model in llama.cpp's words.

    Args:
        architecture: of llama.cpp.
        keys: settings without the architecture.
        tensors: float32, by name.
        uneven: where two norms became one, the largest spread of a norm's weights (their standard
            deviation by their root mean square); 0 if none did or all weights are equal.
    """

    architecture: str
    keys: dict[str, Any]
    tensors: dict[str, Tensor]
    uneven: float = 0.0


def convert(model: nn.Module, *, max_len: int) -> Converted:
    """Convert a decoder.

    Args:
        model: trained, its adapter merged.
        max_len: tokens of a sequence in training.

    Raises:
        NotInGGUF: llama.cpp does not know a component, or a setting of it.
        UserError: llama.cpp has no architecture with all properties of the model.
    """
    if not isinstance(model, LanguageModel) or not isinstance(model.backbone, Trunk):
        raise UserError(
            "llama.cpp's models here are decoders of our parts (task=causal_lm); for a Hugging Face"
            " body or a classifier, export to a folder"
        )
    trunk = model.backbone
    if "embed" in trunk.position.provides:
        raise NotInGGUF("position")
    if trunk.embedding_norm is not None:
        raise NotInGGUF("norm", "a norm of the embeddings")
    blocks = [_block(block) for block in trunk.blocks]
    table = in_gguf(trunk.embedding, "quant")
    head = _head(model.head)
    final = in_gguf(trunk.norm, "norm")
    if "weight" not in final.tensors:
        raise NotInGGUF("norm", "no norm before the head; use norm=rmsnorm")
    whole = joined({}, *(GGUF(keys=p.keys, needs=p.needs) for p in (*blocks, table, head, final)))
    made = Converted(_architecture(whole.needs), dict(whole.keys), {})
    made.keys |= {
        "context_length": max_len,
        "embedding_length": trunk.width,
        "block_count": len(blocks) * trunk.loops,
        "vocab_size": model.head.vocab_size,
    }
    scale = 1.0 if trunk.scale is None else trunk.scale.scale
    # The table is times the factor of the embeddings; where it is the head too, the norm before
    # the head undoes it.
    tied = model.head.output is None
    weights = {
        "token_embd.weight": table.tensors["weight"] * scale,
        "output_norm.weight": final.tensors["weight"] / (scale if tied else 1.0),
    }
    if not tied:
        weights["output.weight"] = head.tensors["weight"]
    for number in range(len(blocks) * trunk.loops):
        layer = _layer(blocks[number % len(blocks)], made)
        weights |= {f"blk.{number}.{name}": tensor for name, tensor in layer.items()}
    made.tensors = {n: t.detach().float().cpu().contiguous() for n, t in weights.items()}
    return made


def _block(module: nn.Module) -> GGUF:
    """A block's layers and norms, the norms' tensors as `attn_norm.weight`, `ffn_norm.weight`."""
    assert isinstance(module, Block)
    if module.ffn is None:
        raise NotInGGUF("ffn")
    if module.placement != "pre":
        raise NotInGGUF("norm", f"model.norm_placement={module.placement}")
    norms = {
        "attn_norm": in_gguf(module.mixer_norm, "norm"),
        "ffn_norm": in_gguf(module.ffn_norm, "norm"),
    }
    return joined(norms, in_gguf(module.mixer, "mixer"), in_gguf(module.ffn, "ffn"))


def _head(head: Head) -> GGUF:
    if head.transform is not None or head.bias is not None:
        raise UserError(
            "model.head_transform=true puts a layer and biases before the logits, which llama.cpp"
            " does not know; train with model.head_transform=false"
        )
    if head.output is None:
        return GGUF()
    apart = GGUF(needs={"a head with a table of its own": frozenset({"llama", "arcee"})})
    return joined({}, in_gguf(head.output, "quant"), apart)


def _architecture(needs: Mapping[str, frozenset[str]]) -> str:
    """The first architecture with all properties.

    Raises:
        UserError: there is none.
    """
    fitting = [a for a in ARCHITECTURES if all(a in have for have in needs.values())]
    if not fitting:
        said = ", ".join(f"{what} ({' or '.join(sorted(a))})" for what, a in needs.items())
        raise UserError(
            f"llama.cpp has no architecture with all of: {said}; change one of these parts, or"
            " export to a folder"
        )
    return fitting[0]


def _layer(block: GGUF, made: Converted) -> dict[str, Tensor]:
    """Tensors of a block for an architecture."""
    tensors = {n: t.detach() for n, t in block.tensors.items()}
    inner = {n.removesuffix(".norm") for n in tensors if n.endswith(".norm")}
    layer = {n: t for n, t in tensors.items() if not n.endswith(".norm")}
    for norm, layers in BEFORE.items():
        readers = [name for name in layers if f"{name}.weight" in layer]
        width = layer[f"{readers[0]}.weight"].shape[1]
        own = layer.get(f"{norm}.weight")
        if own is None:
            if not inner.issuperset(readers):
                raise NotInGGUF("norm", "no norm before a block's layers; use norm=rmsnorm")
            layer[f"{norm}.weight"] = torch.ones(width)
        elif inner.intersection(readers):
            size = own.square().mean().sqrt()
            made.uneven = max(made.uneven, float(own.std(correction=0) / size))
            layer[f"{norm}.weight"] = own / size
    for norm, name in INSIDE.items():
        if name in inner:
            layer[f"{norm}.weight"] = torch.ones(layer[f"{name}.weight"].shape[1])
    if made.architecture in HALVES:
        for name, heads in ROTATED.items():
            layer[f"{name}.weight"] = halves(layer[f"{name}.weight"], made.keys[heads])
    return layer


def halves(weight: Tensor, heads: int) -> Tensor:
    """Rows of a projection [h·k d] with channel pairs (2i, 2i + 1) moved to (i, i + k/2)."""
    return weight.unflatten(0, (heads, -1, 2)).transpose(1, 2).flatten(0, 2)
