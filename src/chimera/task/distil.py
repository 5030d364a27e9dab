"""Distillation from a trained model of the same depth and width (QDYT 4.2, row TernaryBERT).

    L = Σ_l MSE(H_l student, H_l teacher) + T²·CE(softmax(z teacher/T), softmax(z student/T))

This follows TernaryBERT (arXiv 2009.12812), where T is 1. H_l [b t d] are the embeddings and the
output of each block, z [n v] the logits at the masked positions. The paper's third term, the MSE of
attention scores, is left out: fused attention does not compute scores, and some mixers have none.
"""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.nn.functional as F
from hydra.utils import instantiate
from jaxtyping import Bool, Float
from torch import Tensor, nn

from chimera.config.trusted_config import recorded, trusted_model
from chimera.errors import UserError
from chimera.model.assemble import build_model, choose
from chimera.model.hidden_states import hidden_states
from chimera.model.language import LanguageModel
from chimera.model.restore import restore
from chimera.rundir.directory import RunDir
from chimera.safe_io import check_fields


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
