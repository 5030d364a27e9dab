"""Bad input: one clear line, exit code 2, nothing written, in seconds (SPEC; DESIGN Style)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from chimera.cli.eval import main as evaluate
from chimera.cli.export import main as export
from chimera.cli.train import main as train
from chimera.paths import ROOT

#: A command line, and what its one line has to say.
BAD: list[tuple[list[str], list[str]]] = [
    (["mixer=retnett"], ["mixer=retnett", "attention", "did you mean 'retnet'"]),
    (["model=[encoder_small,hf]"], ["not one name"]),
    (["mixr=retnet"], ["mixr", "did you mean 'mixer'"]),
    (["+optm.lr=1"], ["optm.lr", "optim.lr"]),
    (["lr=1"], ["lr is no key", "optim.lr"]),
    (["max_steps=3"], ["trainer.max_steps"]),
    (["+optim.lr=1"], ["drop the +"]),
    (["++optim.lrr=1"], ["optim.lr"]),
    (["~mixer"], ["~mixer deletes"]),
    (["garbage"], ["cannot read", "group=name"]),
    (["run_dir=/a/b=c"], ["cannot read", "'run_dir=\"/a/b=c\"'"]),
    (["resume=x"], ["resume is no key", "goes on by itself", "ckpt_path"]),
    (["optim.lr="], ["optim.lr="]),
    (["optim.lr=fast"], ["optim.lr=fast", "a number above 0"]),
    (["optim.lr=-1"], ["optim.lr=-1", "above 0"]),
    (["trainer.max_steps=2.5"], ["trainer.max_steps=2.5", "an integer"]),
    (["trainer.accelerator=tpu"], ["trainer.accelerator=tpu", "auto, cpu, gpu"]),
    (["precision=fp8"], ["precision=fp8", "fp32, bf16, fp16"]),
    (["model.dropout=1"], ["model.dropout=1", "below 1"]),
    (["model.heads=3"], ["model.heads=3", "model.dim=128"]),
    (["mixer=attention", "mixer.kv_heads=3"], ["kv_heads=3", "heads=2"]),
    (["mixer=retnet", "mixer.decay=fast"], ["mixer.decay=fast", "titan"]),
    (["mixer=retnet", "position=alibi"], ["position=alibi", "mixer=retnet", "rope", "none"]),
    (["data=text"], ["data.path"]),
    (["data=text", "data.path=/nowhere/at/all"], ["/nowhere/at/all"]),
    (["tokenizer=bert", "tokenizer.path=/nowhere/vocab.txt"], ["/nowhere/vocab.txt"]),
    (["trainer.accelerator=gpu"], ["GPU", "cpu"]),
    (["mixer=pattern", "mixer.cycle=[retnet,atention]"], ["atention", "attention"]),
    (["run_dir=train.py"], ["run_dir", "train.py"]),
    (["run_dir=/proc/x"], ["run_dir=/proc/x cannot be made", "name a folder"]),
    (["trainer.fast_dev_run=yes please"], ["trainer.fast_dev_run=yes please", "true or false"]),
    (["trainer.limit_train_batches=1.5"], ["limit_train_batches=1.5", "above 0 and at most 1"]),
    (["trainer.limit_val_batches=0"], ["trainer.limit_val_batches=0", "at least 1"]),
    (["trainer.val_check_interval=2.5"], ["val_check_interval=2.5", "epoch"]),
    (["trainer.profilr=simple"], ["did you mean 'trainer.profiler'"]),
    (["trainer.num_nodes=2"], ["trainer.num_nodes=2", "torchrun"]),
    (["trainer.devices=[0,1]"], ["trainer.devices=[0, 1]", "an integer"]),
    (["trainer.deterministic=maybe"], ["trainer.deterministic=maybe", "warn"]),
    (["trainer.check_val_every_n_epoch=0.5"], ["check_val_every_n_epoch=0.5", "an integer"]),
    (["trainer.strategy=dpp"], ["trainer.strategy=dpp", "ddp"]),
    (["+trainer.default_root_dir=x"], ["run_dir="]),
    (["debug=overfitt"], ["debug=overfitt", "did you mean 'overfit'"]),
    (["+debug=overfit"], ["drop the +"]),
    (["tags=night"], ["tags=night", "a list, each a text"]),
    (["extend=true"], ["extend=true", "name its directory"]),
    (["ckpt_path=nowhere.ckpt"], ["ckpt_path=nowhere.ckpt", "is no file"]),
    (["+optim.optimizer.momentum=0.9"], ["optim.optimizer.momentum"]),
    (["quant=hbit", "quant.compute=int8"], ["per_channel", "quant.activations=per_token"]),
    (["trainer.epochs=3"], ["trainer.epochs is no key", "it is trainer.max_epochs here"]),
    (["hidden_size=64"], ["it is model.dim here"]),
    (["device=cuda"], ["trainer=gpu"]),
    (["config=my.yaml"], ["config is no key", "--config-dir"]),
    (["--mixer", "mamba"], ["--mixer is no flag", "no dashes: mixer=mamba"]),
    (["--epochs", "3"], ["--epochs is no flag", "trainer.max_epochs"]),
    (["data=text", "data.path=~/nowhere at all"], ["/nowhere at all"]),
    (["mixer=retnet,delta"], ["mixer=retnet,delta gives several values", "-m"]),
    (["logger=wandb,csv"], ["several values", "'logger=[wandb,csv]'"]),
    (["data=book.txt"], ["data=text data.path=book.txt"]),
    (["data.path=book.txt"], ["data.path is no key", "data=text data.path="]),
    (
        ["+callbacks.mine._target_=my.Class"],
        ["callbacks.mine._target_=my.Class is not available: No module named 'my'", "PYTHONPATH=."],
    ),
    (["-m", "extend=true", "seed=0,1"], ["extend=true", "without -m"]),
    (["-m", "experiment=glob(*)"], ["+<paper>/<table>=<row>"]),
    (["scale=tiny"], ["scale=tiny", "smoke", "small"]),
    (["+bitnet_qdyt=norms"], ["is a table", "-m"]),
    (["launcher=slurm"], ["launcher=slurm", "submitit"]),
    (["mixer=retnet", "mixer.kv_heads=2"], ["mixer.kv_heads"]),
    (["norm=qdyt", "norm.callbacks.qdyt.warmup_steps=soon"], ["warmup_steps=soon", "an integer"]),
    (["replay=/nowhere"], ["write python train.py replay="]),
    (["task.teacher=/nowhere"], ["nowhere"]),
    (["-m", "mixer=retnet,attentoin"], ["attentoin", "did you mean 'attention'"]),
    (["-m", "seed=range(0,0)"], ["no jobs", "seed=range(0,0)"]),
    (["-m", "seed=0,x"], ["seed=x", "an integer"]),
    (["-m", "mixer=retnet,attention", "position=alibi"], ["position=alibi", "[mixer=retnet]"]),
    (["-m", "seed=0,1", "launcher=submitit", "launcher.timeout_min=0"], ["timeout_min=0"]),
    (["-m", "seed=0,1"], ["several jobs"]),
]


@pytest.mark.parametrize(("argv", "says"), BAD, ids=lambda v: " ".join(v) if v else "")
def test_one_line_exit_2_nothing_written(
    argv: list[str], says: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    aim = tmp_path / "run"
    named = [] if any(word.startswith("run_dir=") for word in argv) else [f"run_dir={aim}"]
    assert train([*argv, *named]) == 2
    line = capsys.readouterr().err
    assert line.startswith("error: ")
    assert line.count("\n") == 1
    assert not [word for word in says if word not in line], line
    assert not aim.exists()


#: One per stage of the checks; the light ones are over before torch is loaded.
LIGHT = [["mixer=retnett"], ["+optim.lrr=1"], ["optim.lr=fast"], ["data=text", "data.path=/no"]]
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


def test_light_errors_do_not_load_torch() -> None:
    code = (
        "import sys; from chimera.cli.train import main as train; train(sys.argv[1:]);"
        "sys.exit('torch' in sys.modules or 'lightning' in sys.modules)"
    )
    for argv in LIGHT:
        done = subprocess.run([sys.executable, "-c", code, *argv], capture_output=True)
        assert done.returncode == 0, argv


def test_help_names_every_group(capsys: pytest.CaptureFixture[str]) -> None:
    assert train(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(word in shown for word in ("mixer", "retnet", "train.py -m", "scale", "smoke"))


def test_the_small_commands_say_how_they_are_written(capsys: pytest.CaptureFixture[str]) -> None:
    for command, option in ((evaluate, "length="), (export, "adapter=merge|keep|alone")):
        assert command(["--help"]) == 0
        assert option in capsys.readouterr().out
        assert command(["somewhere"]) == 2
        assert option in capsys.readouterr().err
