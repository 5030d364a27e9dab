"""Instruction tuning (SPEC D1, D5; TPTT 5.1): the next token, in the answers only.

    L = −(1/n) Σ_i log p(a_i | prompt, a_<i)

Besides loss and perplexity of held-out answers it measures what TPTT's Table 2 prints: the mean
loss of the last epoch, seconds spent in training steps, samples and steps a second, the gradient's
norm at the last step, and floating-point operations as transformers counts them, 6·N·tokens with N
the parameters outside embeddings.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from torch import nn

from chimera.config.settings import Optim
from chimera.data.batch import instruct as batches
from chimera.data.batch.loader import ResumableLoader
from chimera.data.corpus.base import Data
from chimera.data.corpus.instruct import Instruct as Instructions
from chimera.data.encode.prepare import Prepared
from chimera.task.causal_lm import CausalLM
from chimera.task.mmlu.answer import answer
from chimera.task.mmlu.metrics import summary
from chimera.task.mmlu.questions import made_of, read
from chimera.types import NonNegativeFloat, PositiveInt


class Instruct(CausalLM):
    """Cross entropy of the answers' tokens.

    Args:
        name: of the task, in names and records.
        weights: factor on each auxiliary loss by key.
        logits_at_once: logits held at one time; more are computed in parts, twice.
        mmlu: where MMLU's questions are, asked one-shot before training and after: a folder,
            `cais/mmlu` on the hub, or `held_out`, questions made of the test's records.
        mmlu_limit: questions of each subject; null for all.
    """

    causal = True
    plain_text = False
    wants = "chimera.data.corpus.instruct.check_instructions"

    def __init__(
        self,
        model: nn.Module,
        optim: Optim,
        total_steps: int,
        vocab_size: int,
        *,
        name: str = "instruct",
        weights: dict[str, NonNegativeFloat] | None = None,
        logits_at_once: PositiveInt = 1 << 25,
        mmlu: str | None = None,
        mmlu_limit: PositiveInt | None = None,
    ) -> None:
        super().__init__(
            model,
            optim,
            total_steps,
            vocab_size,
            name=name,
            weights=weights,
            logits_at_once=logits_at_once,
        )
        self.mmlu, self.mmlu_limit = mmlu, mmlu_limit
        self._asked: list[Any] = []
        self._base: dict[str, float] = {}
        self._spent: dict[str, Any] = {"seconds": 0.0, "samples": 0, "tokens": 0}
        self._epoch: list[Any] = []  # losses of the epoch under way
        self._began = 0.0

    def loaders(
        self, data: Prepared, settings: Data, seed: int
    ) -> tuple[ResumableLoader, ResumableLoader, ResumableLoader]:
        assert isinstance(settings, Instructions)
        start = data.tokenizer.template.start
        found, every = [], settings.records()
        self._tokenizer, self._length = data.tokenizer, settings.seq_len
        if self.mmlu == "held_out":
            self._asked = made_of(every["test"])[: self.mmlu_limit]
        elif self.mmlu is not None:
            self._asked = read(self.mmlu, "test", None, self.mmlu_limit)
        for split, records in every.items():
            examples = [
                batches.example(i, record, data.tokenizer, settings.seq_len, start)
                for i, record in enumerate(records)
            ]
            train = split == "train"
            found.append(
                batches.loader(
                    examples,
                    settings,
                    data.tokenizer.pad_id,
                    seed=seed,
                    train=train,
                    name=f"the {split} split",
                )
            )
        return found[0], found[1], found[2]

    def save_test(self, test: ResumableLoader, file: Path) -> None:
        examples = [test.samples[0, i] for i in range(len(test.samples))]
        batches.save(examples, 0, file)

    def load_test(self, file: Path, settings: Data) -> ResumableLoader:
        examples, pad_id = batches.load(file)
        return batches.loader(examples, settings, pad_id, name=str(file))

    def further(self, trainer: pl.Trainer, data: Prepared, settings: Data) -> dict[str, float]:
        """What TPTT's Table 2 says of the training."""
        spent, steps = self._spent, trainer.global_step
        seconds = max(spent["seconds"], 1e-9)
        losses = [float(loss) for loss in self._epoch]
        found = {
            "train/seconds": spent["seconds"],
            "train/samples_per_second": spent["samples"] / seconds,
            "train/steps_per_second": steps / seconds,
            "train/flops": 6.0 * outside_embeddings(self.model) * spent["tokens"],
            "train/grad_norm": self.grad_norm,
        }
        # A run that was resumed after its last step has seen no loss of that epoch.
        found |= {"train/loss": sum(losses) / len(losses)} if losses else {}
        return found | self._base | self._examine("mmlu")

    def on_fit_start(self) -> None:
        """Ask the model that is started from, as it came: without memory, LoRA being zero still."""
        if self._asked and not self._base:
            mixed: list[Any] = [m for m in self.model.modules() if hasattr(m, "set_mag_weight")]
            weights = [float(m.mag_weight) for m in mixed]
            for module in mixed:
                module.set_mag_weight(0.0)
            self._base = self._examine("mmlu_base")
            for module, weight in zip(mixed, weights, strict=True):
                module.set_mag_weight(weight)

    def _examine(self, prefix: str) -> dict[str, float]:
        """Means and bootstrap deviations of MMLU's metrics."""
        if not self._asked:
            return {}
        training = self.model.training
        answers = answer(self.model.eval(), self._tokenizer, self._asked, length=self._length)
        self.model.train(training)
        found: dict[str, float] = {}
        for metric, (mean, deviation) in summary(answers.scores).items():
            found |= {f"{prefix}/{metric}": mean, f"{prefix}/{metric}_std": deviation}
        return found

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        if batch_idx == 0:
            self._epoch = []
        self._began = time.perf_counter()

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self._spent["seconds"] += time.perf_counter() - self._began
        self._spent["samples"] += len(batch["ids"])
        self._spent["tokens"] += batch["ids"].numel()
        self._epoch.append(outputs["task_loss"])

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["instruct"] = {**self._spent, "base": dict(self._base)}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self._spent = dict(checkpoint["instruct"])
        self._base = self._spent.pop("base")


def outside_embeddings(model: nn.Module) -> int:
    """Parameters but those of tables that are looked up."""
    tables = {
        id(parameter)
        for module in model.modules()
        if isinstance(module, nn.Embedding) or getattr(module, "component", "") == "embedding"
        for parameter in module.parameters()
    }
    return sum(p.numel() for p in model.parameters() if id(p) not in tables)
