"""Which models keep the documents of a packed row apart by themselves (`Context.documents`)."""

from __future__ import annotations

from typing import Any

from hydra.utils import get_object
from torch import nn

from chimera.config.groups import groups, node
from chimera.contract import Mixer
from chimera.errors import UserError
from chimera.model.backbone import Backbone


def check_documents(model: nn.Module, mixer: str) -> None:
    """Refuse a model of which a mixer sees other documents.

    Args:
        model: a language model.
        mixer: the choice, for the message.

    Raises:
        UserError: naming the mixer and what to use instead.
    """
    ours = isinstance(getattr(model, "backbone", None), Backbone)
    mixers = [module for module in model.modules() if isinstance(module, Mixer)]
    blind = next((type(each).__name__ for each in mixers if not each.documents), None)
    if ours and blind is None:
        return
    what = f"mixer={mixer}" + (f" ({blind})" if blind else "") if ours else "model=hf"
    able = [name for name in groups()["mixer"] if _documents(node("mixer", name))]
    raise UserError(
        f"data.boundaries=attention needs mixers that mask other documents, and {what} does not;"
        f" use mixer={', '.join(able)}, or data.boundaries=reset, which every mixer takes"
    )


def _documents(settings: dict[str, Any]) -> bool:
    """Whether the class that a choice names keeps documents apart."""
    target = settings.get("_target_")
    return bool(target and getattr(get_object(target), "documents", False))
