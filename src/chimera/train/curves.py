"""Draw the curves of one run. Does not import torch."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from chimera.report import style
from chimera.rundir.directory import RunDir
from chimera.rundir.safe_io import replacing
from chimera.rundir.steps import read, smooth, validated

log = logging.getLogger("chimera")


def curves(directory: RunDir, record: Mapping[str, Any], unit: str) -> None:
    """Draw loss and learning rate against optimiser steps: curves.png.

    Args:
        directory: of the run.
        record: contents of run.json, which has the validations.
        unit: of the loss, such as `nats per token`.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:  # on a lent machine, say: `make gpu` carries no matplotlib
        log.warning("%s is not drawn: %s", directory.curves.name, error)
        return

    log_of_steps = read(directory.steps).reindex(columns=["global_step", "loss", "learning_rate"])
    x, loss, rates = log_of_steps.to_numpy().T.tolist()
    smoothed = smooth(loss)
    figure = Figure(figsize=(8.5, 5.2), layout="constrained")
    FigureCanvasAgg(figure)
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    top.plot(x, loss, color="0.8", linewidth=0.7, label="training, each step")
    top.plot(x, smoothed, color=style.COLOURS[0], linewidth=1.6, label="training, smoothed")
    if validations := validated(record):
        dots = {"markersize": 5 if len(validations) <= 25 else 3, "linewidth": 1.0}
        step, last = validations[-1]
        label = f"validation ({last:.3f} at step {step:,})"
        colour = style.COLOURS[4]
        top.plot(*zip(*validations, strict=True), "--s", color=colour, label=label, **dots)
    top.set_ylabel(f"loss ({unit})")
    figure.suptitle(record["name"], fontsize=11)
    style.legend(figure, top)
    bottom.plot(x, rates, color=style.COLOURS[6])
    bottom.set_ylabel("learning rate")
    bottom.ticklabel_format(axis="y", style="sci", scilimits=(0, 0))
    bottom.set_xlabel("optimiser steps")
    for axis in (top, bottom):
        style.tidy(axis)
    with replacing(directory.curves) as file:
        figure.savefig(file, dpi=130, format="png")
