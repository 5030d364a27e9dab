"""The golden runs: command lines of twenty steps that together choose every component.

Each is trained by the code of before and by the code of now, and has to give the same numbers.
Every component of the base commit is in one of them; a later one has nothing to agree with.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
STEPS = 20
#: Groups whose every choice occurs.
COVERED = ("mixer", "norm", "quant", "ffn", "position", "adapter", "task")
COVERED += ("model", "optim", "guard", "tokenizer")
#: In every command line. Clipping at 50 never clips, so that gradient norms are seen as they are.
ALWAYS = [
    "logger=none",
    "data.batch_size=4",
    "model.max_len=32",
    f"trainer.max_steps={STEPS}",
    "trainer.val_check_interval=10",
    "trainer.limit_val_batches=2",
    "trainer.limit_test_batches=2",
    "trainer.log_every_n_steps=5",
    "trainer.checkpoint_every_n_steps=5",
    "trainer.checkpoint_keep=1",
    "trainer.gradient_clip_val=50",
    "trainer.accelerator=cpu",
]
OWN = ["model.dim=32", "model.depth=2", "model.heads=4"]
TEXT = ["data=text", "data.path=text.txt"]
WORDS = ["tokenizer=word"]
PIECES = ["tokenizer=sentencepiece", "tokenizer.vocab_size=330", "tokenizer.num_threads=1"]


@dataclass(frozen=True)
class Combination:
    """One run.

    Args:
        name: what it is called in tables; its directory, if others start from it.
        line: of `train.py`, without what decides where the run goes.
        after: another one that it starts from or learns from.
        signal: what it is sent once, `KILL` or `TERM`, before it is started again.
        rows: of the step log that have to be there for that.
        then: command lines that follow, script first; `{run}` stands for the run's directory.
    """

    name: str
    line: tuple[str, ...]
    after: str | None = None
    signal: str | None = None
    rows: int = 8
    then: tuple[tuple[str, ...], ...] = ()


EVAL = ("eval.py", "run={run}")
LONGER = ("eval.py", "run={run}", "length=48")
SAY = ("generate.py", "run={run}", "prompt=Ada builds the", "max_new=12", "seed=3")
GREEDY = ("generate.py", "run={run}", "prompt=The old", "max_new=12", "greedy=true")
SAVE = ("export.py", "run={run}", "to={run}/exported")
PACK = ("export.py", "run={run}", "to={run}/exported", "packed=true")


def own(name: str, line: str, *then: tuple[str, ...], **more: str | int | None) -> Combination:
    """A model of our own parts on the text; words are the tokenizer unless said otherwise."""
    chosen = line.split()
    tokens = [] if "tokenizer=" in line else WORDS
    return Combination(name, (*ALWAYS, *OWN, *TEXT, *tokens, *chosen), then=then, **more)  # type: ignore[arg-type]


def causal(name: str, line: str, *then: tuple[str, ...]) -> Combination:
    """Such a model as a decoder."""
    return own(name, f"task=causal_lm {line}", *then)


def other(name: str, line: str, *then: tuple[str, ...], after: str | None = None) -> Combination:
    """Anything else: tuning, Hugging Face models, experiments, presets."""
    return Combination(name, (*ALWAYS, *line.split()), after, then=then)


MIXERS = [
    causal(
        "attention",
        "mixer=attention norm=rmsnorm ffn=swiglu position=rope task.longer=[48]",
        EVAL,
        LONGER,
        SAY,
    ),
    own("attention-rotary-scaled", "position=rope position.scaling=yarn position.factor=2"),
    own("gqa-int8", "mixer=gqa quant=int8 ffn=relu2 position=alibi", EVAL, SAVE),
    causal("mqa", "mixer=mqa position=relative norm=none model.residual_init=fixup", GREEDY),
    causal(
        "sliding-window",
        "mixer=sliding_window mixer.window=8 norm=dyt position=rope quant=ternary_weight",
        SAY,
    ),
    own("sparse-block", "mixer=sparse_block mixer.block=8 position=alibi norm=static_tanh"),
    causal("linear", "mixer=linear position=hope quant=bitnet_b1", GREEDY),
    own("linear-encoder", "mixer=linear mixer.chunk_size=8 position=sinusoidal ffn=none"),
    own(
        "retnet",
        "mixer=retnet quant=bitnet158 norm=qdyt norm.callbacks.qdyt.warmup_steps=12 ffn=swiglu",
        EVAL,
        PACK,
    ),
    causal("retnet-decoder", "mixer=retnet mixer.value_expand=2 position=rope", SAY, LONGER),
    causal("aft", "mixer=aft mixer.rank=8 position=none quant=int4_act", SAY),
    own("aft-local", "mixer=aft_local mixer.rank=8 mixer.window=8"),
    own("aft-simple", "mixer=aft_simple position=sinusoidal norm=dyt norm.alpha=scalar"),
    causal("delta", "mixer=delta mixer.decay=true mixer.conv=4 position=none ffn=swiglu", SAY),
    own("deltaproduct", "mixer=deltaproduct mixer.negative_eigenvalues=true position=none"),
    causal(
        "liza",
        "mixer=liza position=rope mixer.callbacks.mag.schedule=gradual"
        " mixer.callbacks.mag.steps=15",
        SAY,
    ),
    own("mamba", "mixer=mamba mixer.state=4 position=none norm=rmsnorm ffn=none", EVAL),
    causal("mlstm", "mixer=mlstm mixer.chunk=8 position=none", GREEDY),
    own("slstm", "mixer=slstm position=none model.two_way=shared"),
    own("ode", "mixer=ode position=learned norm=qdyt quant=hbit"),
    own("titan-attention", "mixer=titan_attention mixer.memory=true position=hope"),
    causal("titan-memory", "mixer=titan_memory mixer.chunk_size=8 mixer.state=4 position=none"),
    own("titan6", "mixer=titan6 model.depth=6 position=hope norm=dyt quant=bitnet158 ffn=moe"),
    causal("pattern", "mixer=pattern mixer.cycle=[retnet,mamba,delta] model.depth=3 position=none"),
    causal("interleaved", "mixer=interleaved position=relative"),
    own("best-combo", "mixer=best_combo position=alibi", EVAL),
    own("conv-attention", "mixer=conv_attention mixer@mixer.inner=sliding_window"),
    own("routed", "mixer=routed position=none ffn=moe ffn.experts=3 ffn@ffn.expert=swiglu"),
    causal("routed-top1", "mixer=routed mixer.mode=top1 position=none ffn=moe ffn.top_k=1", SAY),
]

RETNET = "mixer=retnet quant=bitnet158 norm=qdyt ffn=swiglu"
DROPPING = f"{RETNET} model.dropout=0.1 trainer.accumulate_grad_batches=2 tokenizer=sentencepiece"
DROPPING = f"{DROPPING} {' '.join(PIECES[1:])}"
WAYS = [
    own("pieces", f"{' '.join(PIECES)} model.tie_head=false quant=hbit quant.hadamard=none"),
    own("bert-tokenizer", "tokenizer=bert tokenizer.path=bert trainer.gradient_clip_val=0.5"),
    causal("gpt2-tokenizer", "tokenizer=gpt2 tokenizer.path=gpt2 trainer.gradient_clip_val=0"),
    own("workers", f"{DROPPING} data.num_workers=2"),
    own("whole", DROPPING),
    own("killed", DROPPING, signal="KILL"),
    own("stopped", DROPPING, signal="TERM", rows=11),
    own("epochs", "trainer.max_epochs=1 trainer.max_steps=null data.batch_size=32 seed=5"),
    own("bf16", f"{RETNET} precision=bf16 model.dropout=0.1"),
    own("fp16", "precision=fp16 guard=skip"),
    own("loops", "model.loops=3 model.gradient_checkpointing=true model.dropout=0.1 ffn=moe"),
    own("sgd", "optim=sgd"),
    own("lion", "optim=lion"),
    own("muon", "optim=muon"),
    own("csv", "logger=csv model.embedding_scale=sqrt_dim model.head_transform=false"),
    own("wandb", "logger=wandb optim.rates.norm=0.5 optim.decays.norm=0.1 optim.warmup=0.5"),
]

TUNE = "preset=finetune task=glue optim=finetune data=glue data.path=glue optim.lr=1e-2"
TUNE = f"{TUNE} trainer.max_epochs=null"
HF = "data=text data.path=text.txt model=hf tokenizer=own"
TARGETS = "adapter.targets=['*.query','*.value']"
ROW = "tokenizer=word data=text data.path=text.txt scale=smoke model.dim=32"
ROW = f"{ROW} trainer.max_steps=12 trainer.val_check_interval=6 trainer.log_every_n_steps=1"
TUNING = [
    own("pretrained", f"mixer=retnet norm=rmsnorm {' '.join(PIECES)}"),
    own("lora", "adapter=lora adapter.r=4 adapter.dropout=0.1", EVAL),
    own("adalora", "adapter=adalora adapter.r=4 adapter.callbacks.adalora.target_r=2"),
    own("sora", "adapter=sora adapter.r=4 adapter.l1=10"),
    own(
        "taught",
        f"task.teacher=pretrained mixer=retnet norm=rmsnorm {' '.join(PIECES)}",
        after="pretrained",
    ),
    other("cola", f"{TUNE} init_from=pretrained", EVAL, after="pretrained"),
    other(
        "cola-sora",
        f"{TUNE} init_from=pretrained adapter=sora adapter.r=4 task.class_weights=balanced",
        EVAL,
        SAVE,
        after="pretrained",
    ),
    other("stsb", f"{TUNE} data.task=stsb init_from=pretrained", EVAL, after="pretrained"),
    other("cola-hf", f"{TUNE} init_from=hf/bert adapter=lora {TARGETS}", EVAL),
    other("hf-bert", f"{HF} model.name=hf/bert", EVAL),
    other("hf-llama", f"{HF} model.name=hf/llama task=causal_lm adapter=liza", EVAL),
    other(
        "instruct",
        "task=instruct data=instruct data.path=records.json data.held_out=6 data.batch_size=2"
        " model=hf model.name=hf/llama adapter=liza adapter.callbacks.mag.schedule=gradual",
    ),
    other("row", f"+bitnet_qdyt/norms=static_tanh {ROW} trainer.limit_val_batches=1"),
    other(
        "preset",
        f"preset=titan_bert_ultra quant=none norm=layernorm {ROW} model.depth=6",
    ),
]
ALL = {one.name: one for one in (*MIXERS, *WAYS, *TUNING)}
#: The default of every choice; in the table of `tests.golden.table`, not in `losses.json`.
DEFAULT = own("default", "", EVAL)
KNOWN = {DEFAULT.name: DEFAULT, **ALL}


def units(names: list[str] | None = None) -> list[list[Combination]]:
    """What has to run in one folder, in order; what others start from is brought in."""
    chosen = list(ALL.values()) if names is None else [KNOWN[name] for name in names]
    found: dict[str, list[Combination]] = {}
    for one in chosen:
        first = one.after or one.name
        unit = found.setdefault(first, [KNOWN[first]])
        if one not in unit:
            unit.append(one)
    return list(found.values())


def sources() -> set[str]:
    """Those that others start from, in directories of their own names."""
    return {one.after for one in ALL.values() if one.after}


def choices(line: tuple[str, ...]) -> dict[str, str]:
    """What a command line chooses by name, over what is chosen by default."""
    defaults = yaml.safe_load((ROOT / "conf/config.yaml").read_text(encoding="utf-8"))["defaults"]
    found = {g: c for entry in defaults if isinstance(entry, dict) for g, c in entry.items()}
    words = (word.partition("=") for word in line)
    return found | {group: choice for group, _, choice in words if group in found}


def components(tree: Path) -> dict[str, list[str]]:
    """The choices of the groups in `COVERED` that a tree has."""
    return {g: sorted(file.stem for file in (tree / "conf" / g).glob("*.yaml")) for g in COVERED}


def missing(known: dict[str, list[str]]) -> set[tuple[str, str]]:
    """Those of these components that are in no golden run."""
    made = {pair for one in ALL.values() for pair in choices(one.line).items()}
    # Checkpoints of 8-bit states hold a class of torchao, which `gather` does not load.
    unseen = {("optim", "adamw8bit")}
    return {(group, name) for group, names in known.items() for name in names} - made - unseen
