"""Settings of Hydra, Lightning and lightning-hydra-template that have another name here.

Such a key is never ignored: it is refused in one line that says what to use.
"""

from __future__ import annotations

import re

from chimera.errors import UserError
from chimera.program import spelt

#: Flags of Hydra that a command here does not have.
FLAGS = {
    "--config-name": "the configuration is conf/config.yaml; choose preset=<name> or"
    " +<paper>/<table>=<row>",
    "--config-path": "add a folder of your own with --config-dir=<folder>",
    "--experimental-rerun": "start the same command again, or write"
    f" {spelt('train')} $(cat <run>/overrides.txt)",
    "--hydra-help": f"{spelt('train')} --help lists flags, groups and tables",
}
FLAGS |= {"-cn": FLAGS["--config-name"], "-cp": FLAGS["--config-path"]}

#: Hydra's own settings; a key stands for all keys below it.
HYDRA = {
    "hydra": "a run has no settings of Hydra's own; --help lists what it has",
    "hydra.run": "run_dir=<folder> is the directory of a run",
    "hydra.output_subdir": "config.yaml and overrides.txt are in the run's directory itself",
    "hydra.sweep": "run_dir='<folder>/lr-${optim.lr}' varies with the job, and the variable"
    " CHIMERA_RUNS=<folder> holds all runs",
    "hydra.sweeper": "a sweeper needs a sweep; start one with -m",
    "hydra.sweeper.max_batch_size": "workers=<n> is the number of jobs at a time",
    "hydra.launcher": "launcher=local with workers=<n> starts n jobs at a time on this machine,"
    " launcher=submitit uses Slurm",
    "hydra.mode": "start a sweep with -m",
    "hydra.verbose": "trainer.progress=lines and trainer.log_every_n_steps=1 print every step",
    "hydra.job_logging": "a run prints to standard error; trainer.progress=none keeps it quiet",
    "hydra.hydra_logging": "a run prints to standard error; trainer.progress=none keeps it quiet",
    "hydra.callbacks": "+callbacks.<name>._target_=package.Class adds a Lightning callback",
    "hydra.job": "name=<name> is the name of a run",
    "hydra.job.chdir": "a run never changes its working directory",
    "hydra.job.env_set": f"set variables before the command: NAME=value {spelt('train')} …",
    "hydra.job.env_copy": "the jobs of a sweep inherit the whole environment",
    "hydra.searchpath": "write --config-dir=<folder>, or hydra.searchpath=[file://<folder>]",
}

#: Arguments of Lightning's Trainer that something else sets, and those of its earlier versions.
TRAINER = {
    "callbacks": "+callbacks.<name>._target_=package.Class adds one, callbacks.<name>=null removes"
    " one",
    "logger": "logger=wandb, csv, none or a file of your own chooses them",
    "plugins": "precision= and the Trainer's own checkpoint plugin set them",
    "default_root_dir": "run_dir=<folder> is the directory of a run",
    "enable_checkpointing": "trainer.checkpoint_every_n_steps and trainer.checkpoint_keep set how"
    " often and how many; a run always has its last checkpoint",
    "barebones": "logger=none, trainer.progress=none and trainer.checkpoint_every_n_steps switch"
    " each part off by itself",
    "use_distributed_sampler": "the loaders of data=<name> share the batches themselves",
    "precision": "precision=fp32, bf16 or fp16 sets it, without trainer.",
    "enable_progress_bar": "trainer.progress=auto, bar, lines or none sets it",
    "model_registry": "it needs Lightning's own checkpoint callback; export.py writes models",
    "gpus": "trainer=gpu or trainer=cpu chooses the device",
    "tpu_cores": "trainer=gpu or trainer=cpu chooses the device",
    "amp_backend": "precision=bf16 or fp16 sets mixed precision",
    "amp_level": "precision=bf16 or fp16 sets mixed precision",
    "resume_from_checkpoint": "the same command resumes a run; ckpt_path=<file> names a checkpoint",
    "terminate_on_nan": "guard=stop or guard=skip says what happens to a step that is not finite",
    "track_grad_norm": "steps.csv has the gradient norm of every step",
    "weights_summary": "trainer.enable_model_summary=true prints Lightning's table",
    "stochastic_weight_avg": "+callbacks.swa._target_=<Lightning's StochasticWeightAveraging>"
    " +callbacks.swa.swa_lrs=1e-4",
}

#: Keys of lightning-hydra-template, of Lightning's Trainer in its versions, and near ones.
OTHER = {
    "experiment": "+<paper>/<table>=<row> chooses a row, preset=<name> a model; files of your own"
    " are found with --config-dir=<folder>",
    "hparams_search": "-m search.trials=<number> searches, with ranges as in"
    " optim.lr=interval(1e-4,1e-2)",
    "search": "a search is a sweep; start it with -m",
    "datamodule": "data=<name> chooses a data set",
    "paths": "run_dir=<folder>, data.path=<folder>, and the variable CHIMERA_RUNS=<folder>",
    "extras": "a run prints its parameters, and --cfg job its configuration",
    "task_name": "name=<name> is the name of a run, tags=[a,b] are its tags",
    "train": f"a run always trains; {spelt('eval')} run=<dir> only tests",
    "mixer.cycle": "mixer=pattern mixer.cycle=[retnet,mamba] is a list of mixers, layer by layer",
    "resume": "a run goes on by itself: give the same command, or run_dir=<its directory>;"
    " ckpt_path=<file> names a checkpoint",
    "test": "a run always tests; trainer.limit_test_batches=1 makes it short",
    "print_config": "--cfg job prints the configuration",
    "optimized_metric": "a sweeper gets the table's metric, or val/perplexity",
    **{f"trainer.{key}": text for key, text in TRAINER.items()},
    "optimizer": "optim=<name> and optim.optimizer._target_=<class> choose it",
    "scheduler": "optim.schedule._target_=<function> chooses it",
    "data.path": "a choice with files takes it: data=text data.path=<a file or folder>",
    "config": "preset=<name> or +<paper>/<table>=<row> chooses one; files of your own are found"
    " with --config-dir=<folder>",
}

#: Last parts of keys as other programs call them, by the key here.
SYNONYMS = {
    "trainer.max_epochs": ("epochs", "num_epochs", "n_epochs", "num_train_epochs"),
    "trainer.max_steps": ("steps", "iters", "max_iters", "num_steps", "train_steps"),
    "trainer.gradient_clip_val": ("clip", "grad_clip", "max_grad_norm", "clip_grad"),
    "trainer.accumulate_grad_batches": ("gradient_accumulation_steps", "grad_accum"),
    "trainer.val_check_interval": ("eval_every", "eval_steps", "eval_interval"),
    "trainer.devices": ("num_gpus", "n_gpus", "nproc_per_node"),
    "optim.lr": ("learning_rate", "base_lr", "max_lr"),
    "optim.weight_decay": ("wd",),
    "optim.warmup": ("warmup_steps", "warmup_iters", "warmup_ratio", "num_warmup_steps"),
    "data.batch_size": ("bs", "per_device_train_batch_size", "micro_batch_size"),
    "model.depth": ("layers", "n_layer", "n_layers", "num_layers", "num_hidden_layers"),
    "model.dim": ("d_model", "n_embd", "hidden_size", "hidden_dim", "width", "embed_dim"),
    "model.heads": ("n_head", "n_heads", "num_heads", "num_attention_heads"),
    "model.max_len": ("block_size", "max_length", "max_seq_len", "context_length", "ctx_len"),
    "tokenizer.vocab_size": ("vocab", "n_vocab"),
    "run_dir": ("output_dir", "out_dir", "save_dir", "log_dir", "logdir"),
    "init_from": ("pretrained", "checkpoint", "ckpt", "model_name_or_path"),
    "data.path": ("dataset_path", "data_dir", "data_path", "train_file", "train_path"),
    "trainer=gpu, trainer=cpu": ("device", "cuda", "gpu", "cpu"),
    "precision=fp32, bf16, fp16": ("dtype", "fp16", "bf16", "amp", "half"),
    "data=<name>": ("dataset", "datasets", "corpus"),
    "logger=wandb, csv, none": ("wandb", "log", "report_to"),
}
#: Parts of a configuration that other programs have too; a component's own keys are no synonyms.
_COMMON = ("", "trainer", "train", "training", "model", "data", "optim", "optimizer", "args")
_CALLED = {name: key for key, names in SYNONYMS.items() for name in names}


#: Options of lightning-hydra-template's groups.
OPTIONS = {
    "trainer=ddp_sim": "trainer=cpu trainer.devices=<n> trains on n processes",
    "trainer=mps": "trainer.accelerator takes auto, cpu or gpu",
    "debug=fdr": "debug=fast_dev_run is its name",
    "debug=default": "debug=limit trainer=cpu runs one short epoch",
    "logger=many_loggers": "'logger=[wandb,csv]' takes several",
    "callbacks=none": "callbacks.<name>=null leaves one out",
    "callbacks=early_stopping": "add it with +callbacks.early._target_=<Lightning's EarlyStopping>",
    "callbacks=model_checkpoint": "trainer.checkpoint_every_n_steps and"
    " trainer.checkpoint_keep_best set how often and how many",
    "callbacks=rich_progress_bar": "trainer.progress=bar",
    "callbacks=model_summary": "trainer.enable_model_summary=true",
}
#: Groups that take a file of the user's by another key.
FILES = {
    "data": "text of your own is data=text data.path={}",
    "tokenizer": "files of a tokenizer are tokenizer=sentencepiece, bert or gpt2 with"
    " tokenizer.path={}",
    "model": "a model of Hugging Face is model=hf model.name={}; init_from={} starts from a run",
}


def option_advice(group: str, option: str) -> str:
    """What to use in place of an option that belongs elsewhere; empty for any other."""
    text = OPTIONS.get(f"{group}={option}")
    if group in FILES and (text is None) and re.search(r"[/.~]", option):
        text = FILES[group].format(option)
    return f"; {text}" if text else ""


def advice(key: str) -> str:
    """What to use in place of a key that belongs elsewhere; empty for any other key."""
    table = HYDRA if key.partition(".")[0] == "hydra" else OTHER
    name = key
    while name and name not in table:
        name = name.rpartition(".")[0]
    if name:
        return table[name]
    parent, _, leaf = key.rpartition(".")
    return f"it is {_CALLED[leaf]} here" if parent in _COMMON and leaf in _CALLED else ""


def is_hydra(key: str) -> bool:
    """Whether a key or group (`hydra/launcher`) is one of Hydra's own."""
    return key.replace("/", ".").partition(".")[0] == "hydra"


def check_hydra(key: str, *, sweep: bool) -> None:
    """Refuse a setting of Hydra's own; a sweep takes those of its sweeper.

    Args:
        key: dotted key, or group such as `hydra/launcher`.
        sweep: whether the command is a sweep.

    Raises:
        UserError: with what to use here.
    """
    dotted = key.replace("/", ".")
    sweeper = dotted == "hydra.sweeper" or dotted.startswith("hydra.sweeper.")
    if sweep and sweeper and dotted != "hydra.sweeper.max_batch_size":
        return
    raise UserError(f"{key} has no effect here; {advice(dotted)}")
