"""Write a finished decoder as one GGUF file, by the package `gguf` of llama.cpp's authors.

    f32, f16      every matrix
    q8_0          every matrix, 8 bits and a scale of 16 for 32 weights
    tq1_0, tq2_0  ternary matrices in 1.69 and 2.06 bits a weight, 256 at a time; others in f16
Norms and biases are in float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt
from torch import Tensor

from chimera.config.groups import groups, node
from chimera.contract_gguf import NotInGGUF
from chimera.errors import UserError
from chimera.export.folder import finished, treat_adapter
from chimera.export.gguf.model import Converted, convert
from chimera.export.gguf.tokenizer import vocabulary
from chimera.export.target import SEAL, UNSEALED, check_file, seal
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


def export(run: RunDir, to: Path, *, kind: Type = "f16", trust: bool = False) -> dict[str, Any]:
    """Write a finished run as a GGUF file.

    Args:
        run: the run; of its checkpoints the one that its final test was made with.
        to: a new file, or an earlier GGUF file, which is replaced.
        kind: format of the matrices.
        trust: load the Hugging Face model that the run's configuration names, if it has to be.

    Returns:
        `architecture`, `bytes`, `uneven` (see `Converted`).

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
    data = {name: stored(name, tensor, kind) for name, tensor in made.tensors.items()}
    if kind in TERNARY and not any(of == kind for _, of in data.values()):
        raise UserError(f"type={kind} is for ternary weights, and this model has none; use q8_0")
    make_folder(to.absolute().parent, of=to, key="to")
    about = f"{config['name']}, trained with chimera-lm {VERSION}"
    write(to, made, words, data, kind=kind, name=run.path.name, about=about)
    return {
        "architecture": made.architecture,
        "bytes": to.stat().st_size,
        "uneven": made.uneven,
    }


def named(error: NotInGGUF, choices: Mapping[str, str]) -> str:
    """The message of a part that llama.cpp does not know, and the parts that it knows."""
    from hydra.utils import get_object

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


Stored = tuple[npt.NDArray[Any], str]


def stored(name: str, tensor: Tensor, kind: Type) -> Stored:
    """The bytes of a tensor and their type.

    Raises:
        UserError: rows of another width than the type stores.
    """
    import gguf

    values = tensor.numpy()
    of: str = "f32" if tensor.ndim < 2 else kind
    if of in TERNARY and not _ternary(values):
        of = "f16"
    kinds: Any = gguf.GGMLQuantizationType
    number = kinds[of.upper()]
    block = gguf.GGML_QUANT_SIZES[number][0]
    if values.shape[-1] % block:
        raise UserError(
            f"type={of} stores rows in blocks of {block}, and {name} has rows of"
            f" {values.shape[-1]}; use type=f16"
        )
    return cast(Any, gguf.quants.quantize(values, number)), of


def _ternary(values: npt.NDArray[Any]) -> bool:
    """Whether a matrix has rows of zeros and ± one number."""
    sizes = np.abs(values)
    return bool(((sizes == 0) | (sizes == sizes.max(-1, keepdims=True))).all())


def write(
    to: Path,
    made: Converted,
    words: Mapping[str, Any],
    data: Mapping[str, Stored],
    *,
    kind: Type,
    name: str,
    about: str,
) -> None:
    """Write the file beside its place, with its hash, then put it there.

    Args:
        to: the file.
        made: the model.
        words: keys of the tokenizer, as of `vocabulary`.
        data: bytes of each tensor, as of `stored`.
        kind: format of the matrices.
        name: of the model.
        about: a line on it.
    """
    import gguf

    files: Any = gguf.LlamaFileType
    types: Any = gguf.GGMLQuantizationType
    kinds: Any = gguf.GGUFValueType
    with replacing(to) as beside:
        writer = gguf.GGUFWriter(beside, made.architecture)
        writer.add_string(SEAL, UNSEALED)
        writer.add_name(name)
        writer.add_description(about)
        writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
        writer.add_file_type(files["ALL_F32" if kind == "f32" else f"MOSTLY_{kind.upper()}"])
        settings = {f"{made.architecture}.{key}": value for key, value in made.keys.items()}
        settings |= {f"tokenizer.ggml.{key}": value for key, value in words.items()}
        for key, value in settings.items():
            writer.add_key_value(key, value, kinds[KEY_TYPES[type(value)]])
        for tensor, (values, of) in data.items():
            writer.add_tensor(tensor, values, raw_dtype=types[of.upper()])
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        seal(beside)
