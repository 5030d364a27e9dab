"""Tables of what a model is made of: parameters by component, rates by optimiser group."""

from __future__ import annotations

from collections import Counter

from rich.console import Console
from rich.table import Table
from torch import nn

from chimera.optim.groups import Group, components


def parameters_by_component(model: nn.Module) -> dict[str, int]:
    """How many parameters each component owns; a shared table counts once."""
    owner = components(model)
    counts: Counter[str] = Counter()
    for name, parameter in model.named_parameters():
        counts[owner[name]] += parameter.numel()
    return dict(counts)


def show(title: str, groups: list[Group], model: nn.Module, console: Console) -> None:
    """Print a row per component: parameters, share, rate, weight decay."""
    total = sum(p.numel() for p in model.parameters())
    rates = {group.component: group for group in groups}
    table = Table(title=title, title_justify="left")
    table.add_column("component")
    for column in ("parameters", "share", "peak lr", "weight decay"):
        table.add_column(column, justify="right")
    for component, count in parameters_by_component(model).items():
        group = rates.get(component)
        trained = (f"{group.lr:.2e}", f"{group.weight_decay:g}") if group else ("frozen", "")
        table.add_row(component, f"{count:,}", f"{count / total:.1%}", *trained)
    table.add_row("total", f"{total:,}", "", "", "", style="bold")
    trained_count = sum(group.count for group in groups)
    if trained_count < total:
        table.add_row("trained", f"{trained_count:,}", f"{trained_count / total:.2%}", "", "")
    console.print(table)
