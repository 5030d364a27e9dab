"""Judging texts and pairs of texts: GLUE and its like (SPEC D1, D2; arXiv 1804.07461).

Cross entropy over classes, or the squared error of a score. What is judged, by which labels and
metrics, the data say (`data=glue data.task=cola`); the model's body comes from scratch, from a run
(`init_from=`) or from Hugging Face (`model=hf`). The best epoch by the task's score is what counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chimera.config.settings import Optim
from chimera.data.batch import labelled as batches
from chimera.data.batch.loader import ResumableLoader
from chimera.data.corpus.base import Data
from chimera.data.corpus.glue_tasks import HIGHEST, LOWEST
from chimera.data.encode.examples import check_labelled, class_counts, prepare_examples
from chimera.data.encode.prepare import Prepared
from chimera.data.tokenizer.base import TokenizerSettings
from chimera.model.classifier import Classifier
from chimera.task.base import Stage, Task
from chimera.task.glue_metrics import Scores, labelled, targets_of
from chimera.types import NonNegativeFloat, ProperFraction

Batch = dict[str, Any]
MIDDLE = (LOWEST + HIGHEST) / 2


class Judging(Task):
    """Classification or regression of texts.

    Args:
        name: of the task, in names and records.
        pool: what of the hidden states is judged; `auto`: the mean over ours, the first token of a
            Hugging Face encoder, the last of a decoder.
        dropout: in the head.
        hidden: a layer with tanh in the head.
        class_weights: `balanced` weighs a class by n / (classes · its examples).
        causal: read from left to right; null: as `init_from`'s or the Hugging Face model does.
        weights: factor on each auxiliary loss by key (TITAN eq. 51).
    """

    causal = None
    plain_text = False
    monitor, better, final = "val/score", "higher", "best"

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
        self.name, self.balanced = name, class_weights == "balanced"
        self.head: dict[str, Any] = {"pool": pool, "dropout": dropout, "hidden": hidden}

    @classmethod
    def prepare(cls, corpus: Any, settings: TokenizerSettings) -> Prepared:
        check_labelled(corpus)
        return prepare_examples(corpus, settings)

    def meet(self, corpus: Any) -> None:
        """Put the head on that these data need."""
        about = check_labelled(corpus)
        self.labels: tuple[str, ...] = about["labels"]
        self.submission: Mapping[str, str] = about["submission"]
        self.classes = len(self.labels)
        body = getattr(self.model, "backbone")  # noqa: B009 - of whatever kind of model
        self.model = Classifier(body, self.classes or 1, **self.head)
        self.scores = nn.ModuleDict()
        self.metric_names = about["metrics"]
        self.register_buffer("class_weights", torch.ones(max(1, self.classes)))
        self.parts: dict[str, list[str]] = {"val": [], "test": []}
        self.predictions: dict[int, float] = {}

    def loaders(
        self, data: Prepared, settings: Data, seed: int
    ) -> tuple[ResumableLoader, ResumableLoader, ResumableLoader]:
        parts = data.splits
        if self.balanced and self.classes:
            counts = torch.from_numpy(class_counts(parts["train"], self.classes)).float()
            self.class_weights = counts.sum() / (self.classes * counts.clamp(min=1))
        valid = {name: part for name, part in parts.items() if name.startswith("valid")}
        # Without a test part, the validation part is all that a test can be repeated on.
        test = {n: p for n, p in parts.items() if n not in valid and n != "train"} or valid
        self._watch("val", valid)
        self.test_parts = self._watch("test", test)
        pad = data.tokenizer.pad_id
        return (
            batches.loader([parts["train"]], settings, pad, name="the train part", seed=seed),
            batches.loader(list(valid.values()), settings, pad, name="the valid part"),
            batches.loader(list(test.values()), settings, pad, name="the test part"),
        )

    def save_test(self, test: ResumableLoader, file: Path) -> None:
        batches.save_parts(self.test_parts, file)

    def load_test(self, file: Path, settings: Data) -> ResumableLoader:
        self.test_parts = self._watch("test", batches.load_parts(file))
        return batches.loader(list(self.test_parts.values()), settings, 0, name=str(file))

    def baselines(
        self, data: Prepared, valid: ResumableLoader, batches: int | None
    ) -> dict[str, float]:
        """Accuracy of always giving the most frequent class of train."""
        if not self.classes:
            return {}
        most = int(class_counts(data.splits["train"], self.classes).argmax())
        return {"val/majority_accuracy": float((data.splits["valid"].labels == most).mean())}

    def training_step(self, batch: Batch, batch_idx: int) -> dict[str, Any]:
        out = self.model(batch["ids"], batch["mask"], batch["segments"])
        targets = targets_of(batch["labels"], self.classes)
        loss = self._loss(out.logits, targets)
        predicted = self._predict(out.logits.detach())
        near = predicted == targets if self.classes else (predicted - targets).abs() <= 0.5
        # Of a score: within half a point.
        return self.outcome(loss, near.float().mean(), out.aux, out.stats)

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        predicted = self.evaluate(batch, "test").tolist()
        self.predictions |= dict(zip(batch["indices"].tolist(), predicted, strict=True))

    def on_test_epoch_start(self) -> None:
        self.predictions = {}

    def finish(self, directory: Path) -> None:
        """Write the predictions of the last test, a file per part, as GLUE's server takes them."""
        start = 0
        for part, held in self.test_parts.items():
            made = [self.predictions.get(start + i) for i in range(len(held))]
            start += len(held)
            rows = [
                f"{index}\t{self._spelt(value)}"
                for index, value in zip(held.index.tolist(), made, strict=True)
                if value is not None
            ]
            file = directory / "predictions" / f"{self.submission.get(part, part)}.tsv"
            file.parent.mkdir(exist_ok=True)
            file.write_text("\n".join(["index\tprediction", *rows]) + "\n", encoding="utf-8")

    def _watch(self, stage: str, parts: Mapping[str, Any]) -> dict[str, Any]:
        self.parts[stage] = list(parts)
        for part in parts:
            self.scores[f"{stage}-{part}"] = Scores(self.metric_names, self.classes)
        return dict(parts)

    def _predict(self, logits: Tensor) -> Tensor:
        """Classes [b], or scores [b]."""
        return logits.argmax(-1) if self.classes else logits[:, 0].float() + MIDDLE

    def _loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        if self.classes:
            weight = self.class_weights if self.balanced else None
            return F.cross_entropy(logits.float(), targets, weight)
        return F.mse_loss(self._predict(logits), targets.float())

    def evaluate(self, batch: Batch, stage: Stage) -> Tensor:
        out = self.model(batch["ids"], batch["mask"], batch["segments"])
        predicted, known = self._predict(out.logits), labelled(batch["labels"])
        for number, part in enumerate(self.parts[stage]):
            here = known & (batch["parts"] == number)
            if here.any():
                targets = targets_of(batch["labels"][here], self.classes)
                scores = self.scores[f"{stage}-{part}"]
                assert isinstance(scores, Scores)
                scores.update(self._loss(out.logits[here], targets), predicted[here], targets)
        return predicted

    def measured(self, stage: Stage) -> dict[str, float]:
        """Each part's numbers; the score is the mean over the parts, as GLUE's of MNLI is."""
        found: dict[str, float] = {}
        scores = []
        for part in self.parts[stage]:
            held = self.scores[f"{stage}-{part}"]
            assert isinstance(held, Scores)
            numbers = held.compute_and_reset()
            scores += [numbers.pop("score")] if numbers else []
            suffix = f"_{part.partition('_')[2]}" if "_" in part else ""
            found |= {f"{name}{suffix}": value for name, value in numbers.items()}
        if scores:
            found["score"] = sum(scores) / len(scores)
        return found

    def _spelt(self, value: float) -> str:
        if self.classes:
            return self.labels[int(value)]
        return f"{min(HIGHEST, max(LOWEST, value)):.3f}"
