"""A component is one Python file and one YAML file; no other file changes."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from chimera.paths import ROOT
from tests import forks

MIXER = '''
"""Mean of the tokens so far."""
import torch
from chimera.contract import CAUSAL, Mixer, Out

class RunningMean(Mixer):
    component = "toy"
    directions = CAUSAL

    def __init__(self, site, parts, *, gain: float = 1.0):
        super().__init__()
        self.gain = gain
        self.proj = parts.linear(site.dim, site.dim, bias=False, role="out")

    def init_state(self, batch):
        like = self.proj.weight
        return like.new_zeros(batch, 1, like.shape[1]), like.new_zeros(batch, 1, 1)

    def forward(self, x, ctx, state=None):
        real = torch.ones_like(x[..., :1]) if ctx.mask is None else ctx.mask[..., None].to(x.dtype)
        total, count = (x * real).cumsum(1), real.cumsum(1)
        if state is not None:
            total, count = total + state[0], count + state[1]
            state = (total[:, -1:], count[:, -1:])
        return Out(self.proj(self.gain * total / count.clamp(min=1)), state)
'''
YAML = "_target_: chimera.mixer.toy.RunningMean\n_partial_: true\ngain: 1.0\n"


@pytest.mark.slow  # tests/config/test_strangers.py does the same from another folder
def test_two_files_make_a_mixer_that_trains_and_is_tested(tmp_path: Path) -> None:
    for folder in ("src", "conf", "tests"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("*.pyc"))
    for file in ("train.py", "pyproject.toml"):
        shutil.copy(ROOT / file, tmp_path)
    (tmp_path / "src/chimera/mixer/toy.py").write_text(MIXER)
    (tmp_path / "conf/mixer/toy.yaml").write_text(YAML)
    (tmp_path / "text.txt").write_text("A line of words to learn from, once more.\n\n" * 400)

    def python(*words: str) -> subprocess.CompletedProcess[str]:
        return forks.run(*words, root=tmp_path, cwd=tmp_path)

    trained = python(
        "train.py", "mixer=toy", "mixer.gain=0.5", "scale=smoke", "data=text", "data.path=text.txt",
        f"data.cache_dir={tmp_path / 'cache'}", "run_dir=out", "logger=none", "trainer.max_steps=2",
    )  # fmt: skip
    assert trained.returncode == 0, trained.stderr
    assert (tmp_path / "out/run.json").exists()
    collected = python("-m", "chimera.contract_tests", "mixer=toy", "-x", "-k=TestEvery")
    assert collected.returncode == 0, collected.stdout[-3000:]
    assert " passed" in collected.stdout
    misspelt = python("train.py", "mixer=toy", "mixer.gian=2", "data=text", "data.path=text.txt")
    assert misspelt.returncode == 2
    assert misspelt.stderr.count("\n") == 1
    assert "gain" in misspelt.stderr
