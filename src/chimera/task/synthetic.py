"""Answers to symbols (task=synthetic): predict the symbol at the positions that ask for one.

L = −(1/n) Σ_i log p(answer_i | x_≤i); the accuracy is the mean over the judged groups of answers.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Int
from torch import Tensor, nn

from chimera.config.settings import Optim
from chimera.data.batch.module import DataModule
from chimera.data.batch.synthetic import SyntheticDataModule
from chimera.data.corpus.synthetic.base import check_synthetic
from chimera.model.compressor import Compressor
from chimera.ops import reduce
from chimera.task.base import Batch, Stage, Task
from chimera.types import NonNegativeFloat


class Synthetic(Task):
    """Cross entropy of the answers; accuracy of each group of answers, and of the judged ones.

    Args:
        name: of the task, in run names and records.
        weights: factor on each auxiliary loss by key (TITAN eq. 51).
    """

    causal = True
    predicts = "answer"
    data_class = SyntheticDataModule
    plain_text = False
    corpus_check = "chimera.data.corpus.synthetic.base.check_synthetic"
    monitor = "val/accuracy"
    better = "higher"

    def __init__(
        self,
        model: nn.Module,
        optim: Optim,
        total_steps: int,
        vocab_size: int,
        *,
        name: str = "synthetic",
        weights: dict[str, NonNegativeFloat] | None = None,
    ) -> None:
        super().__init__(model, optim, total_steps, weights or {})
        self.name = name
        self.vocab_size = vocab_size
        self.groups: tuple[str, ...] = ()  # of the data set, known after `configure_head`
        self.judged: tuple[str, ...] = ()
        self._sums: dict[Stage, Tensor] = {}  # answers, right ones, loss of each group [groups 3]

    def configure_head(self, corpus: Any) -> None:
        """Take the groups of the data set; add a decoder if only the last output may be read."""
        check_synthetic(corpus)
        self.groups = corpus.groups
        self.judged = corpus.judged
        model: Any = self.model
        if corpus.bottleneck and not isinstance(model, Compressor):
            self.model = Compressor(model)

    def configure_for(self, data: DataModule, stage: str) -> None:
        """Take the groups; refuse lengths that the model cannot process, before training starts.

        Raises:
            UserError: the sequences are longer than the model takes.
        """
        if not self.groups:
            self.configure_head(data.corpus)
        if stage == "fit":
            self.check_length(max(data.corpus.seq_len, data.corpus.test_len))

    def training_step(self, batch: Batch, batch_idx: int) -> dict[str, Any]:
        out = self.outputs(batch)
        loss = F.cross_entropy(out.logits.float(), batch["targets"])
        right = is_right(out.logits.detach().argmax(-1), batch)
        count = len(batch["targets"])
        return self.step_output(loss, right.float().mean(), out.aux, out.stats, count=count)

    def update_metrics(self, batch: Batch, stage: Stage) -> None:
        logits = self.outputs(batch).logits.float()
        if batch.get("void"):
            return
        loss = F.cross_entropy(logits, batch["targets"], reduction="none")
        right = is_right(logits.argmax(-1), batch).float()
        each = torch.stack([torch.ones_like(right), right, loss], 1)
        sums = each.new_zeros(len(self.groups), 3).index_add_(0, batch["groups"], each)
        self._sums[stage] = self._sums[stage] + sums if stage in self._sums else sums

    def compute_metrics(self, stage: Stage) -> dict[str, float]:
        """Loss per answer, accuracy of the judged groups, and of each group if there are more."""
        sums = self._sums.pop(stage, torch.zeros(len(self.groups), 3))
        table = torch.tensor(reduce.totals(sums.flatten().tolist()), dtype=torch.float64)
        counts, right, losses = table.view(-1, 3).T
        return {
            "loss": float(losses.sum() / counts.sum()),
            **accuracies((right / counts).tolist(), self.groups, self.judged),
        }

    def baselines(self, data: DataModule, batches: int | None) -> dict[str, float]:
        """Accuracy of a guess among possible answers, and of the most frequent answer of train."""
        splits: Any = data.prepared.splits
        train = splits["train"]
        read = None if batches is None else batches * data.val_dataloader().batch_size
        valid = splits["valid"].take(read)
        answers = train.targets[train.targets >= 0]
        most = int(torch.from_numpy(answers).long().bincount().argmax())
        asked = valid.targets >= 0
        hits = valid.targets == most if valid.right is None else (valid.right >> most) & 1
        shares = [
            float(hits[asked & (valid.groups == number)].mean())
            if (asked & (valid.groups == number)).any()
            else float("nan")
            for number in range(len(self.groups))
        ]
        majority = accuracies(shares, self.groups, self.judged)["accuracy"]
        corpus: Any = data.corpus
        return {"val/chance_accuracy": corpus.chance, "val/majority_accuracy": majority}


def is_right(predicted: Int[Tensor, " n"], batch: Batch) -> Bool[Tensor, " n"]:
    """Whether each predicted symbol is the answer, or one of the right ones."""
    if "right" in batch:
        return (batch["right"] >> predicted & 1).bool()
    return predicted == batch["targets"]


def accuracies(
    shares: list[float], groups: tuple[str, ...], judged: tuple[str, ...]
) -> dict[str, float]:
    """`accuracy`, the mean over the judged groups that have answers, and that of each group.

    Args:
        shares: of right answers in each group; NaN without answers.
        groups: names of the groups.
        judged: names of those that count.
    """
    by_group = {name: s for name, s in zip(groups, shares, strict=True) if s == s}
    counting = [share for name, share in by_group.items() if name in judged]
    # Sequences that are no longer than the trained ones have no judged group.
    counting = counting or list(by_group.values())
    metrics = {"accuracy": sum(counting) / len(counting)}
    if len(groups) > 1:
        metrics |= {f"accuracy_{name}": share for name, share in by_group.items()}
    return metrics
