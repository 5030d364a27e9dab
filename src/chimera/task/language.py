"""Base of the tasks that predict tokens: perplexity, accuracy, the unigram baseline."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torchmetrics import MeanMetric, Metric, MetricCollection

from chimera.config.settings import Optim
from chimera.data.batch.module import DataModule
from chimera.task.base import Stage, Task

_AT_ONCE = 1 << 22


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
