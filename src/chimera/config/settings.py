"""Typed settings of run, model shape, trainer, optimiser and scale.

Each class is the schema of one Hydra group, named by `_target_` in its YAML files. Does not import
torch, so that a bad value fails within a second.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge
from pydantic import StringConstraints

from chimera.errors import UserError
from chimera.types import (
    NAME,
    Fraction,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ProperFraction,
)

Precision = Literal["fp32", "bf16", "fp16"]
Bound = Annotated[float, Ge(0)]
Name = Annotated[str, StringConstraints(pattern=f"^{NAME}$")]
#: A class or function that is called later: in YAML a node of `_target_` and `_partial_: true`.
Factory = Callable[..., Any]


@dataclass(frozen=True)
class Run:
    """Settings at the top level of the configuration.

    Args:
        name: of the run, in its directory and in W&B.
        seed: of all random numbers.
        precision: fp32, bf16 or fp16 (mixed; fp16 with a gradient scaler, slow on a CPU).
        run_dir: directory of the run; None: `runs/<name>-<hash of the resolved config>`.
        overwrite: start over in a directory that holds a finished run.
        extend: train the finished run in `run_dir` on to a larger `trainer.max_steps`
            (`chimera.rundir.extend`).
        workers: jobs of a sweep that run at the same time.
        init_from: a model to start from: a run, a checkpoint, an exported folder, a Hugging Face
            model, or `row:<paper>/<table>/<row>` (`chimera.config.init_from`).
        init_run: identity of the model that `init_from` names; set by the composition.
    """

    name: Name
    seed: NonNegativeInt = 0
    precision: Precision = "fp32"
    run_dir: str | None = None
    overwrite: bool = False
    extend: bool = False
    workers: PositiveInt = 1
    init_from: str | None = None
    init_run: str | None = None


@dataclass(frozen=True)
class Model:
    """Shape of the backbone and its head.

    Args:
        dim: width d.
        depth: number of physical layers.
        heads: number of attention heads, unless the mixer sets its own.
        loops: number of passes through the physical layers (TITAN Alg. 1).
        max_len: tokens per sequence.
        dropout: probability of dropout on embeddings, branches and attention weights.
        gradient_checkpointing: recompute each block in the backward pass.
        tie_head: use the embedding table as output matrix.
        head_transform: put BERT's linear, GELU and norm before the output matrix.
        residual_init: `normal`: all weights N(0, init_std²); `scaled`: weights that write to the
            residual stream are divided by √(number of branches) (GPT-2); `fixup`: these weights
            are zero, the others are divided by √(number of branches) (arXiv 1901.09321).
        init_std: standard deviation of initial weights; None: 1/√d.
        embedding_scale: factor on the embeddings: `none`, `sqrt_dim` (√d), or `learned` from √d.
            A tanh in place of a norm keeps small activations small; without a factor such a model
            does not learn.
        two_way: a causal-only mixer runs in both directions in an encoder; each direction has its
            `own` weights, or both have `shared` ones.

    `builder` is the dotted path of the function that builds the model, called as
    `(settings, choices, *, vocab_size, causal)`. Another settings class may name another builder.
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
        """Do nothing: this model needs no download."""


@dataclass(frozen=True)
class Trainer:
    """Length and manner of training; names as in Lightning's Trainer.

    Args:
        max_steps: optimiser steps; may be null if max_epochs is set.
        max_epochs: passes over the training data; with both limits, training ends at the earlier
            one.
        accumulate_grad_batches: micro-batches per optimiser step.
        gradient_clip_val: largest gradient norm; 0 turns clipping off.
        val_check_interval: optimiser steps between validations, or `epoch`; 0 validates only at the
            end.
        limit_val_batches: batches per validation; None uses all.
        limit_test_batches: batches of the final test; None uses all.
        log_every_n_steps: optimiser steps between logged points.
        checkpoint_every_n_steps: optimiser steps between rolling checkpoints (TITAN Table 4: 500).
        checkpoint_keep: number of rolling checkpoints to keep.
        checkpoint_keep_best: number of checkpoints with the best validation to keep.
        checkpoint_keep_epochs: number of checkpoints from ends of epochs to keep; None keeps all.
        accelerator: `auto` uses a GPU if one is available.
        devices: number of devices.
        deterministic: refuse operations without a deterministic implementation.
        compile: torch.compile the model in place.
        progress: `auto` draws a bar in a terminal and prints lines elsewhere.
        threads: CPU threads of torch; None keeps torch's default.
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
            UserError: neither max_steps nor max_epochs is set.
        """
        if self.max_steps is None and self.max_epochs is None:
            raise UserError("trainer.max_steps=null needs trainer.max_epochs=<a number>")

    def in_steps(self, batches: int) -> TrainerInSteps:
        """Convert epochs to optimiser steps.

        Args:
            batches: micro-batches of one epoch.
        """
        epoch = -(-batches // self.accumulate_grad_batches)
        limits = [self.max_steps] if self.max_steps else []
        limits += [self.max_epochs * epoch] if self.max_epochs else []
        steps, every = min(limits), self.val_check_interval
        every = min(epoch, steps) if every == "epoch" else every
        return TrainerInSteps(**{**vars(self), "max_steps": steps, "val_check_interval": every})


@dataclass(frozen=True)
class TrainerInSteps(Trainer):
    """Trainer settings whose lengths are all in optimiser steps."""

    max_steps: PositiveInt = 1
    val_check_interval: NonNegativeInt = 0


@dataclass(frozen=True)
class Optim:
    """Optimiser, learning rates by component, learning-rate schedule (SPEC T1, T2; TITAN Table 3).

    Args:
        lr: base rate; a component's rate is lr times its entry in `rates` (1 without an entry).
        betas: β₁, β₂, for an optimiser with an argument of this name, such as AdamW.
        eps: ε, for an optimiser with an argument of this name.
        weight_decay: of components without an entry in `decays`.
        warmup: share of all steps during which the rate rises linearly.
        min_ratio: final rate of the schedule as a share of the peak rate.
        rates: factor on lr by component.
        decays: weight decay by component.
        optimizer: builds the optimiser from parameter groups; None: `torch.optim.AdamW`.
        schedule: builds, from the number of all steps, the factor on the rates by step: a function
            of `chimera.optim.schedule` or your own; None: `warmup_cosine`.
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
    """Bounds, values and choices of a scale, applied last in the composition.

    Args:
        bounds: dotted key to its largest value; a key that is null takes the bound, a key that is
            absent is skipped.
        presets: by preset, bounds that replace those above, so that a Large model stays larger
            than its Base.
        values: dotted key to its value at this scale, unless the command line sets the key; for
            settings without a bound, such as the learning rate.
        preset_values: by preset, values that replace those above.
        choices: group to the option that replaces a preset's or an experiment's choice, unless the
            command line chooses the group.
        preset_choices: by preset, additional choices.
    """

    bounds: dict[str, Bound] = field(default_factory=dict)
    presets: dict[str, dict[str, Bound]] = field(default_factory=dict)
    values: dict[str, bool | int | float | str | None] = field(default_factory=dict)
    preset_values: dict[str, dict[str, bool | int | float | str | None]] = field(
        default_factory=dict
    )
    choices: dict[str, str] = field(default_factory=dict)
    preset_choices: dict[str, dict[str, str]] = field(default_factory=dict)
