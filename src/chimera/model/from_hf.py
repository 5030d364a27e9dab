"""Weights of a checkpoint of transformers by the names of our model (`init_from=hf:<folder>`).

Components translate their own layers (`contract_hf`); this module knows the frame around them:
embedding, blocks, norms, head. Every tensor of the file has to be read by somebody.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from chimera.config.from_hf import checkpoint_config
from chimera.contract_hf import OfTransformers
from chimera.errors import UserError
from chimera.model.block import Block
from chimera.rundir.tensors import tensors as read_tensors

#: Names of the frame, of which a checkpoint has one each.
EMBEDDING = ("model.embed_tokens.weight", "backbone.embeddings.weight", "backbone.embedding.weight")
FINAL = ("model.norm.weight", "backbone.norm_f.weight")
BODY = ("model.layers", "backbone.layers")
HEAD = ("lm_head.weight",)
MIXER_NORM = ("input_layernorm", "norm")
FFN_NORM = ("post_attention_layernorm",)
#: Tensors that are computed here, or belong to parts that our models lack.
UNUSED = re.compile(r".*rotary_emb\.inv_freq|mtp\..*")


class Read(Mapping[str, Tensor]):
    """Tensors below a prefix; notes which ones are read."""

    def __init__(self, tensors: Mapping[str, Tensor], prefix: str, seen: set[str]) -> None:
        self.tensors = tensors
        self.prefix = prefix
        self.seen = seen

    def __getitem__(self, name: str) -> Tensor:
        found = self.tensors[self.prefix + name]
        self.seen.add(self.prefix + name)
        return found

    def __contains__(self, name: object) -> bool:
        return f"{self.prefix}{name}" in self.tensors

    def __iter__(self) -> Iterator[str]:
        return (n.removeprefix(self.prefix) for n in self.tensors if n.startswith(self.prefix))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def converted(model: nn.Module, folder: Path) -> dict[str, Tensor]:
    """Weights for `model`, by their names in it.

    Args:
        model: of the parts that `config.from_hf` chose, with any quantiser and any head.
        folder: of the checkpoint.

    Raises:
        UserError: a part takes no weights of transformers, or tensors are missing or left over.
    """
    where = f"init_from=hf:{folder}"
    return translated(model, checkpoint_config(folder), read_tensors(folder), where)


def translated(
    model: nn.Module, config: Mapping[str, Any], found: Mapping[str, Tensor], where: str
) -> dict[str, Tensor]:
    """Tensors of a checkpoint by the names of `model`.

    Args:
        model: see `converted`.
        config: of the checkpoint.
        found: its tensors.
        where: what a refusal begins with.

    Raises:
        UserError: see `converted`.
    """
    seen: set[str] = set()
    whole = Read(found, "", seen)
    body: Any = model.get_submodule("backbone")
    try:
        made = _frame(model, body, whole)
        for number, block in enumerate(body.blocks):
            layers = Read(found, f"{_first(whole, BODY, prefix=True)}.{number}.", seen)
            for name, part, tensors in _parts(block, layers):
                if not isinstance(part, OfTransformers):
                    raise UserError(
                        f"{where}: {type(part).__name__} takes no weights of transformers; leave"
                        " the parts to init_from, and use a decoder such as task=causal_lm"
                    )
                own = part.hf_tensors(tensors, config)
                made |= {f"backbone.blocks.{number}.{name}.{key}": t for key, t in own.items()}
        final = body.norm.hf_tensors({"weight": whole[_first(whole, FINAL)]}, config)
        made |= {f"backbone.norm.{key}": tensor for key, tensor in final.items()}
    except KeyError as error:
        raise UserError(f"{where} has no weights for {error.args[0]}") from error
    left = sorted(name for name in found.keys() - seen if not UNUSED.fullmatch(name))
    if left:
        raise UserError(f"{where} has weights that no part here has: {', '.join(left[:3])}")
    state = model.state_dict()
    for name, buffer in model.named_buffers():  # counters and the like begin anew
        if name in state:
            made.setdefault(name, buffer)
    return made


def _parts(block: Block, layers: Read) -> Iterator[tuple[str, nn.Module, Mapping[str, Tensor]]]:
    """Parts of a block by name, with the tensors that each may read."""
    yield "mixer", block.mixer, layers
    norms: dict[str, tuple[nn.Module, tuple[str, ...]]] = {
        "mixer_norm": (block.mixer_norm, MIXER_NORM)
    }
    if block.ffn is not None and block.ffn_norm is not None:
        yield "ffn", block.ffn, layers
        norms["ffn_norm"] = (block.ffn_norm, FFN_NORM)
    for name, (norm, theirs) in norms.items():
        yield name, norm, {"weight": layers[_first(layers, [f"{n}.weight" for n in theirs])]}


def _frame(model: nn.Module, body: Any, whole: Read) -> dict[str, Tensor]:
    """Embedding and head; rows beyond the vocabulary, which pad the table, are left out."""
    size = len(body.embedding.weight)
    table = whole[_first(whole, EMBEDDING)]
    made = {"backbone.embedding.weight": table[:size]}
    if HEAD[0] in whole.tensors:
        output = whole[HEAD[0]]
        if "head.output.weight" in model.state_dict():
            made["head.output.weight"] = output[:size]
    return made


def _first(tensors: Read, names: Any, *, prefix: bool = False) -> str:
    """The first of some names that there is."""
    present = set(tensors)
    for name in names:
        if name in present or (prefix and any(n.startswith(f"{name}.") for n in present)):
            return str(name)
    raise KeyError(names[0])
