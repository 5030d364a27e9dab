"""The golden runs: command lines of twenty steps that together choose every component."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from chimera.config.groups import ZOO, pattern_depth
from chimera.contract_tests.zoo import names

ROOT = Path(__file__).resolve().parents[2]
STEPS = 20
#: In every command line. Clipping at 50 never clips, so that gradient norms are seen as they are.
ALWAYS = [
    "logger=none", "data.batch_size=4", "model.max_len=32", f"trainer.max_steps={STEPS}",
    "trainer.val_check_interval=10", "trainer.limit_val_batches=2", "trainer.limit_test_batches=2",
    "trainer.log_every_n_steps=5", "trainer.checkpoint_every_n_steps=5",
    "trainer.checkpoint_keep=1", "trainer.gradient_clip_val=50", "trainer.accelerator=cpu",
]  # fmt: skip
OWN = ["model.dim=32", "model.depth=2", "model.heads=4", "data=text", "data.path=text.txt"]
PIECES = "tokenizer=sentencepiece tokenizer.vocab_size=330 tokenizer.num_threads=1"


@dataclass(frozen=True)
class Combination:
    """One run.

    Args:
        name: what it is called; its directory, if others start from it.
        line: of `train.py`, without what decides where the run goes.
        after: another one that it starts from or learns from.
        then: command lines that follow, script first; `{run}` stands for the run's directory.
    """

    name: str
    line: tuple[str, ...]
    after: str | None = None
    then: tuple[str, ...] = ()


EVAL = "eval.py run={run}"
SAY = "generate.py run={run} prompt=Ada max_new=12 seed=3"
SAVE = "export.py run={run} to={run}/exported"


def own(name: str, line: str, *then: str, after: str | None = None) -> Combination:
    """A model of our own parts on the text; words are the tokenizer unless said otherwise."""
    tokens = [] if "tokenizer=" in line else ["tokenizer=word"]
    return Combination(name, (*ALWAYS, *OWN, *tokens, *line.split()), after, then)


def causal(name: str, line: str, *then: str) -> Combination:
    """Such a model as a decoder."""
    return own(name, f"task=causal_lm {line}", *then)


def other(name: str, line: str, *then: str, after: str | None = None) -> Combination:
    """Anything else: tuning, Hugging Face models, experiments, presets."""
    return Combination(name, (*ALWAYS, *line.split()), after, then)


PARTS = [
    causal("attention", "norm=rmsnorm ffn=swiglu position=rope task.longer=[48]", EVAL, SAY),
    own("rotary-scaled", "position=rope position.scaling=yarn position.factor=2"),
    own("gqa", "mixer=gqa quant=int8 ffn=relu2 position=alibi", EVAL, SAVE),
    causal("mqa", "mixer=mqa position=relative norm=none model.residual_init=fixup", SAY),
    causal("window", "mixer=sliding_window mixer.window=8 norm=dyt quant=ternary_weight", SAY),
    own("block", "mixer=sparse_block mixer.block=8 position=alibi norm=static_tanh"),
    own("linear", "mixer=linear mixer.chunk_size=8 position=sinusoidal ffn=none quant=bitnet_b1"),
    own(
        "retnet",
        "mixer=retnet quant=bitnet158 norm=qdyt norm.callbacks.qdyt.warmup_steps=12 ffn=swiglu",
        EVAL,
        f"{SAVE} packed=true",
    ),
    causal("retnet-decoder", "mixer=retnet mixer.value_expand=2 position=rope", SAY),
    causal("aft", "mixer=aft mixer.rank=8 position=none quant=int4_act", SAY),
    causal("delta", "mixer=delta mixer.decay=true mixer.conv=4 position=none ffn=swiglu", SAY),
    own("titan", "mixer=titan6 model.depth=6 position=hope norm=dyt quant=bitnet158 ffn=moe"),
    causal("pattern", "mixer=pattern mixer.cycle=[retnet,mamba,delta] model.depth=3 position=none"),
    own("routed", "mixer=routed position=none ffn=moe ffn.experts=3 ffn@ffn.expert=swiglu"),
    causal("routed-top1", "mixer=routed mixer.mode=top1 position=none ffn=moe ffn.top_k=1", SAY),
]

RETNET = "mixer=retnet quant=bitnet158 norm=qdyt ffn=swiglu"
DROP = "model.dropout=0.1 trainer.accumulate_grad_batches=2"
WAYS = [
    own("pieces", f"{PIECES} model.tie_head=false quant=hbit quant.hadamard=none"),
    own("bert-tokenizer", "tokenizer=bert tokenizer.path=bert trainer.gradient_clip_val=0.5"),
    causal("gpt2-tokenizer", "tokenizer=gpt2 tokenizer.path=gpt2 trainer.gradient_clip_val=0"),
    own("workers", f"{RETNET} {PIECES} {DROP} data.num_workers=2"),
    own("epochs", "trainer.max_epochs=1 trainer.max_steps=null data.batch_size=32 seed=5"),
    own("bf16", f"{RETNET} precision=bf16 model.dropout=0.1"),
    own("fp16", "precision=fp16 guard=skip"),
    own("loops", "model.loops=3 model.gradient_checkpointing=true model.dropout=0.1 ffn=moe"),
    *(own(name, f"optim={name}") for name in ("sgd", "lion", "muon")),
    own("csv", "logger=csv model.embedding_scale=sqrt_dim model.head_transform=false"),
    own("wandb", "logger=wandb optim.rates.norm=0.5 optim.decays.norm=0.1 optim.warmup=0.5"),
]

TUNE = "preset=finetune task=glue data=glue data.path=glue optim.lr=1e-2 trainer.max_epochs=null"
TUNE = f"{TUNE} optim=finetune"
SORA = f"{TUNE} init_from=pretrained adapter=sora adapter.r=4"
HF = "data=text data.path=text.txt model=hf tokenizer=own"
ROW = "tokenizer=word data=text data.path=text.txt scale=smoke model.dim=32"
ROW = f"{ROW} trainer.max_steps=12 trainer.val_check_interval=6 trainer.log_every_n_steps=1"
START = f"mixer=retnet norm=rmsnorm {PIECES}"
TUNING = [
    own("pretrained", START),
    own("taught", f"task.teacher=pretrained {START}", after="pretrained"),
    own("lora", "adapter=lora adapter.r=4 adapter.dropout=0.1", EVAL),
    own("adalora", "adapter=adalora adapter.r=4 adapter.callbacks.adalora.target_r=2"),
    own("sora", "adapter=sora adapter.r=4 adapter.l1=10"),
    other("cola", f"{TUNE} init_from=pretrained", EVAL, after="pretrained"),
    other("cola-sora", f"{SORA} task.class_weights=balanced", EVAL, SAVE, after="pretrained"),
    other("stsb", f"{TUNE} data.task=stsb init_from=pretrained", EVAL, after="pretrained"),
    other("cola-hf", f"{TUNE} init_from=hf/bert adapter=lora adapter.targets=['*.query']", EVAL),
    other("hf-llama", f"{HF} model.name=hf/llama task=causal_lm adapter=liza", EVAL),
    other(
        "instruct",
        "task=instruct data=instruct data.path=records.json data.held_out=6 data.batch_size=2"
        " model=hf model.name=hf/llama adapter=liza adapter.callbacks.mag.schedule=gradual",
    ),
    other("row", f"+bitnet_qdyt/norms=static_tanh {ROW} trainer.limit_val_batches=1"),
    other("preset", f"preset=titan_bert_ultra quant=none norm=layernorm {ROW} model.depth=6"),
]


def others(made: Iterable[Combination]) -> Iterator[Combination]:
    """A run for each component that none of these chooses; `head_only` needs a classifier."""
    words = {word for one in made for word in one.line}
    for group in ZOO:
        for name in names(group):
            if f"{group}={name}" in words | {"adapter=none", "adapter=head_only"}:
                continue
            layers = f"model.depth={pattern_depth(name)} quant=none" if group == "mixer" else ""
            build = causal if group == "mixer" else own
            yield build(f"{group}-{name}", f"{group}={name} {layers}")


WRITTEN = (*PARTS, *WAYS, *TUNING)
ALL = {one.name: one for one in (*WRITTEN, *others(WRITTEN))}


def units(chosen: Iterable[str] | None = None) -> list[list[Combination]]:
    """What has to run in one folder, in order; what others start from is brought in."""
    found: dict[str, list[Combination]] = {}
    for one in map(ALL.__getitem__, ALL if chosen is None else chosen):
        first = ALL[one.after or one.name]
        unit = found.setdefault(first.name, [first])
        if one not in unit:
            unit.append(one)
    return list(found.values())
