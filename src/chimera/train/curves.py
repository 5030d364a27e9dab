"""Draw the curves of one run. Does not import torch."""

from __future__ import annotations

import logging
from pathlib import Path

from chimera.rundir.steps import read, smooth

log = logging.getLogger("chimera")


def curves(steps: Path, validations: list[tuple[int, float]], to: Path, title: str) -> None:
    """Draw loss and learning rate against optimiser steps, as PNG.

    Args:
        steps: the step log.
        validations: (step, loss) pairs.
        to: file of the picture.
        title: of the picture.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:  # on a lent machine, say: `make gpu` carries no matplotlib
        log.warning("%s is not drawn: %s", to.name, error)
        return

    rows = read(steps)
    x = [int(r["global_step"]) for r in rows]
    loss = [float(r["loss"]) for r in rows]
    figure = Figure(figsize=(8, 5), layout="constrained")
    FigureCanvasAgg(figure)
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    top.plot(x, loss, color="0.75", linewidth=0.8, label="train, each step")
    top.plot(x, smooth(loss), color="C0", label="train, smoothed")
    if validations:
        top.plot(*zip(*validations, strict=True), "o-", color="C1", label="validation")
    top.set_ylabel("loss (nats per masked token)")
    top.set_title(title, fontsize=10)
    top.legend(frameon=False)
    bottom.plot(x, [float(r["learning_rate"]) for r in rows], color="C2")
    bottom.set_ylabel("learning rate")
    bottom.set_xlabel("optimiser step")
    for axis in (top, bottom):
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(to, dpi=130)
