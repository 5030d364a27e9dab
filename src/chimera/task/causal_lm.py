"""Causal language modelling (SPEC D1; SAIDL 2.3): predict each token from those before it.

L = −(1/n) Σ_i log p(x_{i+1} | x_{≤i}),   PPL = exp(L)
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import lightning.pytorch as pl
from torch import nn
from torchmetrics import MeanMetric

from chimera.config.settings import Optim
from chimera.data.batch import causal
from chimera.data.batch.loader import ResumableLoader
from chimera.data.corpus.base import Data
from chimera.data.encode.prepare import Prepared
from chimera.model.language import LanguageModel, Prediction
from chimera.task.base import Stage
from chimera.task.cost import cost
from chimera.task.language import Batch, LanguageTask
from chimera.types import NonNegativeFloat, PositiveInt


class CausalLM(LanguageTask):
    """Cross entropy of the next token, everywhere; perplexity is its exponential.

    Args:
        name: of the task, in names and records.
        weights: factor on each auxiliary loss by key (TITAN eq. 51).
        logits_at_once: logits held at one time; more are computed in parts, twice.
        longer: multiples of data.seq_len at which the trained model is validated, too, on the same
            tokens (SAIDL Fig. 5): `val/loss_2x`, `val/perplexity_2x`.
        cost_at: lengths at which a training step and a pass of the trained model are timed, batch 1
            (SAIDL Table 16): `cost/tokens_per_second@4096`, `latency_ms`, `peak_mb`.
    """

    causal = True

    def __init__(
        self,
        model: nn.Module,
        optim: Optim,
        total_steps: int,
        vocab_size: int,
        *,
        name: str = "causal_lm",
        weights: dict[str, NonNegativeFloat] | None = None,
        logits_at_once: PositiveInt = 1 << 25,
        longer: list[PositiveInt] | None = None,
        cost_at: list[PositiveInt] | None = None,
    ) -> None:
        super().__init__(model, optim, total_steps, weights or {}, vocab_size, MeanMetric)
        self.name, self.logits_at_once = name, logits_at_once
        self.longer, self.cost_at = longer or [], cost_at or []

    def loaders(
        self, data: Prepared, settings: Data, seed: int
    ) -> tuple[ResumableLoader, ResumableLoader, ResumableLoader]:
        # What would be refused after hours of training is refused before.
        furthest = [settings.seq_len, *(settings.seq_len * n for n in self.longer), *self.cost_at]
        cast(LanguageModel, self.model).check_reach(max(furthest))
        return causal.loaders(data, settings, seed)

    def save_test(self, test: ResumableLoader, file: Path) -> None:
        causal.save_test(test, file)

    def load_test(self, file: Path, settings: Data) -> ResumableLoader:
        return causal.load_test(file, settings)

    def further(self, trainer: pl.Trainer, data: Prepared, settings: Data) -> dict[str, float]:
        """Validation at longer lengths, and what passes at given lengths cost."""
        found: dict[str, float] = {}
        for factor in self.longer:
            # As many tokens a batch, so that a limit on batches reaches as far in the text.
            long = causal.lengthened(settings, settings.seq_len * factor)
            row = causal.loader(data.splits["valid"], long, name="the valid split")
            measured = trainer.validate(self, row, verbose=False)[0]
            found |= {f"{key}_{factor}x": value for key, value in measured.items()}
        for length in self.cost_at:
            measured = cost(self.model, length, self.vocab_size, self.logits_at_once)
            found |= {f"cost/{key}@{length}": value for key, value in measured.items()}
        return found

    def training_step(self, batch: Batch, batch_idx: int) -> dict[str, Any]:
        out = self._predict(batch)
        return self.outcome(out.loss, out.accuracy, out.aux, out.stats)

    def evaluate(self, batch: Batch, stage: Stage) -> None:
        out = self._predict(batch)
        meter, tokens = self.meter(stage), len(batch["targets"])
        meter.loss.update(out.loss, weight=tokens)
        meter.accuracy.update(out.accuracy, weight=tokens)

    def _predict(self, batch: Batch) -> Prediction:
        out = self.model(
            batch["ids"],
            batch["mask"],
            index=batch["index"],
            targets=batch["targets"],
            at_once=self.logits_at_once,
        )
        assert isinstance(out, Prediction)
        return out
