"""What users of other programs type first: the one line of the refusal has what works here."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from chimera.cli import main as cli
from chimera.cli.main import main
from chimera.config.compose import compose, plain
from chimera.config.migration_hints import hints
from chimera.config.overrides import repeated
from chimera.train.check import check_settings
from tests.kit import Refused

#: Words after `train`, and the words in the refusal that work in their place.
WORKS = {
    # lightning-hydra-template and Hydra
    "scheduler=cosine": "schedule=cosine",
    "optim.scheduler=cosine": "schedule=cosine",
    "optim.schedule=cosine": "schedule=cosine",
    "logger=wandb_offline": "logger=wandb",
    "logger=tb": "logger=tensorboard",
    "schedule=none": "schedule=constant optim.warmup=0",
    "debug=default": "debug=limit trainer=cpu",
    # transformers
    "task=clm": "task=causal_lm",
    "task=language_modeling": "task=causal_lm",
    "task=masked_lm": "task=mlm",
    "task=sft": "task=instruct data=instruct",
    "model=gpt2": "preset=gpt2",
    "model=gpt2-medium": "preset=gpt2 model.dim=1024 model.depth=24 model.heads=16",
    "model=bert-base-uncased": "preset=bert_base",
    "model=mamba": "mixer=mamba",
    "preset=llama": "preset=gpt2 mixer=gqa norm=rmsnorm ffn=swiglu position=rope",
    "precision=bf16-mixed": "precision=bf16",
    "precision=32": "precision=fp32",
    "optim=adamw_torch": "optim=adamw",
    "schedule=cosine_with_warmup": "schedule=cosine",
    "quant=8bit": "quant=int8",
    "adapter=peft": "adapter=lora",
    # nanoGPT, litgpt, torchtitan and papers
    "mixer=flash_attention": "mixer=attention",
    "mixer=sdpa": "mixer=attention",
    "mixer=swa": "mixer=sliding_window",
    "mixer=gated_deltanet": "mixer=gated_delta",
    "mixer=xlstm": "mixer=mlstm",
    "mixer=jamba": "'mixer=pattern mixer.cycle=[mamba,attention]'",
    "position=rotary": "position=rope",
    "position=yarn": "position=rope position.scaling=yarn",
    "norm=rms": "norm=rmsnorm",
    "norm=layer_norm": "norm=layernorm",
    "ffn=gelu": "ffn=mlp",
    "ffn=mixture_of_experts": "ffn=moe",
    "quant=bitnet": "quant=bitnet158",
    "tokenizer=bpe": "tokenizer=sentencepiece",
    "scale=tiny": "scale=smoke",
    "model.dim=100 model.heads=3": "model.dim=102",
    # capitals and signs of the papers
    "mixer=GQA": "mixer=gqa",
    "mixer=mamba-2": "mixer=mamba2",
    "mixer=multihead_attention": "mixer=attention",
    "norm=RMSNorm": "norm=rmsnorm",
    "norm=batchnorm": "norm=layernorm",
    "ffn=SwiGLU": "ffn=swiglu",
    "position=RoPE": "position=rope",
    "optim=AdamW": "optim=adamw",
    "preset=bert-base": "preset=bert_base",
    "preset=llama3": "preset=gpt2 mixer=gqa norm=rmsnorm ffn=swiglu position=rope",
    "schedule=onecycle": "schedule=cosine",
    "schedule=step": "schedule=wsd",
    "task=pretrain": "task=mlm",
    "mixer==retnet": "mixer=retnet",
    "mixer:retnet": "mixer=retnet",
}
#: Keys of other programs, and what is said of them.
KEYS = {
    "trainer=cuda": "write trainer=gpu",
    "data=wikitext": "write data=wikitext2",
    "data=mnli": "write data=glue data.task=mnli",
    "mixer.conv=2": "write mixer=delta mixer.conv=…",
    "max_iters=5": "it is trainer.max_steps here",
    "max_steps=5": "did you mean 'trainer.max_steps'?",
    "training.steps=5": "it is trainer.max_steps here",
    "lr_scheduler.warmup_steps=5": "it is optim.warmup here",
    "optimizer.lr=1": "it is optim.lr here",
    "datamodule.batch_size=3": "data.batch_size",
    "train.global_batch_size=8": "it is data.batch_size here",
    "per_device_train_batch_size=8": "it is data.batch_size here",
    "min_lr=1e-5": "it is optim.min_ratio (a share of optim.lr) here",
    "beta2=0.95": "it is optim.betas here",
    "decay_lr=true": "schedule=constant",
    "eval_iters=10": "it is trainer.limit_val_batches here",
    "metrics.log_freq=1": "it is trainer.log_every_n_steps here",
    "save_steps=100": "it is trainer.checkpoint_every_n_steps here",
    "save_total_limit=2": "it is trainer.checkpoint_keep here",
    "load_best_model_at_end=true": "trainer.checkpoint_keep_best",
    "resume_from_checkpoint=x": "it is ckpt_path here",
    "evaluation_strategy=steps": "trainer.val_check_interval",
    "torch_compile=true": "it is trainer.compile here",
    "activation_checkpoint.mode=full": "model.gradient_checkpointing=true",
    "model.attn_implementation=sdpa": "scaled_dot_product_attention",
    "num_key_value_heads=2": "it is mixer.kv_heads here",
    "model.intermediate_size=512": "it is ffn.expand (a factor on model.dim) here",
    "rope_theta=1e5": "it is position.base here",
    "tie_word_embeddings=true": "it is model.tie_head here",
    "hidden_act=silu": "swiglu",
    "model.name=gpt2": "write model=hf model.name=…",
    "adapter.rank=8": "adapter=lora adapter.r=",
    "lora_alpha=16": "adapter=lora adapter.alpha",
    "mixed_precision=bf16": "precision=fp32, bf16, fp16",
    "seed_everything=1": "it is seed here",
    "wandb.mode=offline": "logger=wandb writes offline",
    "wandb_project=x": "it is logger.project here",
    "deepspeed=ds.json": "trainer=fsdp",
    "backend=nccl": "trainer=ddp",
    "push_to_hub=true": "to=<folder>",
    "early_stopping=true": "lightning.pytorch.callbacks.EarlyStopping",
    "gibberish_xyz=1": "--help lists groups, --cfg job all keys",
    "init_from=gpt2": "init_from=hf:",
    "init_from=scratch": "leave it out",
    "init_from=row:nope": "write init_from=row:<paper>/<table>/<row>",
    "data=shakespeare": "data=text data.path=<file>",
    "data=mixture data.sources={path:x}": "data.sources is a list",
    "init_run=abc": "it is computed from init_from=",
    "ckpt_sha256=abc": "it is computed from ckpt_path=",
    "model.depth=100000": "at most 4096",
    "mixer=attn": "did you mean",
    "mixer retnet": "as in mixer=<name>",
    "scale=large": "write scale=paper",
    "data=tinyshakespeare": "data=text data.path=<file>",
    "data.file=book.txt": "data=text data.path=<file>",
    "--lr=1e-3": "it is optim.lr here",
    "lr=1e-3": "it is optim.lr here",
    "batch_size=32": "it is data.batch_size here",
    "compile=true": "it is trainer.compile here",
    "mask_prob=0.15": "it is task.mask_ratio here",
    "output=out": "it is run_dir here",
    "n_jobs=2": "it is workers here",
    "gpus=1": "trainer.devices=<n>",
    "flash=true": "scaled_dot_product_attention",
    "eval=false": "run=<dir> only tests",
    "trainer.resume=true": "give the same command",
    "seeds=3": "seed=0,1,2",
}
#: A whole command, and what is said of it.
COMMANDS = {
    "run mixer=retnet": "write chimera train",
    "fit mixer=retnet": "write chimera train",
    "test run=a": "write chimera eval run=<dir>",
    "predict run=a": "write chimera generate run=<dir>",
    "finetune run=a": "write chimera train preset=finetune init_from=<run>",
    "tune optim.lr=1": "search.trials=20",
    "plot runs": "write chimera compare",
    "save a": "write chimera export run=<dir> to=<folder>",
    "generate runs/a": "did you mean run=runs/a?",
    "generate run=a 'The king'": "did you mean prompt='The king'?",
    "generate run=a --prompt x": "did you mean prompt=",
    "generate run=a prompt=x max_tokens=9": "did you mean max_new=9?",
    "generate run=a prompt=x temp=0.8": "did you mean temperature=0.8?",
    "export runs/a exported": "did you mean run=runs/a?",
    "export run=a output=b": "did you mean to=b?",
    "eval checkpoint=a": "did you mean run=a?",
    "mmlu runs/a": "did you mean run=runs/a?",
}


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CHIMERA_RUNS", str(tmp_path / "runs"))
    return tmp_path


@pytest.mark.parametrize(("typed", "works"), WORKS.items())
def test_the_line_has_the_words_that_work(
    typed: str, works: str, refused: Refused, place: Path
) -> None:
    """The words of the message, typed in its place, pass the checks."""
    words = [word for text in shlex.split(works) for word in text.split()]
    refused(main, ["train", *shlex.split(typed)], *words)
    check_settings(plain(compose(["scale=smoke", *words])))
    assert list(place.iterdir()) == []


@pytest.mark.parametrize(("typed", "says"), KEYS.items())
def test_the_line_says_what_it_is_here(
    typed: str, says: str, refused: Refused, place: Path
) -> None:
    refused(main, ["train", "scale=smoke", *shlex.split(typed)], says)
    assert list(place.iterdir()) == []


@pytest.mark.parametrize(("typed", "says"), COMMANDS.items())
def test_the_line_has_the_command_that_works(
    typed: str, says: str, refused: Refused, place: Path
) -> None:
    refused(main, shlex.split(typed), says)
    assert list(place.iterdir()) == []


def test_a_wrong_name_shows_the_three_nearest(refused: Refused) -> None:
    line = refused(main, ["train", "mixer=retnett"], "'retnet'", "list mixer lists all")
    assert line.count("'") == 6
    assert "attention" not in line


def test_what_is_said_is_here() -> None:
    """Every hint of another name leads to a choice or key that exists."""
    config = plain(compose([]))
    for ours in hints()["choices"]:
        words = ours.format("cola").replace("<name>", "cola").split()
        if not any(word.startswith("tokenizer=") for word in words):
            plain(compose(words))
    for ours in hints()["commands"]:
        program, command, *_ = ours.split()
        assert program == "chimera"
        assert command in cli.COMMANDS
    for ours in hints()["names"]:
        key = ours.partition(" ")[0].rstrip(",")
        if "=" not in key and not key.startswith(
            ("position.", "tokenizer.", "data.path", "logger.")
        ):
            node = config
            for part in key.split("."):
                node = node[part]


def test_a_key_that_is_set_twice_is_named() -> None:
    words = ["mixer=retnet", "optim.lr=1e-3", "mixer=delta"]
    assert repeated(words) == ["mixer=retnet: overridden by mixer=delta, which comes later"]
    assert repeated(words[1:]) == []
