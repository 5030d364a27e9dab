"""A checkpoint of transformers is trained in our parts, and goes back into its own format."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from chimera.cli.finished import export
from chimera.cli.train import main as train
from chimera.rundir.directory import RunDir
from chimera.train.restore import restore
from tests.export.folders import QUIET
from tests.kit import close
from tests.model.hf_folders import folder

WORDS = ["task=causal_lm", "data=text", *QUIET, "optim.lr=0.01", "trainer.max_steps=3"]
WORDS += ["model.max_len=32"]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small Llama, a text, and runs that began with the one and read the other."""
    root = tmp_path_factory.mktemp("original")
    folder("llama", root / "llama")
    config = json.loads((root / "llama/config.json").read_text())
    config |= {"auto_map": {"AutoModel": "evil.py"}}
    (root / "llama/config.json").write_text(json.dumps(config))
    (root / "text.txt").write_text("\n\n".join(["the cat sees a big red dog under one tree"] * 200))
    kinds = {"plain": [], "lora": ["adapter=lora"], "bits": ["quant=int8"]}
    kinds["post"] = ["model.norm_placement=post"]
    for name, more in kinds.items():
        words = [*WORDS, *more, f"data.path={root}/text.txt", f"run_dir={root}/{name}"]
        words += [f"init_from=hf:{root}/llama", f"data.cache_dir={root}/cache"]
        assert train(words) == 0, name
    return root


@pytest.mark.slow
@pytest.mark.parametrize("name", ["plain", "lora"])
def test_transformers_reads_what_was_trained(root: Path, name: str, tmp_path: Path) -> None:
    like, to = root / "llama", tmp_path / "back"
    assert export([f"run={root / name}", f"to={to}", f"like={like}"]) == 0
    theirs, before = (AutoModelForCausalLM.from_pretrained(f).eval() for f in (to, like))
    ids = AutoTokenizer.from_pretrained(to)("the cat sees a dog", return_tensors="pt").input_ids
    ours = restore(RunDir(root / name)).task.model.eval()
    with torch.no_grad():
        want = ours(ids).logits
        close(theirs(ids).logits[..., : want.shape[-1]], want, 1e-5)
        assert (before(ids).logits[..., : want.shape[-1]] - want).abs().max() > 1e-3
    assert "auto_map" not in json.loads((to / "config.json").read_text())
    assert {file.suffix for file in to.iterdir()} <= {".json", ".safetensors"}


@pytest.mark.slow
def test_what_cannot_go_back_is_one_line(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder("llama", other := tmp_path / "other")
    tokenizer = other / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text().replace('"sleeps"', '"dreams"'))
    like = f"like={root / 'llama'}"
    capsys.readouterr()
    refusals = {
        (f"run={root / 'bits'}", like): "quant=int8 rounds weights, which transformers does not",
        (f"run={root / 'post'}", like): "this run has model.norm_placement=post, the checkpoint",
        (f"run={root / 'plain'}", like, "packed=true"): "writes plain weights; leave out packed",
        (f"run={root / 'plain'}", f"like={other}"): "has another tokenizer than run=",
        (f"run={root / 'plain'}", "like=nowhere"): "config.json is missing",
    }
    for words, line in refusals.items():
        assert export([*words, f"to={tmp_path / 'to'}"]) == 2, line
        said = capsys.readouterr().err
        assert line in said
        assert said.count("\n") == 1
        assert not (tmp_path / "to").exists()
