"""Typed settings of everything that is no component. Free of torch: a bad value fails in a second.

Each class is the schema of one Hydra group, named by `_target_` in its YAML files.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge

from chimera.errors import UserError
from chimera.types import (
    Fraction,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ProperFraction,
)

Precision = Literal["fp32", "bf16", "fp16"]
Bound = Annotated[float, Ge(0)]
#: A class or function that is called later: in YAML a node of `_target_` and `_partial_: true`.
Factory = Callable[..., Any]


@dataclass(frozen=True)
class Run:
    """What stands at the top of the command line.

    Args:
        name: what the run is called in its directory and in W&B.
        seed: of everything random.
        precision: fp32, bf16 or fp16 (mixed; fp16 with a gradient scaler, slow on a CPU).
        run_dir: where the run goes; None: `runs/<name>-<hash of the resolved config>`.
        overwrite: start over in a directory that holds a finished run.
        workers: jobs of a sweep at a time.
        init_from: a model to start from: a run, a checkpoint, an exported folder, a Hugging Face
            model, or `row:<paper>/<table>/<row>` (`chimera.config.init_from`).
        init_run: the identity of the run among them, which the composition fills in.
    """

    name: str
    seed: NonNegativeInt = 0
    precision: Precision = "fp32"
    run_dir: str | None = None
    overwrite: bool = False
    workers: PositiveInt = 1
    init_from: str | None = None
    init_run: str | None = None


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
        two_way: a mixer that is causal only runs both ways in an encoder, each way with weights of
            its `own` or with `shared` ones.

    `builder` is the dotted path of the function that builds the model, called as
    `(settings, choices, *, vocab_size, causal)`. A settings class of your own names its own.
    """

    builder: ClassVar[str] = "chimera.model.assemble.from_parts"

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
    two_way: Literal["own", "shared"] = "own"

    def check(self) -> None:
        """Nothing has to be fetched."""


@dataclass(frozen=True)
class Trainer:
    """How long and how training runs; names as in Lightning's Trainer.

    Args:
        max_steps: optimiser steps; null with max_epochs.
        max_epochs: passes over the training data, which give the steps; if there are more of them
            than `max_steps`, those count.
        accumulate_grad_batches: micro-batches per optimiser step.
        gradient_clip_val: largest gradient norm; 0 clips nothing.
        val_check_interval: optimiser steps between validations, or `epoch`; 0 validates only at the
            end.
        limit_val_batches: batches per validation; None takes all.
        limit_test_batches: batches of the final test; None takes all.
        log_every_n_steps: optimiser steps between logged points.
        checkpoint_every_n_steps: optimiser steps between rolling checkpoints (TITAN Table 4: 500).
        checkpoint_keep: rolling ones that are kept.
        checkpoint_keep_best: those with the lowest validation loss that are kept.
        checkpoint_keep_epochs: those from ends of epochs that are kept; None keeps all.
        accelerator: `auto` takes a GPU where there is one.
        devices: how many.
        deterministic: refuse operations without a deterministic form.
        compile: torch.compile the model in place.
        progress: `auto` draws a bar in a terminal and prints lines elsewhere.
        threads: CPU threads of torch; None leaves torch's choice.
    """

    max_steps: PositiveInt | None
    max_epochs: PositiveInt | None = None
    accumulate_grad_batches: PositiveInt = 1
    gradient_clip_val: NonNegativeFloat = 1.0
    val_check_interval: NonNegativeInt | Literal["epoch"] = 0
    limit_val_batches: PositiveInt | None = None
    limit_test_batches: PositiveInt | None = None
    log_every_n_steps: PositiveInt = 10
    checkpoint_every_n_steps: PositiveInt = 500
    checkpoint_keep: PositiveInt = 3
    checkpoint_keep_best: NonNegativeInt = 2
    checkpoint_keep_epochs: NonNegativeInt | None = None
    accelerator: Literal["auto", "cpu", "gpu"] = "auto"
    devices: PositiveInt = 1
    deterministic: bool = False
    compile: bool = False
    progress: Literal["auto", "bar", "lines", "none"] = "auto"
    threads: PositiveInt | None = None

    def check(self) -> None:
        """Refuse a run without an end.

        Raises:
            UserError: there is neither a number of steps nor of epochs.
        """
        if self.max_steps is None and self.max_epochs is None:
            raise UserError("trainer.max_steps=null needs trainer.max_epochs=<a number>")

    def measured(self, batches: int) -> Measured:
        """These settings in steps, for an epoch of so many batches."""
        epoch = -(-batches // self.accumulate_grad_batches)
        wanted = [self.max_steps] if self.max_steps else []
        wanted += [self.max_epochs * epoch] if self.max_epochs else []
        steps, every = min(wanted), self.val_check_interval
        every = min(epoch, steps) if every == "epoch" else every
        return Measured(**{**vars(self), "max_steps": steps, "val_check_interval": every})


@dataclass(frozen=True)
class Measured(Trainer):
    """Settings that have met the data: all in optimiser steps."""

    max_steps: PositiveInt = 1
    val_check_interval: NonNegativeInt = 0


@dataclass(frozen=True)
class Optim:
    """Optimiser, rates by component, learning-rate schedule (SPEC T1, T2; TITAN Table 3).

    Args:
        lr: base rate; a component's rate is lr times its entry in `rates` (1 where it has none).
        betas: β₁, β₂ of an optimiser that has an argument of this name, as AdamW.
        eps: ε, likewise.
        weight_decay: of every component without an entry in `decays`.
        warmup: share of all steps over which the rate rises linearly.
        min_ratio: share of the peak rate that the schedule ends at.
        rates: factor on lr by component.
        decays: weight decay by component.
        optimizer: builds the optimiser from parameter groups; None: `torch.optim.AdamW`.
        schedule: from the number of all steps to a factor on the rates by step, one of
            `chimera.optim.schedule` or your own; None: `warmup_cosine`.
    """

    lr: PositiveFloat
    betas: list[ProperFraction] = field(default_factory=lambda: [0.9, 0.95])
    eps: PositiveFloat = 1e-8
    weight_decay: NonNegativeFloat = 0.01
    warmup: ProperFraction = 0.1
    min_ratio: Fraction = 0.0
    rates: dict[str, NonNegativeFloat] = field(default_factory=dict)
    decays: dict[str, NonNegativeFloat] = field(default_factory=dict)
    optimizer: Factory | None = None
    schedule: Factory | None = None


@dataclass(frozen=True)
class Scale:
    """Upper bounds put on the composed configuration, last of all, so that they always win.

    Args:
        bounds: dotted key to the largest value it may have; a key that is null or absent in the
            configuration takes the bound where it is null and is passed over where absent.
        presets: by preset, bounds that stand in for those above, so that a Large stays larger
            than its Base.
        values: dotted key to the value it has at this scale, unless the command line sets it; for
            what does not shrink with a model, such as its learning rate.
        preset_values: by preset, values that stand in for those above.
        choices: group to the choice that stands in for a preset's or an experiment's, unless the
            command line chooses that group itself.
        preset_choices: by preset, choices besides those.
    """

    bounds: dict[str, Bound] = field(default_factory=dict)
    presets: dict[str, dict[str, Bound]] = field(default_factory=dict)
    values: dict[str, bool | int | float | str | None] = field(default_factory=dict)
    preset_values: dict[str, dict[str, bool | int | float | str | None]] = field(
        default_factory=dict
    )
    choices: dict[str, str] = field(default_factory=dict)
    preset_choices: dict[str, dict[str, str]] = field(default_factory=dict)
