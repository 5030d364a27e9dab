"""No adapter."""

from torch import nn


def no_adapter(model: nn.Module) -> nn.Module:
    """No adapter: train all parameters."""
    return model
