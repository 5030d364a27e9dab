"""Masked language modelling (SPEC D1; arXiv 1810.04805): predict the masked tokens.

A student is also trained by distillation from a model of the same depth and width (QDYT 4.2, row
TernaryBERT):

    L = Σ_l MSE(H_l student, H_l teacher) + T²·CE(softmax(z teacher/T), softmax(z student/T))

This follows TernaryBERT (arXiv 2009.12812), where T is 1. H_l [b t d] are the embeddings and the
output of each block, z [n v] the logits at the masked positions. The paper's third term, the MSE of
attention scores, is left out: fused attention does not compute scores, and some mixers have none.
"""

from __future__ import annotations

from functools import partial
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from hydra.utils import instantiate
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torchmetrics.classification import MulticlassAccuracy

from chimera.config.settings import Optim
from chimera.config.trusted_config import recorded, trusted_model
from chimera.data.batch.mlm import MLMDataModule
from chimera.data.batch.module import DataModule
from chimera.errors import UserError
from chimera.model.assemble import build_model, choose
from chimera.model.hidden_states import hidden_states
from chimera.model.language import LanguageModel, Prediction
from chimera.model.restore import restore
from chimera.rundir.directory import RunDir, directory_of_teacher
from chimera.safe_io import check_fields
from chimera.task.base import Batch, LanguageTask, Stage
from chimera.types import Fraction, NonNegativeFloat, PositiveFloat

#: Blocks that `samples` shows.
SAMPLES = 6


class MaskedLM(LanguageTask):
    """Cross entropy at the masked positions; perplexity is its exponential.

    With a teacher the loss is (1 − w)·cross entropy + w·distillation (see above).

    Args:
        name: of the task, in run names and records.
        mask_ratio: share of the tokens that are predicted.
        weights: factor on each auxiliary loss by key (TITAN eq. 51).
        vocab_size: V.
        teacher: finished run to distil from: its directory or `row:<paper>/<table>/<row>`.
        teacher_run: identity of the teacher's run; set by the composition of the configuration.
        teacher_init: start from the teacher's weights.
        distil_weight: w; 1 is TernaryBERT's loss, which does not use labels.
        distil_temperature: T of the softened distributions.
    """

    causal = False
    predicts = "masked token"
    data_class = MLMDataModule
    data_settings = ("mask_ratio",)

    def __init__(
        self,
        model: nn.Module,
        optim: Optim,
        total_steps: int,
        vocab_size: int,
        *,
        name: str = "mlm",
        mask_ratio: Fraction = 0.15,
        weights: dict[str, NonNegativeFloat] | None = None,
        teacher: str | None = None,
        teacher_run: str | None = None,
        teacher_init: bool = True,
        distil_weight: Fraction = 1.0,
        distil_temperature: PositiveFloat = 1.0,
    ) -> None:
        accuracy = partial(MulticlassAccuracy, vocab_size, average="micro", validate_args=False)
        super().__init__(model, optim, total_steps, weights or {}, vocab_size, accuracy)
        self.name = name
        self.mask_ratio = mask_ratio
        self.teacher_dir = directory_of_teacher(teacher, teacher_run or "") if teacher else None
        self.teacher_init = teacher_init
        self.distil_weight = distil_weight
        self.distil_temperature = distil_temperature
        self.teacher: Teacher | None = None

    def example(self, length: int, device: torch.device) -> dict[str, Any]:
        """As of `Task`, with the head at the masked positions alone."""
        masked = torch.arange(max(1, round(self.mask_ratio * length)), device=device)
        return super().example(length, device) | {"index": masked}

    def training_batch(self, sequences: int, length: int, device: torch.device) -> Batch:
        """As of `Task`, with the head at the masked positions alone."""
        masked = torch.arange(sequences * max(1, round(self.mask_ratio * length)), device=device)
        batch = super().training_batch(sequences, length, device)
        return batch | {"index": masked, "targets": torch.zeros_like(masked)}

    def samples(self, data: DataModule) -> list[dict[str, str]]:
        """Blocks with their masked words as the model restores them (`train.run_files`)."""
        blocks = data.val_dataloader().samples
        tokenizer = data.prepared.tokenizer
        found = []
        for number in range(min(SAMPLES, len(blocks))):
            block = blocks[0, number]
            ids = torch.from_numpy(np.asarray(block.ids)).long().to(self.device)[None]
            index = torch.from_numpy(block.positions).to(self.device)
            guesses = self.model(ids, None, index=index).logits.flatten(0, -2).argmax(-1).tolist()
            texts = []
            for tokens in (block.targets, guesses):
                whole = np.array(block.ids, np.int64)
                whole[block.positions] = tokens
                texts.append(tokenizer.decode(whole.tolist()))
            pairs = [
                " → ".join(tokenizer.decode([int(token)]).strip() for token in pair)
                for pair in zip(block.targets, guesses, strict=True)
            ]
            shown = ", ".join(pairs)
            right = f"{np.sum(np.equal(block.targets, guesses))} of {len(pairs)}"
            names = ("text", "restored", "masked → restored", "right")
            found.append(dict(zip(names, (*texts, shown, right), strict=True)))
        return found

    def setup(self, stage: str) -> None:
        """Load the teacher, for training only; Lightning loads checkpoints after this."""
        super().setup(stage)
        if stage == "fit" and self.teacher_dir is not None:
            model = cast(LanguageModel, self.model)
            self.teacher = Teacher(self.teacher_dir, model, self.vocab_size)
            if self.teacher_init:
                self.teacher.initialise(model)

    def on_fit_start(self) -> None:
        if self.teacher is not None:
            self.teacher.model.to(self.device)

    def training_step(self, batch: Batch, batch_idx: int) -> dict[str, Any]:
        if self.teacher is None:
            return super().training_step(batch, batch_idx)
        with hidden_states(self.model.backbone) as hidden:
            out = self.outputs(batch)
        teacher_hidden, teacher_logits = self.teacher.hidden_and_logits(batch)
        of_hidden = hidden_loss(hidden, teacher_hidden, batch["mask"])
        of_logits = logit_loss(out.logits, teacher_logits, self.distil_temperature)
        distil = of_hidden + of_logits
        objective = (1 - self.distil_weight) * out.loss + self.distil_weight * distil
        distil_stats = {"distil_hidden": of_hidden, "distil_logits": of_logits}
        stats = out.stats | {key: value.detach() for key, value in distil_stats.items()}
        count = len(batch["targets"])
        return self.step_output(
            out.loss, out.accuracy, out.aux, stats, count=count, objective=objective
        )

    def outputs(self, batch: Batch, **more: Any) -> Prediction:
        """As of `Task`, with loss and accuracy."""
        out = super().outputs(batch, **more)
        logits = out.logits.float()
        right = (out.logits.detach().argmax(-1) == batch["targets"]).float()
        # The mean of no predictions is 0, of weight 0: a batch of unknown words has none.
        loss = F.cross_entropy(logits, batch["targets"]) if len(logits) else logits.sum()
        accuracy = right.mean() if len(right) else right.sum()
        # Only a teacher needs their gradient; a graph that returns it reads zeros of their size.
        given = out.logits.detach() if self.teacher is None else out.logits
        return Prediction(given, None, out.aux, out.stats, loss, accuracy)

    def update_metrics(self, batch: Batch, stage: Stage) -> None:
        out = self.outputs(batch)
        targets = batch["targets"]
        if batch.get("void") or not len(targets):
            return
        meter = self.meters[stage]
        meter["loss"].update(out.loss, weight=len(targets))
        meter["accuracy"].update(out.logits, targets)


class Teacher:
    """Frozen model of a finished run, in evaluation mode.

    This class is no `nn.Module`, so the student's checkpoints do not contain the teacher.

    Args:
        directory: of the run.
        student: model with the same depth and width.
        vocab_size: V of the student.

    Raises:
        UserError: the teacher has another vocabulary, depth or width, or files with more than data.
    """

    def __init__(self, directory: RunDir, student: LanguageModel, vocab_size: int) -> None:
        self.name = str(directory.path)
        config = recorded(directory)
        record = directory.record()
        check_fields(record, {"tokenizer": dict}, directory.path / "run.json")
        teacher_vocab = record["tokenizer"].get("vocab_size")
        if teacher_vocab != vocab_size:
            raise UserError(
                f"task.teacher={self.name} has a vocabulary of {teacher_vocab}, this run one of"
                f" {vocab_size}; train both with the same tokenizer"
            )
        node = trusted_model(config, directory.path, f"task.teacher={self.name}")
        settings = instantiate(node, _convert_="all")
        self.model = build_model(settings, choose(config), vocab_size=vocab_size, causal=False)
        restore(self.model, directory.checkpoints / "last.ckpt")
        self.model.eval().requires_grad_(False)
        layers, width = _shape(student)
        teacher_layers, teacher_width = _shape(self.model)
        if (layers, width) != (teacher_layers, teacher_width):
            raise UserError(
                f"task.teacher={self.name} has {teacher_layers} layers of width {teacher_width},"
                f" this model {layers} of width {width}; distillation needs equal depth and width"
            )

    @torch.no_grad()
    def initialise(self, student: nn.Module) -> None:
        """Copy the teacher's weights into the student, as TernaryBERT does before training.

        Raises:
            UserError: the student has weights that the teacher lacks.
        """
        weights = dict(self.model.named_parameters())
        for name, parameter in student.named_parameters():
            if name not in weights or weights[name].shape != parameter.shape:
                raise UserError(
                    f"task.teacher={self.name} has no weights for {name}; set"
                    " task.teacher_init=false to start from fresh weights"
                )
            parameter.copy_(weights[name])

    @torch.no_grad()
    def hidden_and_logits(self, batch: dict[str, Any]) -> tuple[list[Tensor], Tensor]:
        """Compute the teacher's hidden states [b t d] of each layer and its logits [n v]."""
        with hidden_states(self.model.backbone) as states:
            out = self.model(batch["ids"], batch["mask"], index=batch["index"])
        return states, out.logits


def hidden_loss(
    student: list[Tensor], teacher: list[Tensor], mask: Bool[Tensor, "b t"] | None
) -> Tensor:
    """Sum over layers of the mean squared difference at real tokens.

    Args:
        student: hidden states [b t d] of each layer.
        teacher: likewise.
        mask: True where a token is real; None if all are.
    """
    losses = []
    for student_state, teacher_state in zip(student, teacher, strict=True):
        squared = (student_state.float() - teacher_state.float()).square().mean(-1)
        losses.append(squared.mean() if mask is None else squared[mask].mean())
    return torch.stack(losses).sum()


def logit_loss(
    student: Float[Tensor, "n v"], teacher: Float[Tensor, "n v"], temperature: float
) -> Tensor:
    """Cross entropy between softened distributions; the factor T² keeps the gradients' size."""
    soft_targets = torch.softmax(teacher.float() / temperature, -1)
    return F.cross_entropy(student.float() / temperature, soft_targets) * temperature**2


def _shape(model: LanguageModel) -> tuple[int, int]:
    """Number of logical layers, and width."""
    backbone = model.backbone
    table = cast(Tensor, backbone.embedding.table())  # type: ignore[operator]
    return len(backbone.blocks) * backbone.loops, table.shape[1]
