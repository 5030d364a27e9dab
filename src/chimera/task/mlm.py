"""Masked language modelling (SPEC D1; arXiv 1810.04805): predict the tokens that were hidden."""

from __future__ import annotations

import math
from itertools import islice
from pathlib import Path
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchmetrics import MeanMetric
from torchmetrics.classification import MulticlassAccuracy

from chimera.data import mlm
from chimera.data.corpus import Data
from chimera.data.loader import ResumableLoader
from chimera.data.prepare import Prepared
from chimera.data.unigram import unigram_perplexity
from chimera.model.language import LanguageModel
from chimera.settings import Optim
from chimera.task.base import Task
from chimera.task.distil import Teacher, hidden_loss, hidden_states, logit_loss
from chimera.teacher import locate
from chimera.types import Fraction, NonNegativeFloat, PositiveFloat

Batch = dict[str, Any]


class Meter(nn.Module):
    """Loss per masked token, its exponential, and the share of tokens that were guessed.

    Perplexity comes from the mean loss and not from torchmetrics' own metric, which would take the
    softmax over the vocabulary a second time; a test holds the two equal.
    """

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.loss = MeanMetric()
        self.accuracy = MulticlassAccuracy(vocab_size, average="micro", validate_args=False)

    def update(self, loss: Tensor, logits: Tensor, targets: Tensor) -> None:
        self.loss.update(loss, weight=len(targets))
        self.accuracy.update(logits, targets)

    def compute_and_reset(self) -> dict[str, float]:
        loss, accuracy = float(self.loss.compute()), float(self.accuracy.compute())
        self.loss.reset()
        self.accuracy.reset()
        return {"loss": loss, "perplexity": math.exp(min(loss, 700.0)), "accuracy": accuracy}


class MaskedLM(Task):
    """Cross entropy at the masked positions; perplexity is its exponential.

    With a teacher the loss is (1 − w)·cross entropy + w·distillation (`chimera.task.distil`).

    Args:
        name: of the task, in names and records.
        mask_ratio: share of the tokens that are hidden.
        weights: factor on each auxiliary loss by key (TITAN eq. 51).
        vocab_size: V.
        teacher: a finished run to learn from: its directory or `row:<paper>/<table>/<row>`.
        teacher_run: its identity, which the composition of the configuration fills in.
        teacher_init: start from the teacher's weights.
        distil_weight: w; 1 is TernaryBERT's loss, which knows no labels.
        distil_temperature: T of the softened distributions.
    """

    causal = False

    def __init__(
        self,
        model: nn.Module,
        optim: Optim,
        total_steps: int,
        vocab_size: int,
        *,
        name: str = "mlm",
        mask_ratio: Fraction = 0.15,
        weights: dict[str, NonNegativeFloat] | None = None,
        teacher: str | None = None,
        teacher_run: str | None = None,
        teacher_init: bool = True,
        distil_weight: Fraction = 1.0,
        distil_temperature: PositiveFloat = 1.0,
    ) -> None:
        super().__init__(model, optim, total_steps, weights or {})
        self.name, self.mask_ratio = name, mask_ratio
        self.meters = nn.ModuleDict({stage: Meter(vocab_size) for stage in ("val", "test")})
        self.vocab_size = vocab_size
        self.teacher_dir = locate(teacher, teacher_run or "") if teacher else None
        self.teacher_init = teacher_init
        self.distil_weight, self.distil_temperature = distil_weight, distil_temperature
        self.teacher: Teacher | None = None

    def setup(self, stage: str) -> None:
        """Fetch the teacher, for training only. A checkpoint that is resumed is read after this."""
        if stage == "fit" and self.teacher_dir is not None:
            model = cast(LanguageModel, self.model)
            self.teacher = Teacher(self.teacher_dir, model, self.vocab_size)
            if self.teacher_init:
                self.teacher.initialise(model)

    def on_fit_start(self) -> None:
        if self.teacher is not None:
            self.teacher.model.to(self.device)

    def loaders(
        self, data: Prepared, settings: Data, seed: int
    ) -> tuple[ResumableLoader, ResumableLoader, ResumableLoader]:
        return mlm.loaders(data, settings, self.mask_ratio, seed)

    def save_test(self, test: ResumableLoader, file: Path) -> None:
        mlm.save_test(test, file)

    def load_test(self, file: Path, settings: Data) -> ResumableLoader:
        return mlm.load_test(file, settings)

    def baselines(
        self, data: Prepared, valid: ResumableLoader, batches: int | None
    ) -> dict[str, float]:
        """Perplexity of guessing by word frequency, at the very positions that were validated."""
        targets = torch.cat([b["targets"] for b in islice(valid, batches)]).numpy()
        counts = data.splits["train"].ids
        found = unigram_perplexity(counts, targets, data.tokenizer.vocab_size)
        return {"val/unigram_perplexity": found}

    def training_step(self, batch: Batch, batch_idx: int) -> dict[str, Any]:
        if self.teacher is None:
            loss, logits, aux, stats = self._predict(batch)
            total = loss
        else:
            with hidden_states(cast(LanguageModel, self.model)) as hidden:
                loss, logits, aux, stats = self._predict(batch)
            theirs, wanted = self.teacher.hidden_and_logits(batch)
            near = hidden_loss(hidden, theirs, batch["mask"])
            alike = logit_loss(logits, wanted, self.distil_temperature)
            total = (1 - self.distil_weight) * loss + self.distil_weight * (near + alike)
            stats = {**stats, "distil_hidden": near.detach(), "distil_logits": alike.detach()}
        with torch.no_grad():
            accuracy = (logits.argmax(-1) == batch["targets"]).float().mean()
        return {
            "loss": self.weigh(total, aux),
            "task_loss": loss.detach(),
            "accuracy": accuracy,
            "aux": {key: value.detach() for key, value in aux.items()},
            "stats": stats,
        }

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        self._evaluate(batch, "val")

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        self._evaluate(batch, "test")

    def on_validation_epoch_end(self) -> None:
        self._summarise("val")

    def on_test_epoch_end(self) -> None:
        self._summarise("test")

    def _predict(self, batch: Batch) -> tuple[Tensor, Tensor, dict[str, Tensor], dict[str, Tensor]]:
        out = self.model(batch["ids"], batch["mask"], index=batch["index"])
        return F.cross_entropy(out.logits.float(), batch["targets"]), out.logits, out.aux, out.stats

    def _evaluate(self, batch: Batch, stage: Literal["val", "test"]) -> None:
        loss, logits, _, _ = self._predict(batch)
        self._meter(stage).update(loss, logits, batch["targets"])

    def _summarise(self, stage: Literal["val", "test"]) -> None:
        found = self._meter(stage).compute_and_reset()
        self.log_dict({f"{stage}/{key}": value for key, value in found.items()})

    def _meter(self, stage: str) -> Meter:
        meter = self.meters[stage]
        assert isinstance(meter, Meter)
        return meter
