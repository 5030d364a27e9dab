"""Bases of the tasks: total loss, optimiser and schedule, clipping by the global gradient norm.

Tasks that predict tokens share perplexity, accuracy and the unigram baseline (`LanguageTask`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Literal

import lightning.pytorch as pl
import numpy as np
import numpy.typing as npt
import torch
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten
from torchmetrics import MeanMetric, Metric, MetricCollection

from chimera.config.settings import Optim
from chimera.data.batch.module import DataModule
from chimera.data.tokenizer.base import TokenizerSettings
from chimera.errors import NotFiniteError, UserError
from chimera.ops import reduce
from chimera.ops.dropout import sample_keys
from chimera.ops.shards import is_sharded, local, whole
from chimera.ops.step_numbers import HostCopy, by_name, mean
from chimera.optim.optimizer import build, groups

Batch = dict[str, Any]
Stage = Literal["val", "test"]
#: Devices on which gradients are unscaled (fp16) and clipped before the fused update, not in it.
UNFUSED = ("cpu",)
#: Ids that are counted at a time.
_AT_ONCE = 1 << 22


class Guard:
    """Checks an optimiser step; a run has another one (`NanGuard`).

    The check comes before the update or, where the optimiser leaves a step that is not finite out
    by itself, when the update has been started.
    """

    def begin_update(self) -> None:
        """Called before an update that starts without a check."""

    def check(self, task: Any, grad_norm: float, losses: list[float]) -> None:
        """Raise if the norm or a loss is not finite.

        Another guard may also remove the gradients, so that the update does nothing.

        Args:
            task: the module that is trained.
            grad_norm: global norm of the gradients, before clipping; the same on all processes.
            losses: total losses of this process's share of the step's micro-batches. All processes
                have to come to the same verdict.

        Raises:
            NotFiniteError: with the numbers.
        """
        if reduce.any_of(not all(map(math.isfinite, (grad_norm, *losses)))):
            raise NotFiniteError(f"losses {losses}, gradient norm {grad_norm}")


def _some(count: Tensor) -> Tensor:
    """A number of predictions to divide by: 0 predictions have losses of 0."""
    return count.clamp(min=torch.finfo(count.dtype).tiny)


class Task(pl.LightningModule):
    """A LightningModule around a model: loss, metrics, optimiser.

    `Trainer.fit(task, datamodule=…)` trains it with the data module that `data_module` makes.

    Args:
        model: the model to train.
        optim: rates, decays, schedule.
        total_steps: optimiser steps of the whole run; the schedule's length.
        weights: factor on each auxiliary loss by key (TITAN eq. 51); 0 for other keys.
    """

    causal: ClassVar[bool | None]  # None: as the model does
    data_class: ClassVar[Any]  # of the data module
    data_settings: ClassVar[tuple[str, ...]] = ()  # those of the task that the data module takes
    #: Whether the task accepts any corpus. If not, `corpus_check` is the dotted path of the
    #: function that checks a corpus.
    plain_text = True
    #: Metric that chooses the best checkpoint, whether lower or higher is better, and the
    #: checkpoint (last or best) of the final test.
    monitor = "val/loss"
    better = "lower"
    final = "last"
    compiled = False  # by `trainer.compile`
    graphs = False  # in CUDA graphs, whose next pass overwrites what the last one returned
    predicts = "prediction"  # what a loss in nats is the mean over, for axes of figures

    def __init__(
        self, model: nn.Module, optim: Optim, total_steps: int, weights: dict[str, float]
    ) -> None:
        super().__init__()
        self.model = model
        self.optim = optim
        self.total_steps = total_steps
        self.weights = weights
        self.grad_norm = float("nan")  # of the last step, before clipping
        self.loss_scale = 1.0  # likewise, of fp16's scaler
        self.guard: Any = Guard()
        self._checked_length = 0
        self.means: dict[str, float] = {}  # of the last step (`ops.step_numbers`)
        self._losses: list[Tensor] = []  # of the micro-batches of the current step
        self._outputs: list[dict[str, Any]] = []  # likewise, of `step_output`
        self._unread: tuple[HostCopy, int, list[str]] | None = None  # of a step not yet checked
        self._counts: list[Tensor] = []  # likewise, of the predictions that a loss is the mean of
        self._unit = 0.0  # number of predictions with weight 1 in a step of several micro-batches
        self._shared = False  # whether a process's loss is its share of the step's

    @classmethod
    def data_module(
        cls, corpus: Any, tokenizer: TokenizerSettings, seed: int, settings: Mapping[str, Any]
    ) -> DataModule:
        """Make the data module of this task's batches.

        Args:
            corpus: a choice of `data=`.
            tokenizer: a choice of `tokenizer=`.
            seed: of the order of the training examples.
            settings: keyword arguments of the task's constructor.
        """
        own = {key: settings[key] for key in cls.data_settings}
        return cls.data_class(corpus, tokenizer, seed, **own)

    def configure_head(self, corpus: Any) -> None:
        """Add the head that the corpus needs to the model, before an adapter is injected."""

    def configure_for(self, data: DataModule, stage: str) -> None:
        """Configure loss and metrics from the data module; refuse data that do not fit the model.

        Lightning's `setup` calls this with the Trainer's data module. A run also calls it before it
        writes files. A second call changes nothing.

        Args:
            data: the data module.
            stage: fit, validate or test.

        Raises:
            UserError: the model cannot be trained or tested on these data.
        """

    def check_length(self, length: int) -> None:
        """Refuse sequences that the model cannot process.

        Each length is checked once: a compiled model would be compiled again.

        Raises:
            UserError: the model is limited to fewer tokens.
        """
        if length > self._checked_length:
            self.model.check_length(length)  # type: ignore[operator]
            self._checked_length = length

    def setup(self, stage: str) -> None:
        data: DataModule | None = getattr(self.trainer, "datamodule", None)
        if data is not None:
            self.configure_for(data, stage)

    def configure_model(self) -> None:
        """Shard the model before training; Lightning calls this again before each evaluation."""
        if self.device_mesh is not None and not any(map(is_sharded, self.parameters())):
            from chimera.model.sharding import shard  # imports FSDP2, which takes half a second

            shard(self.model, self.device_mesh)

    def write_predictions(self, directory: Path) -> None:
        """Write the predictions of the final test to files, if the task has a submission."""

    def baselines(self, data: DataModule, batches: int | None) -> dict[str, float]:
        """Metrics of a trivial predictor on `batches` batches of validation (None: all)."""
        return {}

    def extra_metrics(self, trainer: pl.Trainer, data: DataModule) -> dict[str, float]:
        """Task-specific metrics of the trained model, after validation and test."""
        return {}

    def example(self, length: int, device: torch.device) -> dict[str, Any]:
        """Arguments of a forward pass on one sequence without padding that costs as in training.

        Args:
            length: tokens.
            device: of the arguments.
        """
        return {"ids": torch.zeros(1, length, dtype=torch.long, device=device)}

    def training_batch(self, sequences: int, length: int, device: torch.device) -> Batch:
        """A batch of training whose numbers have no meaning, for an estimate of its memory.

        Args:
            sequences: without padding.
            length: tokens of each.
            device: of the tensors.
        """
        ids = torch.zeros(sequences, length, dtype=torch.long, device=device)
        draws = ids[:, 0].clone()
        return {"ids": ids, "mask": None, "index": None, "targets": ids.flatten(), "draws": draws}

    def outputs(self, batch: Batch, **more: Any) -> Any:
        """Outputs of the model at the predicted positions of a batch: a graph of compile=auto.

        Models that cannot keep documents apart are refused before, and do not take `documents`.

        Args:
            batch: with `ids`, `mask`, `index` and, where they are used, `draws` and `documents`.
            more: further arguments of the model.
        """
        if "documents" in batch:
            more["documents"] = batch["documents"]
        more["draws"] = sample_keys(batch.get("draws"))
        return self.model(batch["ids"], batch["mask"], index=batch["index"], **more)

    def total_loss(self, loss: Tensor, aux: dict[str, Tensor]) -> Tensor:
        """Total loss: task loss plus weighted auxiliary losses; it is also stored for the guard.

        Args:
            loss: of the task.
            aux: auxiliary losses by key, unweighted.
        """
        for key, value in aux.items():
            if self.weights.get(key):
                loss = loss + self.weights[key] * value
        self._losses.append(loss.detach().float())
        return loss

    def step_output(
        self,
        loss: Tensor,
        accuracy: Tensor,
        aux: dict[str, Tensor],
        stats: dict[str, Tensor],
        *,
        count: Tensor | float,
        objective: Tensor | None = None,
    ) -> dict[str, Any]:
        """Make the dict that a training step returns; callbacks log it.

        A step's loss is the mean over all predictions of its micro-batches and processes: `loss` in
        the dict is weighted by `count`. Auxiliary losses get the same weights.

        Args:
            loss: task loss to log.
            accuracy: of the batch.
            aux: auxiliary losses, unweighted.
            stats: scalars for charts.
            count: number of predictions that `loss` is the mean of, or the sum of their weights.
            objective: task loss to minimise, if it differs from `loss`.
        """
        total = self.total_loss(loss if objective is None else objective, aux)
        predictions = (
            count.to(loss.device, torch.float32)
            if isinstance(count, Tensor)
            else torch.full((), count, dtype=torch.float32, device=loss.device)  # without a copy
        )
        output = {
            "count": predictions,
            "task_loss": loss.detach(),
            "accuracy": accuracy,
            "aux": {key: value.detach() for key, value in aux.items()},
            "stats": stats,
        }
        if self.graphs:
            numbers, form = tree_flatten(output)
            copies = torch.stack([x.detach().float() for x in numbers]).unbind()
            output = tree_unflatten(copies, form)
        self._outputs.append(output)
        return {"loss": self._weighted(total, predictions), **output}

    def _weighted(self, loss: Tensor, count: Tensor) -> Tensor:
        """The loss of a micro-batch, weighted so that a step has the mean over its predictions.

        A process's loss is its share of that mean, so the gradients of activations are those of one
        process: in fp16 they overflow where its own do, and the scaler leaves out the same steps.
        With several micro-batches the number of all predictions is known after the last: until then
        weights are relative to a power of 2, which changes no digit.
        """
        trainer = getattr(self, "_trainer", None)
        processes = reduce.participants()
        self._shared = processes > 1
        if trainer is None or trainer.accumulate_grad_batches == 1:
            return loss * (count / _some(reduce.total(count))) if self._shared else loss
        if self.graphs:  # a callback has changed the number
            raise UserError("trainer.compile=graphs sums no gradients; use trainer.compile=auto")
        if not self._unit:
            self._unit = 2.0 ** round(math.log2(max(1.0, float(reduce.total(count)))))
        self._counts.append(count)
        return loss * (count / self._unit)

    def on_train_start(self) -> None:
        self._counts = []

    def optimizer_step(
        self,
        epoch: int,
        batch_idx: int,
        optimizer: Any,
        optimizer_closure: Callable[[], Any] | None = None,
    ) -> None:
        """Take a step with the gradients of the mean over the step's predictions."""

        def closure() -> Any:
            loss = optimizer_closure() if optimizer_closure else None
            self._sum_gradients()
            return loss

        super().optimizer_step(epoch, batch_idx, optimizer, closure)
        self.read_step()

    def _sum_gradients(self) -> None:
        """Turn the means that DDP, FSDP and Lightning take into sums of the shares."""
        factor: Tensor | int = reduce.participants() if self._shared else 1
        if self._counts:
            parts = self.trainer.accumulate_grad_batches * factor
            factor = parts * self._unit / _some(reduce.total(torch.stack(self._counts).sum()))
            self._counts = []
        if isinstance(factor, Tensor) or factor > 1:
            torch._foreach_mul_(local(self._gradients()), factor)

    def _gradients(self) -> list[Tensor]:
        return [p.grad for p in self.parameters() if p.grad is not None]

    def update_metrics(self, batch: Batch, stage: Stage) -> Any:
        """Add a batch to the metrics of a stage; nothing of one that is `void`."""
        raise NotImplementedError

    def compute_metrics(self, stage: Stage) -> dict[str, float]:
        """Compute the metrics of a stage and reset them."""
        raise NotImplementedError

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        self.update_metrics(batch, "val")

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        self.update_metrics(batch, "test")

    def on_validation_epoch_end(self) -> None:
        self._log_metrics("val")

    def on_test_epoch_end(self) -> None:
        self._log_metrics("test")

    def _log_metrics(self, stage: Stage) -> None:
        metrics = self.compute_metrics(stage)
        self.log_dict({f"{stage}/{key}": value for key, value in metrics.items()})

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        # torch has the fused step for shards of few optimisers only.
        sharded = any(map(is_sharded, self.parameters()))
        scaled = self.trainer.precision == "16-mixed"
        fused = not sharded and not (scaled and self.device.type in UNFUSED)
        optimizer, schedule = build(
            self.optim, groups(self.model, self.optim), self.total_steps, fused=fused
        )
        if scaled:  # gradients are unscaled before they are clipped, not in the fused step
            vars(optimizer)["_step_supports_amp_scaling"] = False
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def configure_gradient_clipping(
        self,
        optimizer: torch.optim.Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip by the global norm, or by value if the Trainer says so.

        The guard checks the norm and the step's losses before that, or after the update where the
        device can leave the update out. There a GPU's update clips, too.
        """
        norm = whole(nn.utils.get_total_norm(self._gradients())).float()
        scale = self.gradient_scale(optimizer)
        if scale is not None:
            norm = norm / scale
        pairs = by_name(self._outputs)
        scales = [] if scale is None else [scale]
        numbers = torch.stack([norm, *self._losses, *map(mean, pairs.values()), *scales])
        self._unread = HostCopy(numbers), len(self._losses), list(pairs)
        checked = numbers[: 1 + len(self._losses)]
        self._losses = []
        self._outputs = []
        if self.leaves_out(optimizer):
            broken = (checked * 0).sum().isnan()  # any is not finite
            _inner(optimizer).found_inf = broken.float()
            norm = norm.masked_fill(broken, 0.0)  # the guard reports gradients as they are
            self.guard.begin_update()
            if gradient_clip_val and (scale is not None or self.device.type not in UNFUSED):
                clip = (norm / gradient_clip_val).clamp(min=1.0)
                scale = clip if scale is None else clip * scale
            if scale is not None:
                _inner(optimizer).grad_scale = scale
                return
        else:
            self.read_step()
            if not math.isfinite(self.grad_norm):
                return
        if not gradient_clip_val:
            return
        if gradient_clip_algorithm == "value":
            nn.utils.clip_grad_value_(self.parameters(), gradient_clip_val)
        else:
            nn.utils.clip_grads_with_norm_(self.parameters(), gradient_clip_val, norm)

    def leaves_out(self, optimizer: Any) -> bool:
        """Whether the optimiser changes nothing in a step whose `found_inf` on the device is 1.

        torch's fused SGD does not: it leaves a first step out with momenta that hold anything.
        Several processes have to agree first. In fp16 gradients stay scaled until the update
        (`train.scaler`); clipping by value, and hooks before the update, need them unscaled.
        """
        trainer: Any = getattr(self, "_trainer", None)
        return (
            isinstance(_inner(optimizer), torch.optim.Adam)
            and all(group["fused"] for group in optimizer.param_groups)
            and reduce.participants() == 1
            and trainer is not None
            and trainer.gradient_clip_algorithm != "value"
            and (self._scaler() is None or self._may_be_scaled(trainer))
        )

    def _may_be_scaled(self, trainer: Any) -> bool:
        """Whether the plugin leaves gradients scaled and no hook before the update forbids it."""
        hook = "on_before_optimizer_step"
        others = [x for x in trainer.callbacks if not getattr(x, "takes_scaled_gradients", False)]
        unseen = all(getattr(type(x), hook) is getattr(pl.Callback, hook) for x in others)
        unseen &= getattr(type(self), hook) is getattr(pl.LightningModule, hook)
        return unseen and getattr(trainer.precision_plugin, "scales_until_update", False)

    def gradient_scale(self, optimizer: Any) -> Tensor | None:
        """Factor by which fp16's gradients are scaled until the update; None if unscaled."""
        scaler = self._scaler()
        if scaler is None or not self.leaves_out(optimizer):
            return None
        factor: Tensor = scaler.scale(torch.ones((), device=self.device))
        return factor

    def _scaler(self) -> Any:
        trainer = getattr(self, "_trainer", None)
        return getattr(trainer and trainer.precision_plugin, "scaler", None)

    def read_step(self) -> None:
        """Read the numbers of a step, once, and let the guard see them."""
        if self._unread is None:
            return
        copy, losses, names = self._unread
        self._unread = None
        self.grad_norm, *values = copy.tolist()
        if len(values) > losses + len(names):
            self.loss_scale = values.pop()
        elif (scaler := self._scaler()) is not None:
            self.loss_scale = scaler.get_scale()
        self.means = dict(zip(names, values[losses:], strict=True))
        self.guard.check(self, self.grad_norm, values[:losses])


def _inner(optimizer: Any) -> Any:
    """The optimiser in Lightning's wrapper, which passes no attributes on to it."""
    return getattr(optimizer, "optimizer", optimizer)


class LanguageTask(Task):
    """Cross entropy of tokens, with one meter for validation and one for test.

    Args:
        model, optim, total_steps, weights: as of `Task`.
        vocab_size: V.
        accuracy: makes the accuracy metric of a meter.
    """

    def __init__(
        self,
        model: nn.Module,
        optim: Optim,
        total_steps: int,
        weights: dict[str, float],
        vocab_size: int,
        accuracy: Callable[[], Metric],
    ) -> None:
        super().__init__(model, optim, total_steps, weights)
        self.vocab_size = vocab_size
        self.meters: Any = nn.ModuleDict()
        for stage in ("val", "test"):
            metrics: Any = {"loss": MeanMetric(), "accuracy": accuracy()}
            self.meters[stage] = MetricCollection(metrics, compute_groups=False)

    def training_step(self, batch: Batch, batch_idx: int) -> dict[str, Any]:
        out = self.outputs(batch)
        count = len(batch["targets"])
        return self.step_output(out.loss, out.accuracy, out.aux, out.stats, count=count)

    def baselines(self, data: DataModule, batches: int | None) -> dict[str, float]:
        """Perplexity of a unigram model on the tokens that validation predicts."""
        valid = islice(data.val_dataloader().undivided(), batches)
        targets = torch.cat([batch["targets"] for batch in valid]).numpy()
        train_ids = data.prepared.splits["train"].ids
        perplexity = unigram_perplexity(train_ids, targets, data.prepared.tokenizer.vocab_size)
        return {"val/unigram_perplexity": perplexity}

    def compute_metrics(self, stage: Stage) -> dict[str, float]:
        """Loss per predicted token, perplexity (its exponential), and accuracy.

        The metric of torchmetrics would compute the softmax over the vocabulary a second time.
        """
        found = {name: float(value) for name, value in self.meters[stage].compute().items()}
        self.meters[stage].reset()
        perplexity = math.exp(min(found["loss"], 700.0))
        return {"loss": found["loss"], "perplexity": perplexity, "accuracy": found["accuracy"]}


def unigram_perplexity(
    train_ids: npt.NDArray[np.integer], targets: npt.NDArray[np.integer], vocab_size: int
) -> float:
    """Perplexity of predicting each token by its frequency in train, with add-one smoothing.

    p(w) = (count of w in train + 1) / (N + V),   perplexity = exp(−mean log p(target))

    Args:
        train_ids: [N] ids from which frequencies are counted.
        targets: [n] ids to predict.
        vocab_size: V.
    """
    counts = np.zeros(vocab_size)
    for start in range(0, len(train_ids), _AT_ONCE):  # a mapped file may be larger than memory
        part = np.asarray(train_ids[start : start + _AT_ONCE], dtype=np.int64)
        counts += np.bincount(part, minlength=vocab_size)
    log_p = np.log(counts + 1) - math.log(len(train_ids) + vocab_size)
    return math.exp(-float(log_p[np.asarray(targets)].mean()))
