"""Our weights by the names of a checkpoint of transformers: `model.from_hf` the other way round.

Components say how they read a checkpoint (`contract_hf`): they choose, reorder and shift rows of
its tensors. Here they read the numbers of the rows in place of weights, which tells where each row
of ours belongs; so no component has to write the inverse. What is read from the result has to be
what the model has, else nothing is returned.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from chimera.errors import UserError
from chimera.model.from_hf import HEAD, translated

#: Largest difference of a weight that was shifted by 1 and back.
ROUNDING = 1e-6


def original(
    model: nn.Module, config: Mapping[str, Any], theirs: Mapping[str, Tensor], where: str
) -> dict[str, Tensor]:
    """Weights of `model` under the names, and in the shapes and dtypes, of a checkpoint.

    Rows that no part here has (padding of a table beyond the vocabulary) stay the checkpoint's.

    Args:
        model: of the parts that `config.from_hf` chooses for the checkpoint, in full precision.
        config: of the checkpoint.
        theirs: its tensors.
        where: what a refusal begins with.

    Raises:
        UserError: the model has other parts, or weights that the checkpoint has no place for.
    """
    numbers = {}
    starts = []
    count = 1
    for name, tensor in theirs.items():
        shape = (-1, *[1] * (tensor.ndim - 1))
        numbers[name] = torch.arange(count, count + len(tensor), dtype=torch.float64).view(shape)
        starts.append(count)
        count += len(tensor)
    nothing = {name: torch.zeros_like(rows) for name, rows in numbers.items()}
    places, shifts = (translated(model, config, rows, where) for rows in (numbers, nothing))
    own = {name: p.detach() for name, p in model.named_parameters()}
    made = {name: tensor.float() for name, tensor in theirs.items()}
    names = list(theirs)
    first = torch.tensor(starts)
    for name, weight in own.items():
        at = (places[name] - shifts[name]).flatten().long()
        if len(at) != len(weight):
            raise UserError(f"{where} has no rows for those of {name}")
        rows = weight.float() - shifts[name].float()
        sources = torch.searchsorted(first, at, right=True) - 1
        for source in sources[at > 0].unique().tolist():
            target = made[names[source]]
            here = (sources == source) & (at > 0)
            target[at[here] - starts[source]] = rows[here].view(-1, *target.shape[1:])
    _verify(model, config, made, own, where)
    if "head.output.weight" not in own:
        made.pop(HEAD[0], None)  # tied: transformers saves the embedding alone
    return {name: tensor.to(theirs[name].dtype).contiguous() for name, tensor in made.items()}


def _verify(
    model: nn.Module,
    config: Mapping[str, Any],
    made: Mapping[str, Tensor],
    own: Mapping[str, Tensor],
    where: str,
) -> None:
    again = translated(model, config, made, where)
    for name, weight in own.items():
        if not torch.allclose(again[name].float(), weight.float(), ROUNDING, ROUNDING):
            raise UserError(f"{where} has no place for the values of {name}")
