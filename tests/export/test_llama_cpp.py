"""llama.cpp computes what we compute: ids, greedy text, most probable tokens, perplexity."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F

from chimera.cli.finished import export
from chimera.cli.train import main as train
from chimera.generate.settings import Generation
from chimera.generate.text import decode
from chimera.rundir.directory import RunDir
from chimera.train.restore import restore
from tests.export.folders import DECODER

pytestmark = pytest.mark.slow
llama_cpp: Any = pytest.importorskip(
    "llama_cpp",
    reason="llama-cpp-python is not installed: pip install llama-cpp-python (builds it)",
)

#: A word, and the one that most often follows it.
WORDS = "the cat sees a big red dog under one tree and it runs to my old house (x = 3), or: `not`!"
CHOICES = {
    "llama": ["ffn=swiglu"],
    "arcee": ["ffn=relu2", "mixer=gqa"],
    "bitnet": ["ffn=swiglu", "quant=bitnet158"],
    "ternary": ["ffn=swiglu", "quant=ternary_weight"],
}
FILES = [("llama", "f16"), ("llama", "q8_0"), ("arcee", "f16"), ("arcee", "q8_0")]
FILES += [(run, kind) for run in ("bitnet", "ternary") for kind in ("f16", "tq1_0", "tq2_0")]
LENGTH = 64


class Pair(NamedTuple):
    """A run of ours and llama.cpp's model of its file."""

    task: Any
    tokenizer: Any
    theirs: Any


def lines(count: int, seed: int) -> list[str]:
    """Lines in which each word is followed by the next of `WORDS`, three times of four."""
    generator = torch.Generator().manual_seed(seed)
    words = WORDS.split()
    made = []
    for _ in range(count):
        place, line = 0, []
        for draw in torch.rand(24, generator=generator).tolist():
            place = (place + 1 if draw < 0.75 else int(draw * 1e6)) % len(words)
            line.append(words[place])
        made.append(" ".join(line))
    return made


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained decoder of each kind."""
    root = tmp_path_factory.mktemp("llama_cpp")
    (root / "text.txt").write_text("\n".join(lines(3000, 1)))
    words = [*DECODER, f"data.path={root}/text.txt", f"data.cache_dir={root}/cache"]
    words += ["model.dim=256", "model.depth=2", f"model.max_len={LENGTH}", "data.batch_size=16"]
    words += ["trainer.max_steps=80", "trainer.val_check_interval=80", "trainer.accelerator=cpu"]
    for name, more in CHOICES.items():
        assert train([*words, *more, f"run_dir={root}/{name}"]) == 0, name
    return root


@pytest.fixture(params=FILES, ids="-".join)
def pair(request: pytest.FixtureRequest, runs: Path, tmp_path: Path) -> Any:
    name, kind = request.param
    run, file = runs / name, tmp_path / "model.gguf"
    assert export([f"run={run}", f"to={file}", f"type={kind}"]) == 0
    restored = restore(RunDir(run))
    restored.task.model.eval()
    theirs = llama_cpp.Llama(
        str(file), n_ctx=LENGTH, logits_all=True, verbose=False, n_threads=1, seed=0
    )
    yield Pair(restored.task, restored.tokenizer, theirs)
    theirs.close()


def test_llama_cpp_is_us(pair: Pair) -> None:
    """The same ids and greedy text; 99 % of the most probable tokens, perplexity within 0.5 %."""
    model, tokenizer, theirs = pair.task.model, pair.tokenizer, pair.theirs
    texts = lines(40, 2)
    ids = [row.tolist() for row in tokenizer.encode(texts)]
    assert [theirs.tokenize(text.encode(), add_bos=False) for text in texts] == ids
    agreed, ours_sum, theirs_sum, count = 0, 0.0, 0.0, 0
    for row in ids:
        row = [tokenizer.special.sep, *row][:LENGTH]
        theirs.reset()
        theirs.eval(row)
        other = torch.tensor(theirs.scores[: len(row)])
        with torch.no_grad():
            own = model(torch.tensor([row])).logits[0]
        agreed += int((own.argmax(-1) == other.argmax(-1)).sum())
        targets = torch.tensor(row[1:])
        ours_sum += F.cross_entropy(own[:-1], targets, reduction="sum").item()
        theirs_sum += F.cross_entropy(other[:-1], targets, reduction="sum").item()
        count += len(row)
    assert agreed / count >= 0.99
    assert math.exp((theirs_sum - ours_sum) / (count - len(ids))) == pytest.approx(1, abs=5e-3)
    assert ours_sum / (count - len(ids)) < 2.5  # it has learnt: an untrained model has 5.7
    prompt = "the cat sees"
    theirs.reset()
    answer = theirs(prompt, max_tokens=24, temperature=0.0)["choices"][0]["text"]
    start = [tokenizer.special.sep, *tokenizer.encode([prompt])[0].tolist()]
    made = decode(
        model,
        [start],
        Generation(run="", max_new=24, greedy=True),
        pad_id=tokenizer.pad_id,
        end_id=tokenizer.special.sep,
    )
    new = [int(token) for token in made]
    assert prompt + answer == tokenizer.decode([*start, *new])
