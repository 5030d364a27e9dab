"""Distillation from a trained model of the same depth and width (QDYT 4.2, row TernaryBERT).

    L = Σ_l MSE(H_l student, H_l teacher) + T²·CE(softmax(z teacher/T), softmax(z student/T))

after TernaryBERT (arXiv 2009.12812): H_l are the embeddings and each block's output, z the logits
at the masked positions. Its third term, the MSE of attention scores, is left out: fused attention
does not form them, and mixers without scores have none. T is 1 there. H [b t d], z [n v].
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
import torch.nn.functional as F
from hydra.utils import instantiate
from jaxtyping import Bool, Float
from torch import Tensor, nn

from chimera.errors import UserError
from chimera.model.assemble import build_model, choose
from chimera.model.language import LanguageModel
from chimera.model.restore import restore
from chimera.rundir.directory import RunDir


class Teacher:
    """A finished run's model, frozen, in evaluation mode.

    It is no `nn.Module`, so that the student's checkpoints do not hold it.

    Args:
        directory: of the run.
        student: its depth and width have to be the teacher's.
        vocab_size: V of the student.

    Raises:
        UserError: another vocabulary, depth or width.
    """

    def __init__(self, directory: RunDir, student: LanguageModel, vocab_size: int) -> None:
        self.name = str(directory.path)
        config, record = directory.config(), directory.record()
        teacher_vocab = record.get("tokenizer", {}).get("vocab_size")
        if teacher_vocab != vocab_size:
            raise UserError(
                f"task.teacher={self.name} has a vocabulary of {teacher_vocab}, this run has"
                f" {vocab_size}"
            )
        settings = instantiate(config["model"], _convert_="all")
        self.model = build_model(settings, choose(config), vocab_size=vocab_size, causal=False)
        restore(self.model, directory.checkpoints / "last.ckpt")
        self.model.eval().requires_grad_(False)
        layers, width = _shape(student)
        teacher_layers, teacher_width = _shape(self.model)
        if (layers, width) != (teacher_layers, teacher_width):
            raise UserError(
                f"task.teacher={self.name} has {teacher_layers} layers of width {teacher_width},"
                f" this model {layers} of width {width}; distillation compares them layer by layer"
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
                    f"task.teacher={self.name} has no weights for {name}; to start from others,"
                    " task.teacher_init=false"
                )
            parameter.copy_(weights[name])

    @torch.no_grad()
    def hidden_and_logits(self, batch: dict[str, Any]) -> tuple[list[Tensor], Tensor]:
        """The teacher's hidden states [b t d] of each layer and its logits [n v] on a batch."""
        with hidden_states(self.model) as states:
            out = self.model(batch["ids"], batch["mask"], index=batch["index"])
        return states, out.logits


@contextmanager
def hidden_states(model: LanguageModel) -> Iterator[list[Tensor]]:
    """Collect the first block's input and every block's output in one forward pass."""
    states: list[Tensor] = []

    def keep_input(_: nn.Module, args: tuple[Any, ...]) -> None:
        if not states:
            states.append(args[0])

    blocks = list(model.backbone.blocks)
    hooks = [blocks[0].register_forward_pre_hook(keep_input)]
    hooks += [b.register_forward_hook(lambda _m, _a, out: states.append(out.y)) for b in blocks]
    try:
        yield states
    finally:
        for hook in hooks:
            hook.remove()


def hidden_loss(
    student: list[Tensor], teacher: list[Tensor], mask: Bool[Tensor, "b t"] | None
) -> Tensor:
    """Σ over layers of the mean squared difference at real tokens."""
    losses = []
    for ours, theirs in zip(student, teacher, strict=True):
        squared = (ours.float() - theirs.float()).square().mean(-1)
        losses.append(squared.mean() if mask is None else squared[mask].mean())
    return torch.stack(losses).sum()


def logit_loss(
    student: Float[Tensor, "n v"], teacher: Float[Tensor, "n v"], temperature: float
) -> Tensor:
    """Cross entropy of the student's distribution under the teacher's, T² for T's gradient."""
    soft_targets = torch.softmax(teacher.float() / temperature, -1)
    return F.cross_entropy(student.float() / temperature, soft_targets) * temperature**2


def _shape(model: LanguageModel) -> tuple[int, int]:
    backbone = model.backbone
    table = cast(Tensor, backbone.embedding.table())  # type: ignore[operator]
    return len(backbone.blocks) * backbone.loops, table.shape[1]
