"""Perplexity of a decoder's run by our code, and of its exports by transformers and llama.cpp.

    python -m benchmarks exported <a finished run>

The same rows of the run's test set go through our model, through the exported folder, through
transformers' own Llama, which reads the GGUF file (package gguf), and through llama.cpp (package
xllamacpp, which has it built). llama.cpp's server tells the probabilities of all next tokens after
a prompt, so each token of a row is asked for by itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.timing import show
from chimera.data.source.files import read_arrays
from chimera.errors import UserError
from chimera.export.folder import export as export_folder
from chimera.export.gguf import Type
from chimera.export.gguf import export as export_gguf
from chimera.rundir.directory import RunDir
from chimera.train.restore import restore

ROWS = 4
KINDS: tuple[Type, ...] = ("f16", "q8_0")


def main(run: str) -> dict[str, Any]:
    """Print the perplexities; return the contents of the results file."""
    directory = RunDir(Path(run))
    restored = restore(directory)
    model = restored.task.model.eval()
    length = restored.config["model"]["max_len"]
    stream = torch.from_numpy(read_arrays(directory.test_data, "ids")["ids"].astype("int64"))
    ids = stream[: ROWS * length].view(ROWS, length)
    rows = {"ours": perplexity(lambda row: model(row[None]).logits[0], ids)}
    with TemporaryDirectory() as place:
        export_folder(directory, Path(place) / "folder")
        rows["transformers, exported folder"] = by_transformers(Path(place) / "folder", ids)
        for kind in KINDS:
            file = Path(place) / f"{kind}.gguf"
            export_gguf(directory, file, kind=kind)
            if kind == "f16":
                rows["transformers' Llama, GGUF f16"] = by_transformers(file, ids)
            size = restored.tokenizer.vocab_size
            rows[f"llama.cpp, GGUF {kind}"] = by_llama_cpp(file, ids, size)
    show({name: f"{value:.6f}" for name, value in rows.items()}, "perplexity")
    words = [word for word in directory.overrides() if not word.startswith("run_dir=")]
    return {"run": words, "rows": list(ids.shape), "perplexity": rows}


@torch.no_grad()
def perplexity(logits: Callable[[Tensor], Tensor], ids: Tensor) -> float:
    """Of rows [n t], each token after the row's first given those before it.

    Args:
        logits: [t v] of a row [t].
        ids: of the rows.
    """
    losses = [F.cross_entropy(logits(row)[:-1].double(), row[1:]).item() for row in ids]
    return math.exp(sum(losses) / len(losses))


def by_transformers(place: Path, ids: Tensor) -> float:
    """Of an exported folder, or of a GGUF file."""
    from transformers import AutoModelForCausalLM

    folder, more = (place.parent, {"gguf_file": place.name}) if place.is_file() else (place, {})
    load: Any = AutoModelForCausalLM.from_pretrained
    model = load(folder, trust_remote_code=not more, dtype=torch.float32, **more).eval()
    return perplexity(lambda row: model(row[None]).logits[0], ids)


def by_llama_cpp(file: Path, ids: Tensor, size: int) -> float:
    """Of a GGUF file.

    Args:
        file: of the model.
        ids: [n t] of the rows.
        size: of the vocabulary.
    """
    try:
        import xllamacpp
    except ImportError as error:
        raise UserError("llama.cpp is not installed: pip install xllamacpp") from error
    settings = xllamacpp.CommonParams()
    settings.model.path = str(file)
    settings.n_ctx = ids.shape[1]
    settings.n_parallel = 1
    settings.warmup = False
    settings.cpuparams.n_threads = settings.cpuparams_batch.n_threads = 1
    server = xllamacpp.Server(settings)

    def logits(row: Tensor) -> Tensor:
        found = torch.full((len(row), size), -math.inf)
        for end in range(1, len(row)):
            prompt = {"prompt": row[:end].tolist(), "max_tokens": 1, "temperature": 0}
            answer = server.handle_completions(prompt | {"logprobs": size, "cache_prompt": True})
            told = answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
            which = torch.tensor([each["id"] for each in told])
            found[end - 1, which] = torch.tensor([each["logprob"] for each in told])
        return found

    return perplexity(logits, ids)
