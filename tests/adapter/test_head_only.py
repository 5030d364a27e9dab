"""adapter=head_only trains the head and nothing else."""

from __future__ import annotations

import pytest
from torch import nn

from chimera.adapter.head_only import head_only
from chimera.errors import UserError
from tests.adapter.kit import bert


def trained(model: nn.Module) -> set[str]:
    return {name.partition(".")[0] for name, p in model.named_parameters() if p.requires_grad}


def test_only_the_classifier_is_trained() -> None:
    assert trained(head_only(bert())) == {"classifier"}
    assert trained(head_only(bert(), train=["bert.embeddings"])) == {"bert"}


def test_a_model_without_a_head_is_refused() -> None:
    with pytest.raises(UserError, match=r"adapter=head_only: this model has no \*\.classifier"):
        head_only(nn.Sequential(nn.Linear(2, 2)))
