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
from chimera.rundir.checkpoint_io import load
from chimera.rundir.directory import RunDir


class Teacher:
    """A finished run's model, frozen, in evaluation mode. No module: no checkpoint holds it.

    Args:
        directory: of the run.
        student: whose shape it has to have.
        vocab_size: V of the student.
    """

    def __init__(self, directory: RunDir, student: LanguageModel, vocab_size: int) -> None:
        self.name = str(directory.path)
        config, record = directory.config(), directory.record()
        known = record.get("tokenizer", {}).get("vocab_size")
        if known != vocab_size:
            raise UserError(
                f"task.teacher={self.name} has a vocabulary of {known}, this run has {vocab_size}"
            )
        shape = instantiate(config["model"], _convert_="all")
        self.model = build_model(shape, choose(config), vocab_size=vocab_size, causal=False)
        saved = load(directory.checkpoints / "last.ckpt")["state_dict"]
        own = {k.removeprefix("model."): v for k, v in saved.items() if k.startswith("model.")}
        self.model.load_state_dict(own)
        self.model.eval().requires_grad_(False)
        mine, theirs = _shape(student), _shape(self.model)
        if mine != theirs:
            raise UserError(
                f"task.teacher={self.name} has {theirs[0]} layers of width {theirs[1]}, this model"
                f" {mine[0]} of width {mine[1]}; distillation compares them layer by layer"
            )

    @torch.no_grad()
    def initialise(self, student: nn.Module) -> None:
        """Give the student the teacher's weights, as TernaryBERT starts.

        Raises:
            UserError: it has weights that the teacher has not.
        """
        given = dict(self.model.named_parameters())
        for name, parameter in student.named_parameters():
            if name not in given or given[name].shape != parameter.shape:
                raise UserError(
                    f"task.teacher={self.name} has no weights for {name}; to start from others,"
                    " task.teacher_init=false"
                )
            parameter.copy_(given[name])

    @torch.no_grad()
    def hidden_and_logits(self, batch: dict[str, Any]) -> tuple[list[Tensor], Tensor]:
        """What the student is held against on this batch."""
        with hidden_states(self.model) as states:
            out = self.model(batch["ids"], batch["mask"], index=batch["index"])
        return states, out.logits


@contextmanager
def hidden_states(model: LanguageModel) -> Iterator[list[Tensor]]:
    """Collects, of one forward pass, what goes into the first block and what each gives out."""
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
    wanted = torch.softmax(teacher.float() / temperature, -1)
    return F.cross_entropy(student.float() / temperature, wanted) * temperature**2


def _shape(model: LanguageModel) -> tuple[int, int]:
    backbone = model.backbone
    table = cast(Tensor, backbone.embedding.table())  # type: ignore[operator]
    return len(backbone.blocks) * backbone.loops, table.shape[1]
