"""`restore` copies all weights of a file, or raises one line with the tensor that does not fit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from chimera.contract_tests import zoo
from chimera.errors import UserError
from chimera.model.restore import read, restore


def saved(model: nn.Module, folder: Path, kind: str) -> Path:
    tensors = {name: t.clone() for name, t in model.state_dict().items()}
    if kind == "safetensors":
        file = folder / "model.safetensors"
        save_file(tensors, file)
    else:
        file = folder / "last.ckpt"
        own = {f"model.{name}": t for name, t in tensors.items()}
        torch.save({"state_dict": own | {"meter.total": torch.zeros(1)}}, file)
    return file


@pytest.mark.parametrize("kind", ["safetensors", "checkpoint"])
def test_all_weights_come_back(kind: str, tmp_path: Path) -> None:
    model = zoo.model(mixer="retnet", quant="hbit", norm="qdyt")
    file = saved(model, tmp_path, kind)
    other = zoo.model(mixer="retnet", quant="hbit", norm="qdyt")
    with torch.no_grad():
        for tensor in (*other.parameters(), *other.buffers()):
            tensor.zero_()
    restore(other, file)
    wanted = model.state_dict()
    assert all(torch.equal(tensor, wanted[name]) for name, tensor in other.state_dict().items())
    assert read(file).keys() == wanted.keys()


def test_a_name_that_the_file_leaves_out_is_that_of_the_same_tensor(tmp_path: Path) -> None:
    pair = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 2)})
    file = tmp_path / "model.safetensors"
    save_file({"a.weight": torch.ones(2, 2), "a.bias": torch.ones(2)}, file)
    restore(pair, file, tied={"b.weight": "a.weight", "b.bias": "a.bias"})
    assert all(bool((tensor == 1).all()) for tensor in pair.state_dict().values())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"depth": 1}, "has weights for backbone.blocks.1.*, which this model lacks"),
        ({"depth": 3}, "has no weights for backbone.blocks.2"),
        ({"dim": 16}, r"has .* \[64 32\], this model \[64 16\]"),
    ],
)
def test_what_does_not_fit_is_said(change: dict[str, int], message: str, tmp_path: Path) -> None:
    file = saved(zoo.model(), tmp_path, "checkpoint")
    with pytest.raises(UserError, match=message):
        restore(zoo.model(replace(zoo.TINY, **change)), file)  # type: ignore[arg-type]
