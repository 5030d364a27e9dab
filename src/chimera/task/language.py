"""What tasks share that predict tokens: meters, perplexity, and what word frequencies reach."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import islice
from typing import Any

import torch
from torch import nn
from torchmetrics import MeanMetric, Metric

from chimera.config.settings import Optim
from chimera.data.batch.loader import ResumableLoader
from chimera.data.encode.prepare import Prepared
from chimera.task.base import Stage, Task
from chimera.task.unigram import unigram_perplexity

Batch = dict[str, Any]


class Meter(nn.Module):
    """Loss per predicted token, its exponential, and the share of tokens that were guessed.

    Perplexity comes from the mean loss and not from torchmetrics' own metric, which would take the
    softmax over the vocabulary a second time.

    Args:
        accuracy: of whatever kind the task's model gives the numbers for.
    """

    def __init__(self, accuracy: Metric) -> None:
        super().__init__()
        self.loss, self.accuracy = MeanMetric(), accuracy

    def compute_and_reset(self) -> dict[str, float]:
        loss, accuracy = float(self.loss.compute()), float(self.accuracy.compute())
        self.loss.reset()
        self.accuracy.reset()
        return {"loss": loss, "perplexity": math.exp(min(loss, 700.0)), "accuracy": accuracy}


class LanguageTask(Task):
    """Cross entropy of tokens, with a meter each for validation and test.

    Args:
        vocab_size: V.
        accuracy: makes a meter's metric.
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
        self.meters = nn.ModuleDict({stage: Meter(accuracy()) for stage in ("val", "test")})

    def baselines(
        self, data: Prepared, valid: ResumableLoader, batches: int | None
    ) -> dict[str, float]:
        """Perplexity of guessing by word frequency, of the very tokens that were validated."""
        targets = torch.cat([b["targets"] for b in islice(valid, batches)]).numpy()
        counts = data.splits["train"].ids
        found = unigram_perplexity(counts, targets, data.tokenizer.vocab_size)
        return {"val/unigram_perplexity": found}

    def meter(self, stage: Stage) -> Meter:
        """That of `val` or `test`."""
        meter = self.meters[stage]
        assert isinstance(meter, Meter)
        return meter

    def measured(self, stage: Stage) -> dict[str, float]:
        return self.meter(stage).compute_and_reset()
