"""Bad input: one clear line, exit code 2, nothing written, in seconds (SPEC; DESIGN Style).

The mistakes that people make on the command lines of all commands, in a folder that has a run,
damaged copies of it, and files of other programs.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from chimera.cli.main import main
from chimera.paths import ROOT
from tests.data.glue import cola
from tests.kit import Refused
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
    "project/README.md": b"mine",
    "mmlu/dev/art_dev.csv": b"Who?,a,b,c,d,A\n",
    "mmlu/test/art_test.csv": b"Who?,a,b,c,d,A\n",
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
COUNTER = "+callbacks.mine._target_=tests.train.tiny.Counter"
RANGE = "optim.lr=interval(1e-4,1e-2)"
#: Words after `train`, and what the one line has to say.
PLAIN: list[tuple[str, list[str]]] = [
    ("mixer=retnett", ["mixer=retnett", "did you mean 'retnet', ", "list mixer lists all"]),
    ("mixer=[retnet,mamba]", ["is not one name"]),
    ("mixr=retnet", ["mixr", "did you mean 'mixer'"]),
    ("+optm.lr=1", ["optm.lr", "optim.lr"]),
    ("lr=1", ["lr is no key", "optim.lr"]),
    ("max_steps=3", ["trainer.max_steps"]),
    ("+optim.lr=1", ["drop the +"]),
    ("++optim.lrr=1", ["optim.lr"]),
    ("~mixer", ["~mixer deletes"]),
    ("garbage", ["cannot read", "group=name"]),
    ("mamba", ["cannot read", "as in mixer=mamba"]),
    ("run_dir=/a/b=c", ["cannot read", "'run_dir=\"/a/b=c\"'"]),
    ("resume=x", ["resume is no key", "goes on by itself", "ckpt_path"]),
    ("optim.lr=", ["optim.lr="]),
    ("optim.lr=fast", ["optim.lr=fast", "a number above 0"]),
    ("optim.lr=-1", ["optim.lr=-1", "above 0"]),
    ("trainer.max_steps=2.5", ["trainer.max_steps=2.5", "an integer"]),
    ("trainer.max_steps=null", ["trainer.max_steps=null needs trainer.max_epochs"]),
    ("trainer.accelerator=tpu", ["trainer.accelerator=tpu", "auto, cpu, gpu"]),
    ("precision=fp8", ["precision=fp8", "fp32, bf16, fp16"]),
    ("model.dropout=1", ["model.dropout=1", "below 1"]),
    ("model.heads=3", ["model.heads=3", "model.dim=128"]),
    ("mixer=attention mixer.kv_heads=3", ["kv_heads=3", "heads=2"]),
    ("mixer=retnet mixer.decay=fast", ["mixer.decay=fast", "titan"]),
    ("mixer=retnet position=alibi", ["position=alibi", "mixer=retnet", "rope", "none"]),
    ("data=text", ["data.path"]),
    ("data=text data.path=/nowhere/at/all", ["/nowhere/at/all"]),
    ("tokenizer=bert tokenizer.path=/nowhere/vocab.txt", ["/nowhere/vocab.txt"]),
    ("tokenizer=own", ["tokenizer=own needs a model; give init_from=<a run>"]),
    ("trainer.accelerator=gpu", ["GPU", "cpu"]),
    ("trainer.compile=graphs", ["GPU", "trainer.compile=auto"]),
    ("mixer=pattern mixer.cycle=[retnet,atention]", ["atention", "attention"]),
    ("mixer=pattern mixer.members.mlstm.heads=2", ["mixer.members.mlstm"]),
    ("data=mad/party", ["data=mad/party", "did you mean 'mad/parity', "]),
    ("data/mad=parity", ["data/mad"]),
    ("run_dir=text.txt", ["run_dir", "text.txt"]),
    ("run_dir=/proc/x", ["run_dir=/proc/x cannot be made", "name a folder"]),
    ("'trainer.fast_dev_run=yes please'", ["trainer.fast_dev_run=yes please", "true or false"]),
    ("trainer.limit_train_batches=1.5", ["limit_train_batches=1.5", "above 0 and at most 1"]),
    ("trainer.limit_val_batches=0", ["trainer.limit_val_batches=0", "at least 1"]),
    ("trainer.val_check_interval=2.5", ["val_check_interval=2.5", "epoch"]),
    ("trainer.profilr=simple", ["did you mean 'trainer.profiler'"]),
    ("trainer.num_nodes=2", ["trainer.num_nodes=2", "srun", "torchrun --nnodes=2"]),
    ("trainer.devices=[0,1]", ["trainer.devices=[0, 1]", "an integer"]),
    ("trainer.devices=3 data.batch_size=16", ["data.batch_size=16", "multiple of 3"]),
    ("trainer=fsdp trainer.devices=2 precision=fp16", ["strategy=fsdp", "precision=bf16"]),
    ("trainer.timeout=0", ["trainer.timeout=0", "above 0"]),
    ("trainer.devices=0", ["trainer.devices=0", "at least 1"]),
    ("trainer.deterministic=maybe", ["trainer.deterministic=maybe", "warn"]),
    ("trainer.check_val_every_n_epoch=0.5", ["check_val_every_n_epoch=0.5", "an integer"]),
    ("trainer.strategy=dpp", ["trainer.strategy=dpp", "ddp, fsdp"]),
    ("+trainer.default_root_dir=x", ["run_dir="]),
    ("debug=overfitt", ["debug=overfitt", "did you mean 'overfit'"]),
    ("+debug=overfit", ["drop the +"]),
    ("tags=night", ["tags=night", "a list, each a text"]),
    ("extend=true", ["extend=true", "name its directory"]),
    ("extend=true run_dir=new", ["holds none; name its directory"]),
    ("ckpt_path=nowhere.ckpt", ["ckpt_path=nowhere.ckpt", "is no file"]),
    ("+optim.optimizer.momentum=0.9", ["optim.optimizer.momentum"]),
    ("quant=hbit quant.compute=int8", ["per_channel", "quant.activations=per_token"]),
    ("trainer.epochs=3", ["trainer.epochs is no key", "it is trainer.max_epochs here"]),
    ("hidden_size=64", ["it is model.dim here"]),
    ("device=cuda", ["trainer=gpu"]),
    ("config=my.yaml", ["config is no key", "--config-dir"]),
    ("--mixer mamba", ["--mixer is no flag", "no dashes: mixer=mamba"]),
    ("--epochs 3", ["--epochs is no flag", "trainer.max_epochs"]),
    ("data=text 'data.path=~/nowhere at all'", ["/nowhere at all"]),
    ("mixer=retnet,delta", ["mixer=retnet,delta gives several values", "-m"]),
    ("logger=wandb,csv", ["several values", "'logger=[wandb,csv]'"]),
    ("logger=[wandb,cvs]", ["logger=cvs is not known", "did you mean 'csv'"]),
    ("logger=[csv,csv]", ["logger=csv is named twice"]),
    ("logger=[csv,none]", ["logger=none is no logger"]),
    ("logger.projekt=x", ["logger.projekt is no key", "did you mean 'logger.project'"]),
    ("logger=csv +logger.nam=1", ["logger.nam is no argumen"]),
    ("logger=csv logger._target_=nowhere.Logger", ["logger._target_=nowhere.Logger is not avail"]),
    ("data=book.txt", ["data=text data.path=book.txt"]),
    ("data.path=book.txt", ["data.path is no key", "data=text data.path="]),
    ("callbacks.guard=null", ["callbacks.guard is missing"]),
    ("+callbacks.checkpoint.keep=1", ["callbacks.checkpoint names no class"]),
    ("callbacks.checkpoint.keep=1", ["did you mean"]),
    (f"{COUNTER} +callbacks.mine.evry=2", ["mine.evry is no argument of", "Counter; did you mean"]),
    ("+callbacks.mine._target_=tests.nowhere.Counter", ["is not available"]),
    (
        "+callbacks.mine._target_=lightning.pytorch.callbacks.EarlyStopping",
        ["EarlyStopping needs monitor; write +callbacks.mine.monitor="],
    ),
    (
        "+callbacks.mine._target_=my.Class",
        ["callbacks.mine._target_=my.Class is not available: No module named 'my'", "PYTHONPATH=."],
    ),
    ("-m extend=true seed=0,1", ["extend=true", "without -m"]),
    ("-m experiment=glob(*)", ["+<paper>/<table>=<row>"]),
    ("scale=tinny", ["scale=tinny", "smoke", "small"]),
    ("+bitnet_qdyt=norms", ["is a table", "-m"]),
    ("+bitnet_qdyt/norms=layernrm", ["did you mean 'layernorm'"]),
    ("bitnet_qdyt/norms=layernorm", ["write +"]),
    ("preset=bert", ["preset=bert is not known"]),
    ("launcher=slurm", ["launcher=slurm", "submitit"]),
    ("precision=auto launcher=submitit", ["looks at this machine"]),
    ("mixer=retnet mixer.kv_heads=2", ["mixer.kv_heads"]),
    (
        "norm=qdyt norm.callbacks.qdyt.warmup_steps=soon",
        ["soon is not allowed", "an integer"],
    ),
    ("mixer.kv_heads=none", ["mixer.kv_heads=none is not allowed"]),
    ("task.mask_ratio=2", ["task.mask_ratio=2 is not allowed"]),
    ("callbacks.checkpoints.keep=0", ["callbacks.checkpoints.keep=0 is not allowed"]),
    ("guard.policy=wait", ["guard.policy=wait is not allowed; it takes one of stop, skip"]),
    ("logger.online=perhaps", ["logger.online=perhaps is not allowed"]),
    ("replay=/nowhere run_dir=new", ["write python train.py replay="]),
    ("task.teacher=/nowhere", ["nowhere"]),
    ("task=glue", ["data=pydocs has none; use data=glue, data=es_glue or data=acceptability"]),
    ("task=glue data=glue data.path=/nowhere", ["data.path=/nowhere is no folder"]),
    ("data=glue data.task=cole", ["did you mean 'cola'?"]),
    ("model=hf", ["model=hf needs model.name="]),
    ("model=hf model.name=nobody/nothing", ["download it once while connected (hf download"]),
    ("model=hf model.name=/nowhere/nothing", ["does not exist; name a folder, or owner/name"]),
    (
        "task=glue data=glue data.path=glue init_from=run model.dim=64",
        ["omit model, its components and tokenizer"],
    ),
    ("-m mixer=retnet,attentoin", ["attentoin", "did you mean 'attention'"]),
    ("-m seed=range(0,0)", ["no jobs", "seed=range(0,0)"]),
    ("-m norm=glob(x*)", ["norm=glob(x*) matches nothing"]),
    ("-m seed=0,x", ["seed=x", "an integer"]),
    ("-m mixer=retnet,attention position=alibi", ["position=alibi", "[mixer=retnet]"]),
    ("-m seed=0,1 launcher=submitit launcher.timeout_min=0", ["timeout_min=0"]),
    ("-m seed=0,1 run_dir=new", ["several jobs"]),
    ("-m optim.lr=interval(1e-2,1e-4) search.trials=2", ["is no range: ", "low <= high"]),
    ("-m optim.lr=interval(-1,1) search.trials=2", ["optim.lr=-1 is not allowed"]),
    ("-m optim.lr=tag(log,interval(0,1)) search.trials=2", ["is no range: ", "low > 0"]),
    ("-m optim.lr=tag(lag,interval(1,2)) search.trials=2", ["the only one is log"]),
    ("-m optm.lr=interval(1e-4,1e-2) search.trials=2", ["optm.lr is no key"]),
    (f"-m {RANGE} search.trails=2", ["did you mean 'trials'"]),
    (f"-m {RANGE} search.pruner=asa", ["one of none, asha"]),
    (f"-m {RANGE}", ["add search.trials"]),
    ("-m optim.lr=1e-3 search.trials=2", ["no setting has a range"]),
    ("-m mixer=retnet,retnett search.trials=2", ["did you mean 'retnet'"]),
    ("-m model.depth=range(3,3) search.trials=2", ["matches nothing"]),
    ("hydra.sweep.dir=x", ["CHIMERA_RUNS"]),
    ("-m hydra.sweep.dir=x seed=0,1", ["CHIMERA_RUNS"]),
    ("hydra.output_subdir=null", ["config.yaml"]),
    ("hydra/sweeper=optuna", ["search.trials=<number>"]),
    ("-m hydra.sweeper.n_trials=3 seed=0,1", ["search.trials=<number>"]),
    ("-m hydra.launcher.n_jobs=2 seed=0,1", ["launcher=submitit"]),
    ("++hydra.run.dir=x", ["run_dir="]),
    ("+hydra.callbacks.x=1", ["+callbacks.<name>"]),
    ("hydra.nonsense=1", ["--help"]),
    ("--config-name other", ["preset="]),
    ("--experimental-rerun x.pickle", ["overrides.txt"]),
    ("--hydra-help", ["--help"]),
    ("--cfg hydra", ["--cfg job"]),
    ("--cfg", ["--cfg job"]),
    ("--cfg jobs", ["--cfg job"]),
    ("--package optim", ["--cfg job"]),
    ("--cfg job --package optm", ["did you mean 'optim'"]),
    ("--cfg job -m seed=0,1", ["leave out -m"]),
    ("--info defalts", ["choose from 'all', 'config'"]),
    ("--info=defalts", ["defaults-tree"]),
    ("--multi", ["did you mean '--multirun'"]),
    ("-sc install=tcsh", ["install=bash"]),
    ("-r -m seed=0,1", ["choose one of them"]),
    ("~trainer.max_steps", ["deletes a key"]),
    ("~optim.rates.nrom", ["did you mean 'optim.rates.norm'"]),
    ("optim.optimizer.momentum=0.9", ["write +optim.optimizer.momentum=0.9"]),
    ("+optim.schedule.decay=0.2", ["optim.schedule.decay is no key"]),
]
#: What a command line of `ON_TEXT` gets that does not say otherwise.
TEXT = (
    "data=text data.path=text.txt tokenizer=word data.cache_dir=cache logger=none run_dir=new"
    " trainer.max_steps=1"
)
ON_TEXT = [
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
    ("logger=wandb logger.project=a/b", ["W&B refuses", "Invalid project name 'a/b'"]),
    (f"logger=wandb tags=[{'x' * 65}]", ["W&B refuses", "is 65 characters"]),
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
    ("run_dir=nothing", ["run_dir=nothing cannot be made (it is a link to nothing)"]),
    ("run_dir='/proc/josé and b/x'", ["run_dir=/proc/josé and b/x cannot be made"]),
    ("run_dir=/dev/null/x", ["run_dir=/dev/null/x", "/dev/null is a file"]),
    ("run_dir=bad_yaml", ["bad_yaml/config.yaml cannot be read"]),
    ("run_dir=list_yaml", ["list_yaml/config.yaml"]),
    ("run_dir=old_yaml", ["old_yaml"]),
    ("run_dir=run", ["holds another run", "overwrite=true"]),
    ("init_from=/nowhere/at/all", ["init_from=/nowhere/at/all", "a run's directory"]),
    ("init_from=fake.ckpt", ["init_from=fake.ckpt", "is a file outside a run's checkpoints/"]),
    ("ckpt_path=fake.ckpt", ["fake.ckpt"]),
]
#: Words after `chimera`.
OTHERS = [
    ("trian", ["trian is no command", "did you mean 'train'", "generate"]),
    ("mamba", ["mamba is no command", "chimera list mamba shows this part"]),
    ("mixer=retnet", ["chimera train mixer=retnet"]),
    ("-m seed=0,1", ["write the command first"]),
    ("+saidl/attention=gqa", ["chimera train +saidl/attention=gqa"]),
    ("list everything", ["cannot list 'everything'"]),
    ("list mixer mamba nope", ["cannot list 'nope'"]),
    ("list tables --multirun", ["list takes no -m"]),
    ("sweep seed=range(0,1000000000)", ["1,000,000,000 values", "at most 100,000"]),
    ("sweep seed=range(0,1000) optim.warmup=range(0,1000)", ["1,000,000 jobs"]),
    ("show mixer=retnett", ["mixer=retnett"]),
    ("show mixer=gqa --cfg job", ["train", "--cfg job"]),
    ("show seed=0,1 --multirun", ["leave it out and the values of the other jobs"]),
    ("show format=pdf", ["format=pdf is not allowed; it takes one of text"]),
    ("eval run=", ["run= is missing"]),
    ("eval rnu=x", ["rnu=x", "did you mean 'run'"]),
    ("eval somewhere", ["length="]),
    ("eval run=run length=0", ["length=0 is not allowed"]),
    ("eval run=run length=1e-3", ["length=1e-3", "an integer"]),
    ("eval run=run length=100000000", ["max_len=16", "100000000"]),
    ("eval run=run/checkpoints/last.ckpt", ["last.ckpt is a file", "run=run"]),
    ("eval run=other", ["other holds no config.yaml"]),
    ("eval run=binary_yaml", ["binary_yaml/config.yaml cannot be read"]),
    ("eval run=bad_test_data", ["bad_test_data/test.npz is not readable"]),
    ("eval run=no_tokenizer", ["no_tokenizer/tokenizer holds no saved tokenizer"]),
    ("eval run=bad_record", ["bad_record/run.json cannot be read"]),
    ("mmlu run=run data=/no out=other", ["out=other is a folder"]),
    ("mmlu run=run data=/no out=nothing", ["out=nothing is a link"]),
    ("mmlu run=run data=/no out=/proc/x/y.json", ["out=/proc/x cannot be made"]),
    ("mmlu run=run data=/no out=/proc/y.json", ["out=/proc/y.json cannot be written"]),
    ("mmlu run=run data=mmlu subjects=[art,bart]", ["subjects=bart is not known", "'art'"]),
    ("generate run=run max_new=-1", ["max_new=-1 is not allowed"]),
    ("generate run=run prompts=nowhere.txt", ["prompts=nowhere.txt is not there"]),
    ("generate run=run prompts=latin.txt", ["latin.txt", "not UTF-8", "iconv"]),
    ("generate run=run prompts=empty.txt", ["holds no prompt"]),
    ("generate run=run prompt=x max_new=99", ["max_new=99 after a prompt", "max_len=16", "lower"]),
    ("generate run=run prompt=x seed=99999999999", ["seed=99999999999", "at most 4294967295"]),
    ("generate run=bad_checkpoint prompt=x", ["last.ckpt", "or is damaged"]),
    ("generate run=no_checkpoint prompt=x", ["no_checkpoint has no checkpoint"]),
    ("export somewhere", ["adapter=merge|keep|alone"]),
    ("export run=run to=model.onnx", ["to=model.onnx: .onnx is not written", "safetensors"]),
    ("export run=run to=text.txt", ["to=text.txt: ", "is a file"]),
    ("export run=run to=project", ["to=project contains README.md, which no export wrote"]),
    ("export run=run to=/proc/x", ["to=/proc/x cannot be made"]),
    ("export run=run to=", ["to= is missing"]),
    ("compare run by=lr", ["by=lr: no run has this key; did you mean 'optim.lr'"]),
    ("compare run metric=val/perplexty", ["did you mean 'val/perplexity'"]),
    ("compare run better=best", ["better=best"]),
    ("compare run --by", ["did you mean 'by'"]),
    ("compare run --depth 3", ["cannot read '--depth'"]),
    ("compare nowhere", ["nowhere is no folder"]),
    ("report", ["no table is named"]),
    ("report saidl/attention seed=a", ["seed=a", "an integer"]),
    ("report saidl/attention optim.lrr=1", ["optim.lrr"]),
    ("report saidl/attention out=/proc/x", ["out=/proc/x cannot be made"]),
    ("report bitnet_qdyt/norms overwrite=true", ["overwrite=true is for training"]),
    (
        "report bitnet_qdyt/norms rows=layernom",
        ["rows=layernom is not known; choose one of", "did you mean 'layernorm'?"],
    ),
    ("dashboard no/such", ["no/such"]),
    ("table", ["name a table"]),
    ("table saidl/attentoin", ["saidl/attentoin", "saidl/attention"]),
    ("sweep", ["a sweep varies something"]),
    ("sweep seed=a,b", ["seed=a"]),
    ("sweep mixer=retnett", ["mixer=retnett", "did you mean 'retnet'"]),
    ("clean nowhere", ["nowhere is no folder"]),
    ("clean run yes=perhaps", ["yes=perhaps"]),
    ("clean run stale=0", ["stale=0"]),
    ("clean run stael=3", ["cannot read 'stael=3'"]),
    ("clean run --force", ["cannot read '--force'"]),
    ("doctor format=xml", ["format=xml"]),
    ("doctor everything", ["cannot read 'everything'"]),
    ("doctor fromat=json", ["did you mean 'format'"]),
    ("records", ["records takes add or check"]),
    ("records ad", ["did you mean 'add'?"]),
    ("records add nowhere", ["nowhere is no folder"]),
    ("records add overwrit=true", ["cannot read 'overwrit=true'"]),
    ("records check runs", ["records check takes no more words"]),
]
CASES = [
    *(("train", words, "", says) for words, says in PLAIN),
    *(("train", words, TEXT, says) for words, says in ON_TEXT),
    *(("", words, "", says) for words, says in OTHERS),
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of task=causal_lm, damaged copies of it, and other files."""
    folder = tmp_path_factory.mktemp("strangers")
    cola(folder / "glue")
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
    for name, contents in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(contents)
    (folder / "nothing").symlink_to("nowhere")
    return folder


def held(folder: Path) -> dict[Path, int]:
    """Every path below a folder but those of caches, with the size of a file."""
    paths = [path for path in folder.rglob("*") if "cache" not in path.parts]
    return {path: path.lstat().st_size * path.is_file() for path in paths}


@pytest.mark.parametrize(("command", "words", "text", "says"), CASES, ids=lambda v: str(v)[:70])
def test_one_line_exit_2_nothing_written(
    command: str,
    words: str,
    text: str,
    says: Sequence[str],
    place: Path,
    refused: Refused,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setenv("CHIMERA_RUNS", str(place / "runs"))
    before, given = held(place), shlex.split(words)
    reads = text or re.search(r"\brun=|=run\b", words)
    named = {word.partition("=")[0] for word in given}
    added = [word for word in text.split() if word.partition("=")[0] not in named]
    refused(main, [*command.split(), *added, *given], *says, read=bool(reads))
    assert held(place) == before


#: One per stage of the checks; the light ones are over before torch is loaded.
LIGHT = [
    *(["mixer=retnett"], ["mixer.windw=3"], ["+optim.lrr=1"], ["optim.lr=fast"]),
    ["data=text", "data.path=/no"],
]
HEAVY = [["mixer=retnet", "position=alibi"], ["mixer.kv_heads=two"]]


@pytest.mark.parametrize(
    "argv",
    [
        LIGHT[0],
        HEAVY[0],
        *(pytest.param(argv, marks=pytest.mark.slow) for argv in (*LIGHT[1:], *HEAVY[1:])),
    ],
    ids=" ".join,
)
def test_cold_start(argv: list[str], tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "train.py"), *argv],
        cwd=tmp_path, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


#: Run the light mistakes, and check the settings of every part of a good command line.
EARLY = """
import sys
from chimera.cli.train import main
from chimera.config.compose import compose, plain
from chimera.train.check import check_settings
check_settings(plain(compose(['mixer=pattern', 'norm=qdyt', 'adapter=adalora', 'logger=csv'])))
codes = {main(line.split()) for line in sys.argv[1:]}
sys.exit(codes != {2} or 'torch' in sys.modules or 'lightning' in sys.modules)
"""


def test_what_can_be_known_early_is_said_before_torch_is_loaded() -> None:
    lines = [" ".join(argv) for argv in LIGHT]
    lines += [words for words, says in PLAIN if any("is not allowed" in text for text in says)]
    done = subprocess.run([sys.executable, "-c", EARLY, *lines], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(lines) == done.stderr.count("error: ") == 12
