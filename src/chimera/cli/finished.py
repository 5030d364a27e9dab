"""Commands on a finished run: `eval`, `mmlu`, `generate`, `export`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from chimera.cli.command import command
from chimera.errors import UserError, library
from chimera.generate.settings import Generation
from chimera.types import PositiveInt

#: Names of files in formats that are not written: a folder of this name would mislead.
ELSEWHERE = (".onnx", ".pt", ".pth", ".bin", ".ckpt", ".ggml", ".safetensors", ".h5")


@dataclass(frozen=True)
class Evaluation:
    """Arguments of `eval.py`.

    Args:
        run: directory of a run.
        length: tokens per sequence, for task=causal_lm; by default that of the run.
        trust: load the Hugging Face model that the run's file names, if it must be loaded.
    """

    run: Path
    length: PositiveInt | None = None
    trust: bool = False


@dataclass(frozen=True)
class Examination:
    """What is asked of which run.

    Asks the trained model of the run and, where an adapter changed it, the model that the adapter
    was put on. Prints both and writes them to a file.

    Args:
        run: directory of a run of a causal model.
        data: folder with MMLU's questions; without it they come from the hub, cais/mmlu.
        split: `val` or `test`.
        subjects: only these; all if it is left out.
        limit: questions of each subject; all if it is left out, or ten as lighteval.
        mmlu_protocol: `lighteval` asks and counts as lighteval's `helm|mmlu|1|1`, with at most ten
            questions a subject, does: see `task.mmlu_protocol`.
        new: tokens of an answer; 8 if it is left out, or 5 as lighteval.
        length: tokens of a prompt; if it is left out the model's max_len, or, as lighteval, all
            positions that a Hugging Face model has.
        batch: questions at a time.
        out: file of the results; `mmlu.json` in the run's directory if it is left out.
        trust: load the models that the run's file names: what its adapter was put on, or a Hugging
            Face model that has to be fetched.
    """

    run: Path
    data: str | None = None
    split: Literal["val", "test"] = "test"
    subjects: list[str] = field(default_factory=list)
    limit: PositiveInt | None = None
    mmlu_protocol: Literal["lighteval"] | None = None
    new: PositiveInt | None = None
    length: PositiveInt | None = None
    batch: PositiveInt = 8
    out: Path | None = None
    trust: bool = False


@dataclass(frozen=True)
class Export:
    """Arguments of `export.py`.

    Args:
        run: directory of a finished run.
        to: a new or empty folder, or the folder of an earlier export; or a file that ends in
            .gguf, for llama.cpp.
        type: format of the matrices of a .gguf file; tq1_0 and tq2_0 are for ternary weights.
        packed: store ternary weights in 1.6 bits each, 8-bit weights in a byte.
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

    @property
    def gguf(self) -> bool:
        """Whether a file for llama.cpp is written."""
        return self.to.suffix.lower() == ".gguf"

    def check(self) -> None:
        """Check that the arguments go together.

        Raises:
            UserError: they do not.
        """
        kind = self.to.suffix.lower()
        if kind in ELSEWHERE:
            raise UserError(
                f"to={self.to}: {kind} is not written; name a folder, which gets"
                " model.safetensors and code for transformers, or a file .gguf for llama.cpp"
            )
        chosen = "packed=true" if self.packed else f"adapter={self.adapter}"
        plain = not self.packed and self.adapter == "merge"
        if self.type is not None and not self.gguf:
            raise UserError(f"type={self.type} is for files of llama.cpp; write to=<name>.gguf")
        if self.like is not None and self.gguf:
            raise UserError(f"like={self.like} is for folders; leave it out, or write to=<folder>")
        if self.like is not None and not plain:
            raise UserError(f"like={self.like} writes plain weights; leave out {chosen}")
        if self.gguf and not plain:
            use = "type=tq2_0 for ternary weights" if self.packed else "adapter=merge"
            raise UserError(f"{chosen} is for folders; a .gguf file takes {use}")


@command("eval", Evaluation)
def evaluate(options: Evaluation, words: list[str]) -> int:
    """Test the run again, print each metric beside the recorded one."""
    from chimera.config.trusted_config import recorded
    from chimera.rundir.directory import RunDir

    directory = RunDir(options.run)
    recorded(directory)
    if not directory.test_data.exists():
        raise UserError(
            f"run={directory.path} has not started training, so it has no test data; train it first"
        )
    from chimera import evaluate as tested

    return tested.evaluate(directory, options.length, trust=options.trust)


@command("mmlu", Examination)
def mmlu(options: Examination, words: list[str]) -> int:
    """Ask, print, write."""
    from chimera.config.schema import shown
    from chimera.config.start_model import location
    from chimera.config.trusted_config import recorded
    from chimera.rundir.directory import RunDir
    from chimera.safe_io import check_file, write_json
    from chimera.task import mmlu as exam
    from chimera.task.mmlu_protocol import PROTOCOLS

    directory = RunDir(options.run)
    config = recorded(directory)
    base = config["choices"]["adapter"] != "none" and (
        location(config) or config["model"].get("name")
    )
    if base and not options.trust:
        raise UserError(
            f"run={directory.path} is compared with the model that its adapter was put on,"
            f" {shown(base)}, which is not loaded on a file's word; add trust=true if you know it"
        )
    if options.mmlu_protocol and config["tokenizer"].get("path") and not options.trust:
        raise UserError(
            f"mmlu_protocol={options.mmlu_protocol} reads the chat template of"
            f" {shown(config['tokenizer']['path'])}, which the run's file names; add trust=true if"
            " you know it"
        )
    target = options.out or directory.path / "mmlu.json"
    check_file(target, key="out")
    protocol = PROTOCOLS[options.mmlu_protocol]
    subjects = options.subjects or None
    questions = exam.read(options.data, options.split, subjects, options.limit, protocol)
    from chimera import evaluate as asked

    sizes = {"new": options.new, "batch": options.batch, "length": options.length}
    results = asked.examine(directory, config, questions, protocol, trust=options.trust, **sizes)
    asked.show(results, len(questions))
    target.parent.mkdir(parents=True, exist_ok=True)
    write_json(target, {"run": str(directory.path), "questions": len(questions), **results})
    print(target)
    return 0


@command("generate", Generation)
def generate(options: Generation, words: list[str]) -> int:
    """Print the continued prompts, a line each."""
    options.check()
    from chimera.generate.text import write

    return write(options)


@command("export", Export)
def export(options: Export, words: list[str]) -> int:
    """Export in the format that `to=` asks for, print what was written."""
    options.check()
    from chimera.config.trusted_config import recorded
    from chimera.rundir.directory import RunDir

    run = RunDir(options.run)
    recorded(run)
    if options.gguf:
        library("gguf", "to=….gguf", "gguf")
        from chimera.export import gguf

        kind = options.type or "f16"
        made = gguf.export(run, options.to, kind=kind, trust=options.trust)
        size = options.to.stat().st_size / 1e6
        print(f"{options.to}: llama.cpp's {made.architecture}, {kind}, {size:.2f} MB")
        if made.uneven:
            print(
                "note: a norm before layers with a norm of their own became one norm, which is"
                " exact where a norm's weights are equal; here they differ by up to"
                f" {made.uneven:.1%}"
            )
    elif options.like is not None:
        from chimera.export import original

        size = original.export(run, options.to, options.like, trust=options.trust)
        print(f"{options.to}: weights in the format of {options.like}, {size / 1e6:.2f} MB")
    else:
        from chimera import export as folder

        about = folder.export(
            run, options.to, pack=options.packed, adapter=options.adapter, trust=options.trust
        )
        packed = ", weights packed" if options.packed else ""
        adapter = f", adapter {about['adapter']}" if about["adapter"] != "none" else ""
        print(f"{options.to}: a folder for transformers{packed}{adapter}; see its README.md")
    return 0
