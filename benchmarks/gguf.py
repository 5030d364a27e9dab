"""Time decoding of one stream: ours, and llama.cpp's of the same model as a GGUF file.

Needs llama-cpp-python (pip builds it from source) and the package gguf. Untrained weights, one
thread each, in turns.

    OMP_NUM_THREADS=1 python -m benchmarks gguf
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from benchmarks.timing import show, turns
from chimera.config.compose import compose, plain
from chimera.config.settings import Model
from chimera.data.tokenizer.sentence_piece import SentencePiece
from chimera.export.gguf import Type, convert, vocabulary, write
from chimera.model.assemble import build_model, choose
from chimera.quant.shared.packing import packed

SMALL = os.environ.get("CHIMERA_BENCH_SMALL") == "1"
DIM, DEPTH, HEADS, TOKENS, ROUNDS = (256, 1, 4, 4, 2) if SMALL else (1024, 8, 16, 16, 7)
TEXT = "the cat sees a big red dog under one tree and it runs to my old house"
PARTS = ["mixer=attention", "norm=rmsnorm", "ffn=swiglu", "position=rope", "adapter=none"]
FILES: dict[str, tuple[Type, ...]] = {"none": ("f16", "q8_0"), "bitnet158": ("tq1_0", "tq2_0")}
PROMPT = 8


def main() -> dict[str, Any]:
    """Run the measurement and print it; return the contents of the results file."""
    missing = [name for name in ("llama_cpp", "gguf") if find_spec(name) is None]
    if missing:
        print(f"needs {' and '.join(missing)}: pip install llama-cpp-python gguf")
        return {}
    torch.set_num_threads(1)
    rows: dict[str, Any] = {}
    tokenizer = SentencePiece(vocab_size=330, num_threads=1).build([TEXT] * 300)
    for quant, kinds in FILES.items():
        model = decoder(quant, tokenizer.vocab_size)
        with TemporaryDirectory() as folder:
            rivals = {f"ours {name}": ours(each) for name, each in forms(model, quant).items()}
            sizes = {}
            for kind in kinds:
                file = Path(folder) / f"{kind}.gguf"
                made = convert(model, max_len=512)
                words = vocabulary(tokenizer, [tokenizer.sep_id])
                write(file, made, words, kind=kind, name="x", about="x")
                rivals[f"llama.cpp {kind}"] = theirs(file)
                sizes[kind] = file.stat().st_size
            seconds = turns(rivals, rounds=ROUNDS, warmup=1)
        rows[quant] = {
            "tokens per second": {name: TOKENS / s for name, s in seconds.items()},
            "bytes": sizes,
        }
        show(rows[quant], quant)
    shape = {"dim": DIM, "depth": DEPTH, "vocabulary": tokenizer.vocab_size}
    return {"shape": shape, "load": os.getloadavg()[0], "small": SMALL, "decoding": rows}


def decoder(quant: str, vocab_size: int) -> Any:
    """An untrained decoder in evaluation mode."""
    torch.manual_seed(0)
    shape = Model(dim=DIM, depth=DEPTH, heads=HEADS, max_len=512, head_transform=False)
    factories = choose(plain(compose([*PARTS, f"quant={quant}"])))
    return build_model(shape, factories, vocab_size=vocab_size, causal=True).eval()


def forms(model: Any, quant: str) -> dict[str, Any]:
    """The forms in which this package decodes the model."""
    if quant == "none":
        return {"fp32": model, "bf16": copy.deepcopy(model).to(torch.bfloat16)}
    return {"packed": packed(model).eval()}


def ours(model: Any) -> Callable[[], None]:
    """A function that decodes TOKENS tokens after a prompt."""
    token = torch.full((1, 1), 5)

    @torch.no_grad()
    def run() -> None:
        state = model(token.expand(1, PROMPT), state=model.init_state(1)).state
        for _ in range(TOKENS):
            state = model(token, state=state).state

    return run


def theirs(file: Path) -> Callable[[], None]:
    """The same by llama.cpp."""
    import llama_cpp

    model: Any = llama_cpp.Llama(str(file), n_ctx=512, n_threads=1, verbose=False)

    def run() -> None:
        model.reset()
        model.eval([5] * PROMPT)
        for _ in range(TOKENS):
            model.eval([5])

    return run
