"""No adapter: every parameter of the model is trained."""

from torch import nn


def no_adapter(model: nn.Module) -> nn.Module:
    """The model as it is."""
    return model
