"""`python export.py run=<directory> to=<folder or .gguf>`: export weights and tokenizer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from chimera.cli.command import command
from chimera.errors import UserError

if TYPE_CHECKING:
    from chimera.rundir.directory import RunDir

#: Names of files in formats that are not written: a folder of this name would mislead.
ELSEWHERE = (".onnx", ".pt", ".pth", ".bin", ".ckpt", ".ggml", ".safetensors", ".h5")


@dataclass(frozen=True)
class Export:
    """Arguments of `export.py`.

    Args:
        run: directory of a finished run.
        to: a new or empty folder, or the folder of an earlier export; or a file that ends in
            .gguf, for llama.cpp.
        type: format of the matrices of a .gguf file; tq1_0 and tq2_0 are for ternary weights.
        packed: store ternary weights in 1.6 bits each.
        adapter: `merge` adds it to the weights where that is exact; `keep` writes it beside them;
            `alone` writes only the adapter.
        like: folder of the checkpoint of transformers that the run began with; the export then has
            its format, for any program that reads the checkpoint.
        trust: load the Hugging Face model that the run's file names, if it must be loaded.
    """

    run: Path
    to: Path
    type: Literal["f32", "f16", "q8_0", "tq1_0", "tq2_0"] | None = None
    packed: bool = False
    adapter: Literal["merge", "keep", "alone"] = "merge"
    like: Path | None = None
    trust: bool = False


@command("export", Export)
def main(options: Export, words: list[str]) -> int:
    """Export in the format that `to=` asks for, print what was written."""
    kind = options.to.suffix.lower()
    if kind in ELSEWHERE:
        raise UserError(
            f"to={options.to}: {kind} is not written; name a folder, which gets"
            " model.safetensors and code for transformers, or a file .gguf for llama.cpp"
        )
    from chimera.config.trusted_config import recorded
    from chimera.rundir.directory import RunDir

    run = RunDir(options.run)
    recorded(run)
    if kind == ".gguf":
        return _gguf(run, options)
    if options.type is not None:
        raise UserError(f"type={options.type} is for files of llama.cpp; write to=<name>.gguf")
    if options.like is not None:
        return _original(run, options, options.like)
    from chimera.export import export

    about = export(
        run, options.to, pack=options.packed, adapter=options.adapter, trust=options.trust
    )
    print(f"{options.to}: adapter: {about['adapter']}, packed: {str(options.packed).lower()}")
    return 0


def _original(run: RunDir, options: Export, like: Path) -> int:
    """Export in the format of the checkpoint that the run began with."""
    if options.packed or options.adapter != "merge":
        chosen = "packed=true" if options.packed else f"adapter={options.adapter}"
        raise UserError(f"like={like} writes plain weights; leave out {chosen}")
    from chimera.export.original import export

    size = export(run, options.to, like, trust=options.trust)
    print(f"{options.to}: weights in the format of {like}, {size / 1e6:.2f} MB")
    return 0


def _gguf(run: RunDir, options: Export) -> int:
    """Export to a file for llama.cpp."""
    if options.like is not None:
        raise UserError(f"like={options.like} is for folders; leave it out, or write to=<folder>")
    if options.packed or options.adapter != "merge":
        chosen = "packed=true" if options.packed else f"adapter={options.adapter}"
        use = "type=tq2_0 for ternary weights" if options.packed else "adapter=merge"
        raise UserError(f"{chosen} is for folders; a .gguf file takes {use}")
    from importlib.util import find_spec

    if find_spec("gguf") is None:
        raise UserError("to=….gguf needs the package gguf; pip install 'chimera-lm[gguf]'")
    from chimera.export.gguf import export

    kind = options.type or "f16"
    made = export(run, options.to, kind=kind, trust=options.trust)
    size = options.to.stat().st_size / 1e6
    print(f"{options.to}: llama.cpp's {made.architecture}, {kind}, {size:.2f} MB")
    if made.uneven:
        print(
            "note: a norm before layers with a norm of their own became one norm, which is exact"
            f" where a norm's weights are equal; here they differ by up to {made.uneven:.1%}"
        )
    return 0
