"""GLUE's official metrics by torchmetrics (SPEC D2; arXiv 1804.07461), one set for each part.

    MCC = (TP·TN − FP·FN) / √((TP+FP)(TP+FN)(TN+FP)(TN+FN)),   F1 = 2·TP / (2·TP + FP + FN)

F1 is that of class 1. A correlation with a constant is undefined and counts as 0, as does MCC.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torchmetrics import MeanMetric, Metric, MetricCollection
from torchmetrics.classification import (
    BinaryF1Score,
    MulticlassAccuracy,
    MulticlassMatthewsCorrCoef,
)
from torchmetrics.regression import PearsonCorrCoef, SpearmanCorrCoef

from chimera.ops import reduce


class Matthews(MulticlassMatthewsCorrCoef):
    """MCC that is 0 if all predictions or all labels are of one class.

    In this case torchmetrics computes √ε·(TP − FP)/√(…), which grows with the imbalance: predicting
    «acceptable» for all of CoLA would reach 0.026. The benchmark uses scikit-learn, which gives 0.
    """

    def compute(self) -> Tensor:
        if any(int((self.confmat.sum(axis) > 0).sum()) < 2 for axis in (0, 1)):
            return torch.zeros((), device=self.device)
        return super().compute()


class Pearson(PearsonCorrCoef):
    """Pearson's correlation that is 0 if all predictions, or all labels, are one number.

    Running means of equal numbers differ from them by rounding, so that torchmetrics correlates it.
    """

    least: Tensor
    most: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("least", torch.full((2,), math.inf), dist_reduce_fx="min")
        self.add_state("most", torch.full((2,), -math.inf), dist_reduce_fx="max")

    def update(self, preds: Tensor, target: Tensor) -> None:
        super().update(preds, target)
        both = torch.stack([preds, target]).to(self.least)
        self.least = torch.minimum(self.least, both.amin(1))
        self.most = torch.maximum(self.most, both.amax(1))

    def compute(self) -> Tensor:
        value = super().compute()
        return torch.zeros_like(value) if bool((self.least == self.most).any()) else value


#: Name of a metric to a function that makes it from the number of classes.
METRICS: dict[str, Callable[[int], Metric]] = {
    "accuracy": lambda classes: MulticlassAccuracy(classes, average="micro", validate_args=False),
    "f1": lambda classes: BinaryF1Score(validate_args=False),
    "mcc": lambda classes: Matthews(classes, validate_args=False),
    # In float32, sums of squares of thousands of scores lose digits.
    "pearson": lambda classes: Pearson().set_dtype(torch.float64),
    "spearman": lambda classes: SpearmanCorrCoef().set_dtype(torch.float64),
}


class Scores(nn.Module):
    """Loss and metrics of one part.

    Args:
        metrics: names of the official metrics.
        classes: number of classes; 0 for a regression.
    """

    def __init__(self, metrics: Sequence[str], classes: int) -> None:
        super().__init__()
        self.official = tuple(metrics)
        self.names = tuple(dict.fromkeys((*metrics, *(("accuracy",) if classes else ()))))
        with warnings.catch_warnings():  # Spearman's memory is only a few thousand numbers
            warnings.simplefilter("ignore", UserWarning)
            made: Any = {name: METRICS[name](classes) for name in self.names}
        self.metrics = MetricCollection(made, compute_groups=False)
        self.loss = MeanMetric()

    def update(self, loss: Tensor, predicted: Tensor, targets: Tensor) -> None:
        """Add a batch of predictions.

        Args:
            loss: mean loss of the batch.
            predicted: classes or scores [b].
            targets: true classes or scores [b].
        """
        self.loss.update(loss, weight=len(targets))
        is_score = predicted.is_floating_point()
        both = (predicted.double(), targets.double()) if is_score else (predicted, targets)
        self.metrics.update(*both)

    def compute_and_reset(self) -> dict[str, float]:
        """Compute all metrics and reset them; `{}` without predictions.

        `score` is the mean of the official metrics.
        """
        values: dict[str, float] = {}
        if reduce.any_of(self.loss.update_called):
            with warnings.catch_warnings():  # torchmetrics warns of a correlation with a constant
                warnings.simplefilter("ignore", UserWarning)
                found = self.metrics.compute()
            values = {name: float(found[name].nan_to_num()) for name in self.names}
            values["score"] = sum(values[name] for name in self.official) / len(self.official)
            values["loss"] = float(self.loss.compute().nan_to_num())
        self.metrics.reset()
        self.loss.reset()
        return values
