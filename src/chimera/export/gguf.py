"""A trained decoder as one file for llama.cpp: weights, settings and tokenizer under its names.

The file is written by the package `gguf` of llama.cpp's authors.

    f32, f16      every matrix
    q8_0          every matrix, 8 bits and a scale of 16 for 32 weights
    tq1_0, tq2_0  ternary matrices in 1.69 and 2.06 bits a weight, 256 at a time; others in f16
Norms and biases are in float32.

A model becomes one of llama.cpp's architectures:

    x += W_o attention(RMSNorm(x));   x += W_down(act(W_gate x̄) ⊙ W_up x̄), x̄ = RMSNorm(x)
    logits = W RMSNorm(x)

    llama    a SiLU gate
    arcee    squared ReLU without a gate
    bitnet   a SiLU gate, an RMSNorm before `attn_output` and `ffn_down` too, one table for
             embeddings and logits; pairs channel i of a head with i + k/2 where it rotates

What differs from ours is folded into the weights: the factor of the embeddings, loops over blocks
(written several times), the layout of rotated channels. A norm of ours before layers with a norm
of their own (norm=rmsnorm quant=bitnet158) becomes one norm, because bitnet has no two in a row.

A tokenizer is one of two:

    SentencePiece unigram   `t5`, llama.cpp's unigram model, with the table of replacements
    byte-level BPE          `gpt2`, with GPT-2's own splitting of texts

llama.cpp's unigram model has no fallback to bytes. The byte pieces of ASCII characters that are no
pieces are written as pieces of these characters, with the score that SentencePiece gives unknown
ones: so they are found. Another character that is no piece becomes [UNK] there, and its bytes here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import gguf
import numpy as np
import numpy.typing as npt
import torch
from gguf import TokenType  # numbered as SentencePiece's
from hydra.utils import get_object
from sentencepiece import sentencepiece_model_pb2
from torch import Tensor, nn

from chimera.config.groups import groups, node
from chimera.contract_gguf import GGUF, NotInGGUF, in_gguf, joined
from chimera.data.tokenizer.base import Tokenizer
from chimera.data.tokenizer.fast import FastTokenizer
from chimera.data.tokenizer.sentence_piece import SentencePieceTokenizer
from chimera.errors import UserError
from chimera.export.folder import finished, treat_adapter
from chimera.export.target import SEAL, UNSEALED, check_file, seal
from chimera.model.backbone import Block, Trunk
from chimera.model.head import Head
from chimera.model.language import LanguageModel
from chimera.program import VERSION
from chimera.rundir.directory import RunDir
from chimera.safe_io import make_folder, replacing
from chimera.train.restore import restore

Type = Literal["f32", "f16", "q8_0", "tq1_0", "tq2_0"]
#: Of ternary weights alone; what is not ternary is written as f16.
TERNARY = ("tq1_0", "tq2_0")
#: Types of settings in which llama.cpp reads them.
KEY_TYPES = {
    bool: "BOOL", int: "UINT32", float: "FLOAT32", str: "STRING", bytes: "ARRAY", list: "ARRAY",
}  # fmt: skip
#: Architectures, in the order of preference.
ARCHITECTURES = ("llama", "arcee", "bitnet")
#: Norm of a block, by the layers that read its result.
BEFORE = {"attn_norm": ("attn_q", "attn_k", "attn_v"), "ffn_norm": ("ffn_up", "ffn_gate")}
#: Norm inside a block, by the layer behind it.
INSIDE = {"attn_sub_norm": "attn_output", "ffn_sub_norm": "ffn_down"}
ROTATED = {"attn_q": "attention.head_count", "attn_k": "attention.head_count_kv"}
#: SentencePiece scores an unknown character by this much less than its rarest piece.
PENALTY = 10.0
#: Printed characters of one byte; the space is another piece.
ASCII = frozenset(bytes([code]) for code in range(0x21, 0x7F))
KNOWN = "llama.cpp reads SentencePiece unigram models and byte-level BPE as GPT-2's"


def export(run: RunDir, to: Path, *, kind: Type = "f16", trust: bool = False) -> Converted:
    """Write a finished run as a GGUF file; returns the model in llama.cpp's words.

    Args:
        run: the run; of its checkpoints the one that its final test was made with.
        to: a new file, or an earlier GGUF file, which is replaced.
        kind: format of the matrices.
        trust: load the Hugging Face model that the run's configuration names, if it has to be.

    Raises:
        UserError: the run is not finished, or llama.cpp does not know a part of it, or `to` is
            another file.
    """
    config = run.config()
    finished(run)
    check_file(to)
    restored = restore(run, trust=trust)
    task = restored.task
    if not task.causal:
        raise UserError(
            f"task={config['choices']['task']} trains an encoder; llama.cpp's models here are"
            " decoders (task=causal_lm); export to a folder"
        )
    model = task.model.eval()
    treat_adapter(model, "merge")
    try:
        made = convert(model, max_len=config["model"]["max_len"])
    except NotInGGUF as error:
        raise UserError(named(error, config["choices"])) from error
    words = vocabulary(restored.tokenizer, restored.tokenizer.opening(packed=task.plain_text))
    about = f"{config['name']}, trained with chimera-lm {VERSION}"
    write(to, made, words, kind=kind, name=run.path.name, about=about)
    return made


def named(error: NotInGGUF, choices: Mapping[str, str]) -> str:
    """The message of a part that llama.cpp does not know, and the parts that it knows."""
    chosen = f"{error.group}={choices[error.group]}"
    if error.why:
        return f"{chosen} is not known to llama.cpp with {error.why}; export to a folder instead"
    known = [
        name
        for name in groups()[error.group]
        if hasattr(get_object(node(error.group, name)["_target_"]), "gguf")
    ]
    of = f"; of this group it knows {', '.join(known)}" if known else ""
    return f"{chosen} is not known to llama.cpp{of}; or export to a folder"


def stored(
    name: str, tensor: Tensor, kind: Type
) -> tuple[npt.NDArray[Any], gguf.GGMLQuantizationType]:
    """The bytes of a tensor and their type.

    Raises:
        UserError: rows of another width than the type stores.
    """
    values = tensor.numpy()
    of: str = "f32" if tensor.ndim < 2 else kind
    if of in TERNARY and not _ternary(values):
        of = "f16"
    number = gguf.GGMLQuantizationType[of.upper()]
    block = gguf.GGML_QUANT_SIZES[number][0]
    if values.shape[-1] % block:
        raise UserError(
            f"type={of} stores rows in blocks of {block}, and {name} has rows of"
            f" {values.shape[-1]}; use type=f16"
        )
    return gguf.quants.quantize(values, number), number


def _ternary(values: npt.NDArray[Any]) -> bool:
    """Whether a matrix has rows of zeros and ± one number."""
    sizes = np.abs(values)
    return bool(((sizes == 0) | (sizes == sizes.max(-1, keepdims=True))).all())


def write(
    to: Path, made: Converted, words: Mapping[str, Any], *, kind: Type, name: str, about: str
) -> None:
    """Write the file beside its place, with its hash, then put it there.

    Args:
        to: the file.
        made: the model.
        words: keys of the tokenizer, as of `vocabulary`.
        kind: format of the matrices.
        name: of the model.
        about: a line on it.

    Raises:
        UserError: the format cannot hold the matrices.
    """
    data = {name: stored(name, tensor, kind) for name, tensor in made.tensors.items()}
    if kind in TERNARY and not any(of.name.lower() == kind for _, of in data.values()):
        raise UserError(f"type={kind} is for ternary weights, and this model has none; use q8_0")
    make_folder(to.absolute().parent, of=to, key="to")
    with replacing(to) as beside:
        writer = gguf.GGUFWriter(beside, made.architecture)
        writer.add_string(SEAL, UNSEALED)
        writer.add_name(name)
        writer.add_description(about)
        writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
        of_file = "ALL_F32" if kind == "f32" else f"MOSTLY_{kind.upper()}"
        writer.add_file_type(gguf.LlamaFileType[of_file])
        settings = {f"{made.architecture}.{key}": value for key, value in made.keys.items()}
        settings |= {f"tokenizer.ggml.{key}": value for key, value in words.items()}
        for key, value in settings.items():
            writer.add_key_value(key, value, gguf.GGUFValueType[KEY_TYPES[type(value)]])
        for tensor, (values, of) in data.items():
            writer.add_tensor(tensor, values, raw_dtype=of)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        seal(beside)


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
    if head.inputs is not None:
        raise NotInGGUF("quant", "head=true, whose inputs llama.cpp does not quantise")
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
    if made.architecture == "bitnet":  # pairs channel i with i + k/2, ours 2i with 2i + 1
        for name, heads in ROTATED.items():
            layer[f"{name}.weight"] = halves(layer[f"{name}.weight"], made.keys[heads])
    return layer


def halves(weight: Tensor, heads: int) -> Tensor:
    """Rows of a projection [h·k d] with channel pairs (2i, 2i + 1) moved to (i, i + k/2)."""
    return weight.unflatten(0, (heads, -1, 2)).transpose(1, 2).flatten(0, 2)


def vocabulary(tokenizer: Tokenizer, opening: Sequence[int]) -> dict[str, Any]:
    """The keys `tokenizer.ggml.…` of a file.

    Args:
        tokenizer: of the model.
        opening: ids before a text, see `Tokenizer.opening`.

    Raises:
        UserError: llama.cpp does not know such a tokenizer.
    """
    if len(opening) > 1:
        raise UserError(f"a text begins with {len(opening)} special tokens; GGUF knows one")
    if isinstance(tokenizer, SentencePieceTokenizer):
        keys = _unigram(tokenizer)
    elif isinstance(tokenizer, FastTokenizer):
        keys = _bytes(tokenizer)
    else:
        raise UserError(f"{type(tokenizer).__name__} has no form in GGUF; {KNOWN}")
    special = tokenizer.special
    return keys | {
        "bos_token_id": (*opening, special.sep)[0],
        "eos_token_id": special.sep,
        "unknown_token_id": special.unk,
        "padding_token_id": special.pad,
        "add_bos_token": bool(opening),
        "add_eos_token": False,
    }


def _unigram(tokenizer: SentencePieceTokenizer) -> dict[str, Any]:
    format: Any = sentencepiece_model_pb2
    model = format.ModelProto.FromString(tokenizer.model)
    if model.trainer_spec.model_type != format.TrainerSpec.UNIGRAM:
        raise UserError(f"a SentencePiece model that is no unigram has no form in GGUF; {KNOWN}")
    tokens = [piece.piece.encode() for piece in model.pieces]
    types = [TokenType(piece.type) for piece in model.pieces]
    scores = [piece.score for piece in model.pieces]
    known = set(tokens)
    rarest = min(p.score for p in model.pieces if p.type == TokenType.NORMAL)
    for i, kind in enumerate(types):
        letter = bytes([int(tokens[i][1:-1], 16)]) if kind == TokenType.BYTE else b""
        if letter in ASCII and letter not in known:
            tokens[i] = letter
            types[i] = TokenType.NORMAL
            scores[i] = rarest - PENALTY
    names = {i: role for role, i in vars(tokenizer.special).items() if i is not None}
    lacking = range(len(model.pieces), tokenizer.vocab_size)  # special pieces
    how = model.normalizer_spec
    table = how.precompiled_charsmap
    return {
        "model": "t5",
        "tokens": tokens + [f"[{names[i].upper()}]".encode() for i in lacking],
        "token_type": types + [TokenType.CONTROL for _ in lacking],
        "scores": scores + [0.0 for _ in lacking],
        "add_space_prefix": how.add_dummy_prefix,
        "remove_extra_whitespaces": how.remove_extra_whitespaces,
        **({"precompiled_charsmap": table} if table else {}),
    }


def _bytes(tokenizer: FastTokenizer) -> dict[str, Any]:
    about = json.loads(tokenizer.fast.to_str())
    splitter = about["pre_tokenizer"] or {}
    byte_level = splitter.get("type") == "ByteLevel" and splitter.get("use_regex", True)
    if about["model"]["type"] != "BPE" or not byte_level or about["normalizer"]:
        raise UserError(f"this tokenizer has no form in GGUF; {KNOWN}")
    names = {i: name for name, i in tokenizer.fast.get_vocab().items()}
    size = tokenizer.vocab_size
    special = set(tokenizer.special_ids)
    return {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": [names.get(i, f"[PAD{i}]").encode() for i in range(size)],
        "token_type": [
            TokenType.CONTROL if i in special or i not in names else TokenType.NORMAL
            for i in range(size)
        ],
        "merges": [m if isinstance(m, str) else " ".join(m) for m in about["model"]["merges"]],
        "add_space_prefix": splitter["add_prefix_space"],
    }
