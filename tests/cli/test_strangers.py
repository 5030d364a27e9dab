"""Command lines as a stranger types them: a mistake is one line, exit code 2, nothing written."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from chimera.cli.main import main
from tests.train import tiny

#: Names of the folder's entries, and what they hold.
FILES = {
    "latin.txt": "café au lait\n\n".encode("latin1") * 50,
    "empty.txt": b"",
    "blank.txt": b"\n \n\n",
    "binary.txt": bytes(range(256)) * 20,
    "short.txt": b"one two\n",
    "fake.ckpt": b"not a checkpoint",
    "other/model.bin": b"of another program",
}
#: A run's directory with one file replaced, or without it.
BROKEN: dict[str, tuple[str, bytes | None]] = {
    "bad_yaml": ("config.yaml", b"a: [1,\n b: {"),
    "list_yaml": ("config.yaml", b"- 1\n- 2\n"),
    "old_yaml": ("config.yaml", b"model:\n  dim: 3\nseed: 1\n"),
    "binary_yaml": ("config.yaml", bytes(range(256))),
    "bad_record": ("run.json", b"{oops"),
    "bad_test_data": ("test.npz", b"xx"),
    "no_tokenizer": ("tokenizer/tokenizer.json", None),
    "bad_checkpoint": ("checkpoints/last.ckpt", b"garbage"),
    "no_checkpoint": ("checkpoints/last.ckpt", None),
}
#: What a command line of `TRAIN` gets that does not say otherwise.
TEXT = (
    "data=text data.path=text.txt tokenizer=word data.cache_dir=cache logger=none run_dir=new"
    " trainer.max_steps=1"
)

TRAIN = [
    ("mixer:mamba", ["cannot read", "group=name"]),
    ("optim.rates={x:3}", ["optim.rates.x", "no part is called x", "attention"]),
    ("optim.rates=[1,2]", ["would replace a mapping", "optim.rates.<name>=…", "attention"]),
    ("optim.rates.attention=fast", ["optim.rates.attention=fast", "a number of at least 0"]),
    ("optim.schedule=cosine", ["optim.schedule=cosine names a choice; write schedule=cosine"]),
    ("optim.lr=1e999", ["optim.lr=inf", "a finite number"]),
    ("seed=4294967296", ["seed=4294967296", "at most 4294967295"]),
    ("model.dim=1000000000000", ["more bytes than any memory", "model.dim"]),
    ("data.batch_size=100000000000", ["fewer than a batch of 100000000000", "batch_size"]),
    ("model.max_len=16 data.seq_len=32", ["max_len=16 positions", "32", "model.max_len"]),
    ("task=causal_lm model.max_len=16 task.longer=[4]", ["max_len=16 positions", "64"]),
    ("task=causal_lm model.max_len=16 task.cost_at=[99]", ["max_len=16 positions", "99"]),
    ("mixer=pattern mixer.cycle=[]", ["mixer.cycle"]),
    ("mixer=pattern mixer.cylce=[retnet]", ["mixer.cylce", "did you mean 'mixer.cycle'"]),
    ("mixer.cycle=[retnet]", ["mixer.cycle", "mixer=pattern"]),
    ("trainer.fast_dev_run", ["cannot read the override 'trainer.fast_dev_run'"]),
    ("name=äöü/x", ["name=äöü/x"]),
    ("name=", ["name= is not allowed", "letters, digits"]),
    ("trainer.max_time=12h", ["trainer.max_time=12h", "DD:HH:MM:SS"]),
    ("data.path=latin.txt", ["latin.txt", "is not UTF-8", "iconv"]),
    ("data.path=binary.txt", ["binary.txt is not UTF-8 text", "zero bytes"]),
    ("data.path=empty.txt", ["empty.txt holds no text"]),
    ("data.path=short.txt", ["2 documents", "too few to divide"]),
    ("data.path=", ["data.path= is empty"]),
    ("data.cache_dir=/proc/x", ["data.cache_dir=/proc/x", "another folder"]),
    ("tokenizer=own tokenizer.path=other", ["tokenizer.path=other holds none of"]),
    ("run_dir=", ["run_dir= is empty"]),
    ("init_from=", ["init_from= is empty"]),
    ("tokenizer=sentencepiece tokenizer.vocab_size=3", ["vocab_size=3", "special pieces"]),
    ("run_dir=other", ["run_dir=other contains files that are not part of a run"]),
    ("run_dir=/dev/null/x", ["run_dir=/dev/null/x", "/dev/null is a file"]),
    ("run_dir=bad_yaml", ["bad_yaml/config.yaml cannot be read"]),
    ("run_dir=list_yaml", ["list_yaml/config.yaml"]),
    ("run_dir=old_yaml", ["old_yaml"]),
    ("run_dir=run", ["holds another run", "overwrite=true"]),
    ("init_from=/nowhere/at/all", ["init_from=/nowhere/at/all", "a run's directory"]),
    ("init_from=fake.ckpt", ["init_from=fake.ckpt", "checkpoints/"]),
    ("ckpt_path=fake.ckpt", ["fake.ckpt"]),
]
OTHERS = [
    ("eval run=", ["run= is missing"]),
    ("eval run=run/checkpoints/last.ckpt", ["last.ckpt is a file", "run=run"]),
    ("eval run=other", ["other holds no config.yaml"]),
    ("eval run=binary_yaml", ["binary_yaml/config.yaml cannot be read"]),
    ("eval run=bad_test_data", ["bad_test_data/test.npz is not readable"]),
    ("eval run=no_tokenizer", ["no_tokenizer/tokenizer holds no saved tokenizer"]),
    ("eval run=bad_record", ["bad_record/run.json cannot be read"]),
    ("eval run=run length=100000000", ["max_len=16", "100000000"]),
    ("generate run=run prompts=latin.txt", ["latin.txt", "not UTF-8", "iconv"]),
    ("generate run=run prompts=empty.txt", ["holds no prompt"]),
    ("generate run=run prompt=x max_new=99", ["max_new=99 after a prompt", "max_len=16", "lower"]),
    ("generate run=run prompt=x seed=99999999999", ["seed=99999999999", "at most 4294967295"]),
    ("generate run=bad_checkpoint prompt=x", ["last.ckpt", "or is damaged"]),
    ("generate run=no_checkpoint prompt=x", ["no_checkpoint has no checkpoint"]),
    ("export run=run to=model.onnx", ["to=model.onnx: .onnx is not written", "safetensors"]),
    ("compare run by=lr", ["by=lr: no run has this key; did you mean 'optim.lr'"]),
    ("export run=run to=text.txt", ["to=text.txt: ", "is a file"]),
    ("export run=run to=project", ["to=project contains README.md, which no export wrote"]),
    ("export run=run to=/proc/x", ["to=/proc/x cannot be made"]),
    ("export run=run to=", ["to= is missing"]),
    ("report saidl/attention seed=a", ["seed=a", "an integer"]),
    ("report saidl/attention out=/proc/x", ["out=/proc/x cannot be made"]),
    ("table saidl/attentoin", ["saidl/attentoin", "saidl/attention"]),
    ("eval run=run length=1e-3", ["length=1e-3", "an integer"]),
    ("sweep", ["a sweep varies something"]),
    ("sweep seed=a,b", ["seed=a"]),
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of task=causal_lm, damaged copies of it, and other files."""
    folder = tmp_path_factory.mktemp("strangers")
    tiny.write(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        line = [*tiny.LINE, "task=causal_lm", "trainer.max_steps=1", "run_dir=run"]
        assert main(["train", *line]) == 0
    for name, (file, contents) in BROKEN.items():
        shutil.copytree(folder / "run", folder / name)
        (folder / name / file).unlink()
        if contents is not None:
            (folder / name / file).write_bytes(contents)
    for name, contents in {**FILES, "project/README.md": b"mine"}.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(contents)
    return folder


@pytest.fixture
def refused(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[list[str], list[str]], None]:
    """Run a command that has to end with one line that has these words."""
    monkeypatch.chdir(place)
    monkeypatch.setenv("CHIMERA_RUNS", str(place / "runs"))

    def run(words: list[str], says: list[str]) -> None:
        before = sorted(place.rglob("*"))
        assert main(words) == 2
        lines = capsys.readouterr().err.splitlines()
        # Text has to be read before it can be refused; that is said before.
        *_, line = [line for line in lines if not line.startswith(("data: ", "tokenizer: "))]
        assert line.startswith("error: ")
        assert [text for text in lines if "Traceback" in text] == []
        assert not [word for word in says if word not in line], line
        new = [p for p in sorted(place.rglob("*")) if p not in before]
        assert not [p for p in new if "cache" not in p.parts]

    return run


@pytest.mark.parametrize(("words", "says"), TRAIN, ids=[words for words, _ in TRAIN])
def test_train(words: str, says: list[str], refused: Callable[..., None]) -> None:
    given = words.split()
    named = {word.partition("=")[0] for word in given}
    added = [word for word in TEXT.split() if word.partition("=")[0] not in named]
    refused(["train", *added, *given], says)


@pytest.mark.parametrize(("words", "says"), OTHERS, ids=[words for words, _ in OTHERS])
def test_other_commands(words: str, says: list[str], refused: Callable[..., None]) -> None:
    refused(words.split(), says)


def test_a_folder_of_another_project_is_not_deleted(
    place: Path, refused: Callable[..., None]
) -> None:
    refused(["export", "run=run", "to=project"], ["contains README.md, which no export wrote"])
    assert (place / "project/README.md").read_bytes() == b"mine"
