"""Instruction tuning (SPEC D1, D5; TPTT 5.1): predict the next token, in the answers only.

    L = −(1/n) Σ_i log p(a_i | prompt, a_<i)

The task measures loss and perplexity of held-out answers, of the model before training too
(`val_base/loss`: what training has to beat), and the columns of TPTT's Table 2: mean
loss of the last epoch, seconds of training steps, samples and steps per second, gradient norm of
the last step, and floating-point operations as counted by transformers: 6·N·tokens, where N is the
number of parameters outside embeddings.
"""

from __future__ import annotations

import time
from itertools import islice
from typing import Any, Literal, cast

import lightning.pytorch as pl
import torch
from torch import Tensor, nn

from chimera.config.settings import Optim
from chimera.data.batch.instruct import InstructDataModule
from chimera.data.batch.module import DataModule
from chimera.ops import reduce
from chimera.ops.four_bit import entries
from chimera.task.causal_lm import CausalLM
from chimera.task.mmlu import answer, from_records, prompt_length, read
from chimera.task.mmlu_protocol import PROTOCOLS, Asked
from chimera.types import NonNegativeFloat, PositiveInt


class Instruct(CausalLM):
    """Cross entropy of the answers' tokens.

    Args:
        name: of the task, in run names and records.
        weights: factor on each auxiliary loss by key.
        logits_at_once: largest number of logits in memory; more are computed in parts, once in the
            forward and again in the backward pass.
        mmlu: source of MMLU's questions, which the model answers one-shot before and after
            training: a folder, `cais/mmlu` on the hub, or `held_out` for questions made from the
            test records.
        mmlu_limit: number of questions of each subject; null for all, or those of the protocol.
        mmlu_protocol: `lighteval` asks as lighteval does, whose numbers TPTT's Table 3 has: its
            ten questions a subject, prompts, chat template and errors. Null asks as MMLU's authors.
    """

    predicts = "token"  # the base class has it too, but a report reads this file only

    plain_text = False
    data_class = InstructDataModule
    corpus_check = "chimera.data.corpus.instruct.check_instructions"

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
        mmlu_protocol: Literal["lighteval"] | None = None,
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
        self.mmlu = mmlu
        self.mmlu_limit = mmlu_limit
        self.protocol = PROTOCOLS[mmlu_protocol]
        self._chat: Any = None
        self._questions: list[Asked] | None = None
        self._base_metrics: dict[str, float] = {}  # of the model before training
        self._resumed = False
        #: Of all training steps; samples and tokens with padding.
        self._totals = {"seconds": 0.0, "samples": 0, "tokens": 0}
        self._epoch_losses: list[Tensor | float] = []  # of the micro-batches of the epoch
        self._before_step = (self._totals, 0)  # and its number of losses; see on_save_checkpoint
        self._step = -1
        self._batch_began: float | None = None

    def configure_for(self, data: DataModule, stage: str) -> None:
        """Read MMLU's questions before training, so that a missing folder fails early.

        Raises:
            UserError: the questions are not available.
        """
        if stage != "fit" or self.mmlu is None or self._questions is not None:
            return
        self._tokenizer = data.prepared.tokenizer
        self._length = data.corpus.seq_len
        if self.protocol.chats:
            self._chat = data.tokenizer_settings.chat()
        if self.mmlu == "held_out":
            records = cast(InstructDataModule, data).records["test"]
            self._questions = from_records(records, self.mmlu_limit, self.protocol)
        else:
            self._questions = read(self.mmlu, "test", None, self.mmlu_limit, self.protocol)

    def extra_metrics(self, trainer: pl.Trainer, data: DataModule) -> dict[str, float]:
        """The columns of TPTT's Table 2, and MMLU before and after training."""
        totals = self._totals
        seconds = max(totals["seconds"], 1e-9)
        losses = list(map(float, self._epoch_losses))
        metrics = {
            "train/seconds": totals["seconds"],
            "train/samples_per_second": totals["samples"] / seconds,
            "train/steps_per_second": trainer.global_step / seconds,
            "train/flops": 6.0 * non_embedding_parameters(self.model) * totals["tokens"],
            "train/grad_norm": self.grad_norm,
        }
        metrics |= {"train/loss": sum(losses) / len(losses)} if losses else {}
        return metrics | self._base_metrics | self._mmlu_metrics("mmlu")

    def on_fit_start(self) -> None:
        """Measure the base model: with MaG weights 0; LoRA's update is still zero."""
        if self._resumed:  # the weights are those of the checkpoint, which has the numbers
            return
        mixed: list[Any] = [m for m in self.model.modules() if hasattr(m, "set_mag_weight")]
        weights = [float(m.mag_weight) for m in mixed]
        for module in mixed:
            module.set_mag_weight(0.0)
        self._base_metrics = self._validation() | self._mmlu_metrics("mmlu_base")
        for module, weight in zip(mixed, weights, strict=True):
            module.set_mag_weight(weight)

    def _validation(self) -> dict[str, float]:
        """Metrics of the model as it is, on the batches that each validation of the run takes."""
        trainer = self.trainer
        training = self.model.training
        data = getattr(trainer, "datamodule", None)
        limit = trainer.limit_val_batches
        if data is None:
            return {}
        loader = data.val_dataloader()
        batches = islice(loader, limit if isinstance(limit, int) else int(limit * len(loader)))
        self.model.eval()
        with torch.no_grad(), trainer.precision_plugin.val_step_context():
            for batch in batches:
                self.update_metrics(trainer.strategy.batch_to_device(batch, self.device), "val")
        self.model.train(training)
        return {f"val_base/{key}": value for key, value in self.compute_metrics("val").items()}

    def _mmlu_metrics(self, prefix: str) -> dict[str, float]:
        """Means of MMLU's metrics and their deviations, as the protocol has them."""
        if not self._questions:
            return {}
        training = self.model.training
        answers = answer(
            self.model.eval(),
            self._tokenizer,
            self._questions,
            start=self._tokenizer.opening(packed=False),
            length=prompt_length(self.model, self.protocol, self._length),
            protocol=self.protocol,
            chat=self._chat,
        )
        self.model.train(training)
        metrics: dict[str, float] = {}
        found = self.protocol.summary(self._questions, answers.scores)
        for metric, (mean, deviation) in found.items():
            metrics |= {f"{prefix}/{metric}": mean, f"{prefix}/{metric}_std": deviation}
        return metrics

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        if batch_idx == 0:
            self._epoch_losses = []
        if self.trainer.global_step != self._step:
            self._step = self.trainer.global_step
            self._before_step = (dict(self._totals), len(self._epoch_losses))
        self._batch_began = time.perf_counter()

    def training_step(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        output = super().training_step(batch, batch_idx)
        # Not in on_train_batch_end: callbacks save checkpoints before that hook runs.
        loss = output["task_loss"]
        samples = len(batch["ids"])
        tokens = batch["ids"].numel()
        if reduce.participants() > 1:
            weighted = [float(loss * output["count"]), float(output["count"])]
            summed, count, *numbers = reduce.totals([*weighted, samples, tokens])
            loss = loss.new_tensor(summed / count)
            (samples, tokens) = map(int, numbers)
        self._totals["samples"] += samples
        self._totals["tokens"] += tokens
        self._epoch_losses.append(loss)
        return output

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self._stop_clock()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Save the totals; an emergency checkpoint has those from before the step that failed."""
        self._epoch_losses = list(map(float, self._epoch_losses))
        totals, losses = self._before_step
        if self.trainer.global_step != self._step:
            self._stop_clock()
            totals, losses = self._totals, len(self._epoch_losses)
        kept = {"losses": self._epoch_losses[:losses], "base": dict(self._base_metrics)}
        checkpoint["instruct"] = {**totals, **kept}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_load_checkpoint(checkpoint)
        self._resumed = True
        saved = dict(checkpoint["instruct"])
        self._base_metrics = saved.pop("base")
        self._epoch_losses = saved.pop("losses")
        self._totals = saved

    def _stop_clock(self) -> None:
        if self._batch_began is not None:
            self._totals["seconds"] += time.perf_counter() - self._batch_began
            self._batch_began = None


def non_embedding_parameters(model: nn.Module) -> int:
    """Number of parameters without those of embedding tables."""
    tables = {
        id(parameter)
        for module in model.modules()
        if isinstance(module, nn.Embedding) or getattr(module, "component", "") == "embedding"
        for parameter in module.parameters()
    }
    return sum(entries(p) for p in model.parameters() if id(p) not in tables)
