"""Classification and regression of texts and pairs of texts (SPEC D1, D2; arXiv 1804.07461).

The loss is cross entropy over classes, or the squared error of a score. The data set defines labels
and metrics (`data=glue data.task=cola`). The model's backbone is new, or that of a run
(`init_from=`) or of a Hugging Face model (`model=hf`). The final test uses the epoch with the best
score.

Two predictors without a network stand beside it: the most frequent class, and the overlap of the
two texts of a pair, the share of tokens that they have in common (Jaccard 1901):

    s = |A ∩ B| / |A ∪ B|     A, B: the sets of token ids of the two texts
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chimera.config.settings import Optim
from chimera.data.batch.labelled import LabelledDataModule
from chimera.data.batch.module import DataModule
from chimera.data.corpus.glue import HIGHEST, LOWEST
from chimera.data.corpus.labelled import check_labelled
from chimera.data.encode.examples import Encoded, class_counts
from chimera.data.tokenizer.base import Template
from chimera.errors import UserError
from chimera.model.classifier import Classifier
from chimera.ops import reduce
from chimera.ops.dropout import sample_keys
from chimera.safe_io import write_atomic
from chimera.task.base import Batch, Stage, Task
from chimera.task.glue_metrics import Scores
from chimera.types import NonNegativeFloat, ProperFraction

MIDDLE = (LOWEST + HIGHEST) / 2
Shares = npt.NDArray[np.float64]
#: A prediction for each example of a part [n]; None unless all of them are pairs.
Predict = Callable[[Encoded], Shares | None]


class SequenceClassification(Task):
    """Classification or regression of texts.

    Args:
        name: of the task, in run names and records.
        pool: how hidden states become one vector; `auto`: the mean for our models, the first token
            for a Hugging Face encoder, the last for a decoder.
        dropout: in the head.
        hidden: put a dense layer with tanh into the head.
        class_weights: `balanced` weighs a class by n / (classes · number of its examples).
        causal: read from left to right; null: as the model of `init_from` or the Hugging Face model
            does.
        weights: factor on each auxiliary loss by key (TITAN eq. 51).
    """

    causal = None
    predicts = "example"
    data_class = LabelledDataModule
    plain_text = False
    corpus_check = "chimera.data.corpus.labelled.check_labelled"
    monitor = "val/score"
    better = "higher"
    final = "best"

    def __init__(
        self,
        model: nn.Module,
        optim: Optim,
        total_steps: int,
        vocab_size: int,
        *,
        name: str = "glue",
        pool: Literal["auto", "first", "mean", "last"] = "auto",
        dropout: ProperFraction = 0.1,
        hidden: bool = True,
        class_weights: Literal["none", "balanced"] = "none",
        causal: bool | None = None,
        weights: dict[str, NonNegativeFloat] | None = None,
    ) -> None:
        super().__init__(model, optim, total_steps, weights or {})
        self.name = name
        self.balanced = class_weights == "balanced"
        self.head: dict[str, Any] = {"pool": pool, "dropout": dropout, "hidden": hidden}
        self.labels: tuple[str, ...] | None = None  # None before `configure_head`

    def configure_head(self, corpus: Any) -> None:
        """Set the number of classes and the metrics from the data set; add the head.

        Raises:
            UserError: the corpus has no labels.
        """
        labelling = check_labelled(corpus)
        self.labels = tuple(labelling["labels"])
        self.submission: Mapping[str, str] = labelling["submission"]
        self.classes = len(self.labels)
        backbone = getattr(self.model, "backbone")  # noqa: B009 - models share no base class
        self.model = Classifier(backbone, self.classes or 1, **self.head)
        self.scores: Any = nn.ModuleDict()
        self.metric_names = labelling["metrics"]
        self.register_buffer("class_weights", torch.ones(max(1, self.classes)))
        self.parts: dict[str, list[str]] = {"val": [], "test": []}
        self.test_parts: dict[str, Encoded] = {}
        self.predictions: dict[int, float] = {}

    def configure_for(self, data: DataModule, stage: str) -> None:
        """Compute class weights, make metrics for each part, and add the head if it is missing.

        A run adds the head earlier, before the adapter is injected, so that the head gets one too.
        """
        data = cast(LabelledDataModule, data)
        if self.labels is None:
            self.configure_head(data.corpus)
        if stage == "fit" and self.balanced and self.classes:
            train = data.parts("train")["train"]
            counts = torch.from_numpy(class_counts(train, self.classes)).float()
            self.class_weights = counts.sum() / (self.classes * counts.clamp(min=1))
        if stage in ("fit", "validate"):
            self._add_scores("val", data.parts("valid"))
        if stage == "test":
            self.test_parts = data.parts("test")
            self._add_scores("test", self.test_parts)

    def setup(self, stage: str) -> None:
        super().setup(stage)
        if self.labels is None:
            raise UserError(
                "a classifier needs the classes of its data set; call task.configure_head(corpus),"
                " or give the Trainer a data module (datamodule=)"
            )

    def baselines(self, data: DataModule, batches: int | None) -> dict[str, float]:
        """Accuracy of always predicting the most frequent class of train."""
        labels = _validated(data, batches)["valid"]
        if not self.classes or np.isnan(labels).all():
            return {}
        majority = int(class_counts(data.prepared.splits["train"], self.classes).argmax())
        return {"val/majority_accuracy": float((labels[~np.isnan(labels)] == majority).mean())}

    def constant_prediction(self, data: DataModule, batches: int | None) -> dict[str, float]:
        """Metrics of always predicting the most frequent class of train, or its mean score.

        On `batches` batches of validation. Called between evaluations: it uses the metrics of
        validation, which are empty then.
        """
        train = cast(LabelledDataModule, data).prepared.splits["train"]
        counts = class_counts(train, self.classes) if self.classes else None
        constant = float(np.nanmean(train.labels) if counts is None else counts.argmax())
        return self._scored(data, batches, lambda part: np.full(len(part), constant))

    def overlap_prediction(self, data: DataModule, batches: int | None) -> dict[str, float]:
        """Metrics of predicting from the tokens that the two texts of an example have in common.

        On `batches` batches of validation; empty unless all examples are pairs. Called between
        evaluations.
        """
        prepared = cast(LabelledDataModule, data).prepared
        train = prepared.splits["train"]
        template = prepared.tokenizer.template
        return self._scored(data, batches, predictor(train, template, self.classes))

    def _scored(self, data: DataModule, batches: int | None, predict: Predict) -> dict[str, float]:
        """Metrics of predictions without a network; empty where a part has none."""
        parts = cast(LabelledDataModule, data).parts("valid")
        predicted = {name: predict(part) for name, part in parts.items()}
        if any(values is None for values in predicted.values()):
            return {}
        for name, labels in _validated(data, batches).items():
            has_label = ~np.isnan(labels)
            if not has_label.any():
                continue
            known = torch.from_numpy(labels[has_label])
            targets = self._targets(known).to(self.device)
            values = cast(Shares, predicted[name])[: len(labels)]
            said = torch.from_numpy(values[has_label]).to(targets)
            self.scores[f"val-{name}"].update(torch.zeros((), device=self.device), said, targets)
        found = self.compute_metrics("val")
        return {f"val/{name}": v for name, v in found.items() if not name.startswith("loss")}

    def training_batch(self, sequences: int, length: int, device: torch.device) -> Batch:
        """As of `Task`, with a label for each sequence."""
        batch = super().training_batch(sequences, length, device)
        labels = torch.zeros(sequences, device=device)
        return batch | {"segments": torch.zeros_like(batch["ids"]), "labels": labels}

    def outputs(self, batch: Batch, **more: Any) -> Any:
        """Logits [b c] of a batch."""
        draws = sample_keys(batch.get("draws"))
        return self.model(batch["ids"], batch["mask"], batch["segments"], draws=draws, **more)

    def training_step(self, batch: Batch, batch_idx: int) -> dict[str, Any]:
        out = self.outputs(batch)
        targets = self._targets(batch["labels"])
        loss = self._loss(out.logits, targets)
        predicted = self._predict(out.logits.detach())
        # A predicted score counts as correct if its error is at most half a point.
        near = predicted == targets if self.classes else (predicted - targets).abs() <= 0.5
        weighed = self.balanced and self.classes
        count = self.class_weights[targets].sum() if weighed else len(targets)
        return self.step_output(loss, near.float().mean(), out.aux, out.stats, count=count)

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        predicted = self.update_metrics(batch, "test").tolist()
        self.predictions |= dict(zip(batch["indices"].tolist(), predicted, strict=True))

    def on_test_epoch_end(self) -> None:
        super().on_test_epoch_end()
        self.predictions = _of_all_processes(self.predictions)

    def on_test_epoch_start(self) -> None:
        self.predictions = {}

    def write_predictions(self, directory: Path) -> None:
        """Write the predictions of the last test, one file per part, in GLUE's format.

        Args:
            directory: of the run; the files are in its folder `predictions`.
        """
        start = 0
        for part, examples in self.test_parts.items():
            rows = [
                f"{index}\t{self._format(self.predictions[number])}"
                for number, index in enumerate(examples.index.tolist(), start)
                if number in self.predictions
            ]
            start += len(examples)
            file = directory / "predictions" / f"{self.submission.get(part, part)}.tsv"
            file.parent.mkdir(exist_ok=True)
            write_atomic(file, "\n".join(["index\tprediction", *rows]) + "\n")

    def _targets(self, labels: Tensor) -> Tensor:
        """Labels [b] as integers where they are classes; scores are unchanged."""
        return labels.long() if self.classes else labels

    def _add_scores(self, stage: Stage, parts: Iterable[str]) -> None:
        self.parts[stage] = list(parts)
        for part in self.parts[stage]:
            if f"{stage}-{part}" not in self.scores:
                self.scores[f"{stage}-{part}"] = Scores(self.metric_names, self.classes)

    def _predict(self, logits: Tensor) -> Tensor:
        """Predicted classes [b] or scores [b]."""
        return logits.argmax(-1) if self.classes else logits[:, 0].float() + MIDDLE

    def _loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        if self.classes:
            weight = self.class_weights if self.balanced else None
            return F.cross_entropy(logits.float(), targets, weight)
        return F.mse_loss(self._predict(logits), targets.float())

    def update_metrics(self, batch: Batch, stage: Stage) -> Tensor:
        out = self.outputs(batch)
        predicted = self._predict(out.logits)
        has_label = ~batch["labels"].isnan()
        if batch.get("void"):
            return predicted
        for number, part in enumerate(self.parts[stage]):
            rows = has_label & (batch["parts"] == number)
            if rows.any():
                targets = self._targets(batch["labels"][rows])
                loss = self._loss(out.logits[rows], targets)
                self.scores[f"{stage}-{part}"].update(loss, predicted[rows], targets)
        return predicted

    def compute_metrics(self, stage: Stage) -> dict[str, float]:
        """Metrics of each part; `score` is the mean over the parts, as GLUE defines it for MNLI."""
        metrics: dict[str, float] = {}
        part_scores = []
        for part in self.parts[stage]:
            values = self.scores[f"{stage}-{part}"].compute_and_reset()
            part_scores += [values.pop("score")] if values else []
            suffix = f"_{part.partition('_')[2]}" if "_" in part else ""
            metrics |= {f"{name}{suffix}": value for name, value in values.items()}
        if part_scores:
            metrics["score"] = sum(part_scores) / len(part_scores)
        return metrics

    def _format(self, value: float) -> str:
        if self.labels:
            return self.labels[int(value)]
        return f"{min(HIGHEST, max(LOWEST, value)):.3f}"


def _validated(data: DataModule, batches: int | None) -> dict[str, Shares]:
    """Labels [n] of the examples of each part that a validation of `batches` batches reads."""
    found: dict[str, Shares] = {}
    left = None if batches is None else batches * data.val_dataloader().batch_size
    for name, part in cast(LabelledDataModule, data).parts("valid").items():
        found[name] = part.labels[:left]
        left = None if left is None else left - len(found[name])
    return found


def _of_all_processes(predictions: dict[int, float]) -> dict[int, float]:
    """Predictions by the number of their example, which one process or several have made."""
    if reduce.participants() == 1:
        return predictions
    count = int(reduce.largest(torch.tensor(max(predictions, default=-1)))) + 1
    found, made = torch.zeros(2, count, dtype=torch.float64)
    for number, value in predictions.items():
        found[number], made[number] = value, 1.0
    values, times = reduce.processes.sum(torch.stack([found, made]))
    return {i: float(values[i] / times[i]) for i in range(count) if times[i]}


def shares(part: Encoded, template: Template) -> Shares | None:
    """The share of common tokens of each example, without the special ones of the template [n].

    None unless all examples are pairs.
    """
    if (part.seconds <= 0).any():
        return None
    start, middle, end = (len(ids) for ids in (template.start, template.middle, template.end))
    found = np.empty(len(part))
    for i, second in enumerate(part.seconds):
        row = part.row(i)
        b = set(row[len(row) - second : len(row) - end])
        a = set(row[start : len(row) - second - middle])
        found[i] = len(a & b) / max(1, len(a | b))
    return found


def predictor(train: Encoded, template: Template, classes: int) -> Predict:
    """What predicts from the shares.

    A score is the share itself: correlations do not change with its unit. A class is the most
    frequent one of train on the example's side of a threshold, the one that is right most often on
    train (a decision stump; of equal ones the lowest).

    Args:
        train: with labels; unused for scores.
        template: of the tokenizer that encoded train and parts.
        classes: number of classes; 0 for scores.
    """
    if not classes:
        return lambda part: shares(part, template)
    of_train = shares(train, template)
    known = ~np.isnan(train.labels)
    if of_train is None or not known.any():
        return lambda part: None
    values = of_train[known]
    labels = train.labels[known].astype(np.int64)
    order = np.argsort(values, kind="stable")
    values = values[order]
    one_hot = np.eye(classes, dtype=np.int64)[labels[order]]
    below = np.vstack([np.zeros(classes, dtype=np.int64), one_hot.cumsum(axis=0)])
    above = below[-1] - below
    # Equal shares are on one side: a threshold lies before the first of them.
    first = np.concatenate([[True], values[1:] > values[:-1], [True]])
    at = int(np.where(first, below.max(axis=1) + above.max(axis=1), -1).argmax())
    limit = values[at] if at < len(values) else np.inf
    classes_of_sides = float(below[at].argmax()), float(above[at].argmax())

    def predict(part: Encoded) -> Shares | None:
        found = shares(part, template)
        return None if found is None else np.where(found < limit, *classes_of_sides)

    return predict
