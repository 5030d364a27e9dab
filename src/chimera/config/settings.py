"""Typed settings of run, model shape, trainer, optimiser and scale.

Each class is the schema of one Hydra group, named by `_target_` in its YAML files. Does not import
torch, so that a bad value fails within a second.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge, Gt, Le
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
    Seed,
)

Precision = Literal["fp32", "bf16", "fp16"]
Bound = Annotated[float, Ge(0)]
Name = Annotated[str, StringConstraints(pattern=f"^{NAME}$")]
#: Layers; beyond the limit, building the model takes minutes.
Depth = Annotated[int, Ge(1), Le(4096)]
#: Share of all batches.
Share = Annotated[float, Gt(0), Le(1)]
#: Days, hours, minutes, seconds.
Duration = Annotated[str, StringConstraints(pattern=r"^\d+:\d\d:\d\d:\d\d$")]
#: A class or function that is called later: in YAML a node of `_target_` and `_partial_: true`.
Factory = Callable[..., Any]


@dataclass(frozen=True)
class Run:
    """Settings at the top level of the configuration.

    Args:
        name: of the run, in its directory and in W&B.
        seed: of all random numbers.
        precision: fp32, bf16 or fp16 (mixed; fp16 with a gradient scaler, slow on a CPU). The
            command line also takes auto (`chimera.config.precision`).
        run_dir: directory of the run; None: `runs/<name>-<hash of the resolved config>`.
        overwrite: start over in a directory that holds a finished run.
        extend: train the finished run in `run_dir` on to a larger `trainer.max_steps`
            (`chimera.rundir.directory`).
        workers: jobs of a sweep that run at the same time.
        tags: of the run, in `run.json` and W&B.
        ckpt_path: a checkpoint that a new run goes on from, with its optimiser, rates and position
            in the data; `init_from` takes only weights.
        ckpt_sha256: of that file; set by the composition.
        init_from: a model to start from: a run, a checkpoint, an exported folder, a Hugging Face
            model, or `row:<paper>/<table>/<row>` (`chimera.config.start_model`).
        init_run: identity of the model that `init_from` names; set by the composition.
    """

    name: Name
    seed: Seed = 0
    precision: Precision = "fp32"
    run_dir: str | None = None
    overwrite: bool = False
    extend: bool = False
    workers: PositiveInt = 1
    tags: list[str] | None = None
    ckpt_path: str | None = None
    ckpt_sha256: str | None = None
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
        embedding_std: standard deviation of the initial embedding table; None: that of weights.
            torch's own is 1; with a tied head, the first losses are then near the width d instead
            of log(vocabulary) (SPEC E14).
        embedding_scale: factor on the embeddings: `none`, `sqrt_dim` (√d), or `learned` from √d.
            A tanh in place of a norm keeps small activations small; without a factor such a model
            does not learn.
        two_way: a causal-only mixer runs in both directions in an encoder; each direction has its
            `own` weights, or both have `shared` ones.
        norm_placement: where a block has its norms: before a branch (`pre`), after the sum
            (`post`), after a branch (`output`), before and after it (`sandwich`), and after the
            embeddings too (`peri`); `chimera.model.block` has the equations.
        embedding_norm: a norm of the embeddings; `peri` has one.
        qk_norm: RMSNorm with weights on queries and keys of each head, before they are rotated.

    `builder` is the dotted path of the function that builds the model, called as
    `(settings, choices, *, vocab_size, causal)`. Another settings class may name another builder.
    """

    builder: ClassVar[str] = "chimera.model.assemble.from_parts"

    dim: PositiveInt
    depth: Depth
    heads: PositiveInt
    loops: PositiveInt = 1
    max_len: PositiveInt = 128
    dropout: ProperFraction = 0.0
    gradient_checkpointing: bool = False
    tie_head: bool = True
    head_transform: bool = True
    residual_init: Literal["normal", "scaled", "fixup"] = "scaled"
    init_std: PositiveFloat | None = None
    embedding_std: PositiveFloat | None = None
    embedding_scale: Literal["none", "sqrt_dim", "learned"] = "learned"
    two_way: Literal["own", "shared"] = "own"
    norm_placement: Literal["pre", "post", "output", "sandwich", "peri"] = "pre"
    embedding_norm: bool = False
    qk_norm: bool = False

    def check(self) -> None:
        """Do nothing: this model needs no download."""


@dataclass(frozen=True)
class Trainer:
    """Length and manner of training: Lightning's Trainer with the names of its arguments.

    None leaves an argument at Lightning's default. `docs/reference/trainer.md` lists all
    arguments, those that another group sets, and those that enter the identity of a run. Shares of
    batches are numbers with a point: 1 is one batch, 1.0 is all of them.

    Args:
        max_steps: optimiser steps; may be null if max_epochs is set.
        max_epochs: passes over the training data; with both limits, training ends at the earlier
            one.
        min_steps, min_epochs: what a callback that stops early has to wait for.
        max_time: DD:HH:MM:SS; the run stops, saved, when it has trained for so long in all.
        accumulate_grad_batches: micro-batches per optimiser step.
        gradient_clip_val: largest gradient norm; 0 turns clipping off.
        gradient_clip_algorithm: `norm` clips the norm of all gradients, `value` each value.
        val_check_interval: optimiser steps between validations, a share of an epoch, or `epoch`; 0
            validates only at the end.
        check_val_every_n_epoch: validate after every n epochs instead.
        limit_train_batches: micro-batches per epoch; each epoch has a new order.
        limit_val_batches: batches per validation; None uses all.
        limit_test_batches: batches of the final test; None uses all.
        overfit_batches: train on the same micro-batches in each epoch, validate on as many.
        fast_dev_run: one micro-batch (or so many) each of training, validation and test.
        log_every_n_steps: optimiser steps between logged points.
        checkpoint_every_n_steps: optimiser steps between rolling checkpoints (TITAN Table 4: 500).
        checkpoint_keep: number of rolling checkpoints to keep.
        checkpoint_keep_best: number of checkpoints with the best validation to keep.
        checkpoint_keep_epochs: number of checkpoints from ends of epochs to keep; None keeps all.
        accelerator: `auto` uses a GPU if one is available.
        strategy: of several processes: `ddp` (each has all weights) or `fsdp` (FSDP2: weights and
            optimiser states in shards); None is ddp.
        devices: processes on this machine, one per GPU, or so many on the CPU. `data.batch_size` is
            the batch of all of them.
        num_nodes: machines; srun or torchrun starts a command on each.
        timeout: seconds until a process that waits for another one gives up.
        deterministic: refuse operations without a deterministic implementation, or `warn`.
        profiler: write times of Lightning's hooks to files `*-profile*` of the run's directory.
        detect_anomaly: name the operation whose gradient is NaN; slow.
        compile: torch.compile the model's blocks in place; a model without blocks as a whole.
            `auto` compiles the whole model with its loss as one graph on a GPU, nothing on a CPU;
            `graphs` also starts its passes as CUDA graphs, on one GPU only.
        progress: `auto` draws a bar in a terminal and prints lines elsewhere.
        threads: CPU threads of torch; None keeps torch's default.
    """

    max_steps: PositiveInt | None
    max_epochs: PositiveInt | None = None
    min_steps: NonNegativeInt | None = None
    min_epochs: NonNegativeInt | None = None
    max_time: Duration | None = None
    accumulate_grad_batches: PositiveInt = 1
    gradient_clip_val: NonNegativeFloat = 1.0
    gradient_clip_algorithm: Literal["norm", "value"] | None = None
    val_check_interval: NonNegativeInt | Share | Literal["epoch"] = 0
    check_val_every_n_epoch: PositiveInt | None = None
    num_sanity_val_steps: Annotated[int, Ge(-1)] | None = None
    limit_train_batches: PositiveInt | Share | None = None
    limit_val_batches: PositiveInt | Share | None = None
    limit_test_batches: PositiveInt | Share | None = None
    limit_predict_batches: PositiveInt | Share | None = None
    overfit_batches: PositiveInt | Share | None = None
    fast_dev_run: bool | PositiveInt | None = None
    log_every_n_steps: PositiveInt = 10
    checkpoint_every_n_steps: PositiveInt = 500
    checkpoint_keep: PositiveInt = 3
    checkpoint_keep_best: NonNegativeInt = 2
    checkpoint_keep_epochs: NonNegativeInt | None = None
    accelerator: Literal["auto", "cpu", "gpu"] = "auto"
    strategy: Literal["ddp", "fsdp"] | None = None
    devices: PositiveInt = 1
    num_nodes: PositiveInt | None = None
    timeout: PositiveFloat = 600.0
    sync_batchnorm: bool | None = None
    deterministic: bool | Literal["warn"] = False
    benchmark: bool | None = None
    inference_mode: bool | None = None
    profiler: Literal["simple", "advanced", "pytorch"] | None = None
    detect_anomaly: bool | None = None
    enable_model_summary: bool | None = None
    enable_autolog_hparams: bool | None = None
    reload_dataloaders_every_n_epochs: NonNegativeInt | None = None
    compile: bool | Literal["auto", "graphs"] = False
    progress: Literal["auto", "bar", "lines", "none"] = "auto"
    threads: PositiveInt | None = None

    def check(self) -> None:
        """Refuse a run without an end.

        Raises:
            UserError: neither max_steps nor max_epochs is set.
        """
        if self.max_steps is None and self.max_epochs is None:
            raise UserError("trainer.max_steps=null needs trainer.max_epochs=<a number>")


@dataclass(frozen=True)
class TrainerInSteps(Trainer):
    """Trainer settings whose lengths are optimiser steps and numbers of batches."""

    max_steps: PositiveInt = 1
    limit_val_batches: PositiveInt | None = None
    limit_test_batches: PositiveInt | None = None


def in_steps(
    settings: Trainer, batches: int, *, valid: int | None = None, test: int | None = None
) -> TrainerInSteps:
    """Convert epochs to optimiser steps, and shares of batches to their number.

    Args:
        settings: of the configuration.
        batches: micro-batches of one epoch.
        valid, test: batches of these splits; None where they are not known.

    Raises:
        UserError: a share that is less than one batch.
    """
    epoch = -(-batches // settings.accumulate_grad_batches)
    limits = [settings.max_steps] if settings.max_steps else []
    limits += [settings.max_epochs * epoch] if settings.max_epochs else []
    lengths = {
        key: number(key, getattr(settings, key), all_of_them)
        for key, all_of_them in (("limit_val_batches", valid), ("limit_test_batches", test))
    }
    return TrainerInSteps(**{**vars(settings), **lengths, "max_steps": min(limits)})


def number(key: str, limit: float | None, batches: int | None) -> int | None:
    """Number of batches that a limit means; None for all of them.

    Args:
        key: of the limit, in `trainer`.
        limit: a number of batches, or a share of them if it is a float.
        batches: all of them; None where that is not known.

    Raises:
        UserError: the share is less than one batch.
    """
    if limit is None or isinstance(limit, int):
        return limit
    if batches is None or limit == 1.0:
        return None
    if int(limit * batches) == 0:
        raise UserError(
            f"trainer.{key}={limit} of {batches} batches is less than one; use a larger share, or"
            " a number of batches, which has no point"
        )
    return int(limit * batches)


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
        bounds: dotted key to its largest value, unless the command line sets the key; a key that is
            null takes the bound, a key that is absent is skipped.
        values: dotted key to its value at this scale, unless the command line sets the key; for
            settings without a bound, such as the learning rate.
        choices: group to the option that replaces a preset's or an experiment's choice, unless the
            command line chooses the group.
        shares: dotted key to a factor on the value of preset and row, rounded: what a paper varies
            keeps its ratios. Not for keys of the command line.

    A preset or a row may have any of these under `at: {<scale>: …}`; they win over the scale's, and
    a null takes an entry away.
    """

    bounds: dict[str, Bound | None] | None = None
    values: dict[str, bool | int | float | str | None] | None = None
    choices: dict[str, str | None] | None = None
    shares: dict[str, PositiveFloat | None] | None = None
