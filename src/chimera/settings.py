"""Typed settings of everything that is no component. Free of torch: a bad value fails in a second.

Each class is the schema of one Hydra group, named by `_target_` in its YAML files.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from annotated_types import Ge

from chimera.types import (
    Fraction,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ProperFraction,
)

Precision = Literal["fp32", "bf16", "fp16"]


@dataclass(frozen=True)
class Run:
    """What stands at the top of the command line.

    Args:
        name: what the run is called in its directory and in W&B.
        seed: of everything random.
        precision: fp32, bf16 or fp16 (mixed; fp16 with a gradient scaler, GPU only).
        run_dir: where the run goes; None: `runs/<name>-<hash of the resolved config>`.
        overwrite: start over in a directory that holds a finished run.
    """

    name: str
    seed: NonNegativeInt = 0
    precision: Precision = "fp32"
    run_dir: str | None = None
    overwrite: bool = False


@dataclass(frozen=True)
class Model:
    """Shape of the backbone and its head.

    Args:
        dim: width d.
        depth: physical layers.
        heads: attention heads, unless a mixer has a choice of its own.
        loops: how often the physical layers are traversed (TITAN Alg. 1).
        max_len: tokens per sequence.
        dropout: on embeddings, branches and attention weights.
        gradient_checkpointing: recompute each block in the backward pass.
        tie_head: the output matrix is the embedding table.
        head_transform: BERT's linear, GELU and norm before the output matrix.
        residual_init: `normal`: all weights N(0, init_std²); `scaled`: those that write to the
            residual stream divided by √(number of branches) (GPT-2); `fixup`: those zero, the
            others divided by √(number of branches) (arXiv 1901.09321).
        init_std: standard deviation of initial weights; None: 1/√d.
        embedding_scale: factor on the embeddings: `none`, `sqrt_dim` (√d), or `learned` from √d.
            A tanh in place of a norm leaves small activations small: without, it does not learn.
    """

    dim: PositiveInt
    depth: PositiveInt
    heads: PositiveInt
    loops: PositiveInt = 1
    max_len: PositiveInt = 128
    dropout: ProperFraction = 0.0
    gradient_checkpointing: bool = False
    tie_head: bool = True
    head_transform: bool = True
    residual_init: Literal["normal", "scaled", "fixup"] = "scaled"
    init_std: PositiveFloat | None = None
    embedding_scale: Literal["none", "sqrt_dim", "learned"] = "learned"


@dataclass(frozen=True)
class Trainer:
    """How long and how training runs; names as in Lightning's Trainer.

    Args:
        max_steps: optimiser steps.
        accumulate_grad_batches: micro-batches per optimiser step.
        gradient_clip_val: largest gradient norm; 0 clips nothing.
        val_check_interval: optimiser steps between validations; 0 validates only at the end.
        limit_val_batches: batches per validation; None takes all.
        limit_test_batches: batches of the final test; None takes all.
        log_every_n_steps: optimiser steps between logged points.
        checkpoint_every_n_steps: optimiser steps between checkpoints (TITAN Table 4: 500).
        accelerator: `auto` takes a GPU where there is one.
        devices: how many.
        deterministic: refuse operations without a deterministic form.
        compile: torch.compile the model in place.
        progress: `auto` draws a bar in a terminal and prints lines elsewhere.
        threads: CPU threads of torch; None leaves torch's choice.
    """

    max_steps: PositiveInt
    accumulate_grad_batches: PositiveInt = 1
    gradient_clip_val: NonNegativeFloat = 1.0
    val_check_interval: NonNegativeInt = 0
    limit_val_batches: PositiveInt | None = None
    limit_test_batches: PositiveInt | None = None
    log_every_n_steps: PositiveInt = 10
    checkpoint_every_n_steps: PositiveInt = 500
    accelerator: Literal["auto", "cpu", "gpu"] = "auto"
    devices: PositiveInt = 1
    deterministic: bool = False
    compile: bool = False
    progress: Literal["auto", "bar", "lines", "none"] = "auto"
    threads: PositiveInt | None = None


@dataclass(frozen=True)
class Optim:
    """AdamW, a rate per component, warm-up and cosine (SPEC T1, T2; TITAN Table 3).

    Args:
        lr: base rate; a component's rate is lr times its entry in `rates` (1 where it has none).
        betas: AdamW's β₁, β₂.
        eps: AdamW's ε.
        weight_decay: of every component without an entry in `decays`.
        warmup: share of all steps over which the rate rises linearly.
        min_ratio: share of the peak rate that the cosine ends at.
        rates: factor on lr by component.
        decays: weight decay by component.
    """

    lr: PositiveFloat
    betas: list[ProperFraction] = field(default_factory=lambda: [0.9, 0.95])
    eps: PositiveFloat = 1e-8
    weight_decay: NonNegativeFloat = 0.01
    warmup: ProperFraction = 0.1
    min_ratio: Fraction = 0.0
    rates: dict[str, NonNegativeFloat] = field(default_factory=dict)
    decays: dict[str, NonNegativeFloat] = field(default_factory=dict)


@dataclass(frozen=True)
class Scale:
    """Upper bounds put on the composed configuration, last of all, so that they always win.

    Args:
        bounds: dotted key to the largest value it may have; a key that is null or absent in the
            configuration takes the bound where it is null and is passed over where absent.
    """

    bounds: dict[str, Annotated[float, Ge(0)]] = field(default_factory=dict)


@dataclass(frozen=True)
class Logger:
    """Where metrics go besides the step log, which every run keeps.

    Args:
        kind: `wandb` (offline or online), `csv` or `none`.
        online: W&B uploads as it goes; needs a login.
        project: W&B project.
    """

    kind: Literal["wandb", "csv", "none"] = "wandb"
    online: bool = False
    project: str = "chimera"
