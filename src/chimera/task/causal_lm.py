"""Causal language modelling (SPEC D1; SAIDL 2.3): predict each token from those before it.

L = −(1/n) Σ_i log p(x_{i+1} | x_{≤i}),   PPL = exp(L)
"""

from __future__ import annotations

from typing import Any, ClassVar

import lightning.pytorch as pl
from torch import nn
from torchmetrics import MeanMetric

from chimera.config.settings import Optim
from chimera.data.batch.causal import CausalDataModule
from chimera.data.batch.module import DataModule
from chimera.model.decode import greedy
from chimera.task.base import Batch, LanguageTask, Stage
from chimera.task.cost import cost
from chimera.types import NonNegativeFloat, PositiveInt

#: Blocks that `samples` continues.
SAMPLES = 6


class CausalLM(LanguageTask):
    """Cross entropy of the next token at all positions; perplexity is its exponential.

    Args:
        name: of the task, in run names and records.
        weights: factor on each auxiliary loss by key (TITAN eq. 51).
        logits_at_once: largest number of logits in memory; more are computed in parts, once in the
            forward and again in the backward pass.
        longer: multiples of data.seq_len at which the trained model is also validated, on the same
            tokens (SAIDL Fig. 5): `val/loss_2x`, `val/perplexity_2x`.
        cost_at: lengths at which a training step and a forward pass of the trained model are timed,
            batch 1 (SAIDL Table 16): `cost/tokens_per_second@4096`, `latency_ms`, memory.
    """

    causal = True
    predicts = "token"
    data_class: ClassVar[Any] = CausalDataModule

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
        self.name = name
        self.logits_at_once = logits_at_once
        self.longer = longer or []
        self.cost_at = cost_at or []

    def configure_for(self, data: DataModule, stage: str) -> None:
        """Refuse lengths that the model cannot process, before training starts.

        Raises:
            UserError: a length of `longer` or `cost_at` is out of the model's reach.
        """
        if stage == "fit":
            seq_len = data.corpus.seq_len
            lengths = [seq_len, *(seq_len * factor for factor in self.longer), *self.cost_at]
            self.check_length(max(lengths))

    def samples(self, data: DataModule) -> list[dict[str, str]]:
        """Beginnings of blocks, and the likeliest continuation (`train.run_files`)."""
        blocks = data.val_dataloader().samples
        tokenizer = data.prepared.tokenizer
        first = min(24, data.corpus.seq_len // 2)
        new = min(40, data.corpus.seq_len // 2)
        rows = [list(map(int, blocks[0, n].ids)) for n in range(min(SAMPLES, len(blocks)))]
        prompts = [row[:first] for row in rows]
        if not prompts or not first:
            return []
        made = greedy(self.model, prompts, max_new=new, pad_id=tokenizer.pad_id, end_id=None)
        return [
            {
                "prompt": tokenizer.decode(row[:first]),
                "continued": tokenizer.decode(ids),
                "original": tokenizer.decode(row[first : first + new]),
            }
            for row, ids in zip(rows, made, strict=True)
        ]

    def extra_metrics(self, trainer: pl.Trainer, data: DataModule) -> dict[str, float]:
        """Validation at longer lengths; speed and memory at given lengths."""
        metrics: dict[str, float] = {}
        for factor in self.longer:
            # Batches have as many tokens as before, so a limit on batches covers the same text.
            longer = data.lengthened(data.corpus.seq_len * factor)
            values = trainer.validate(self, longer.val_dataloader(), verbose=False)[0]
            metrics |= {f"{key}_{factor}x": value for key, value in values.items()}
        for length in self.cost_at:
            values = cost(self.model, length, self.vocab_size, self.logits_at_once)
            metrics |= {f"cost/{key}@{length}": value for key, value in values.items()}
        return metrics

    def update_metrics(self, batch: Batch, stage: Stage) -> None:
        out = self.outputs(batch)
        if batch.get("void"):
            return
        meter = self.meters[stage]
        tokens = len(batch["targets"])
        meter["loss"].update(out.loss, weight=tokens)
        meter["accuracy"].update(out.accuracy, weight=tokens)

    def outputs(self, batch: Batch, **more: Any) -> Any:
        """As of `Task`, with loss and accuracy in place of logits."""
        given = {"targets": batch["targets"], "at_once": self.logits_at_once}
        return super().outputs(batch, **given, **more)
