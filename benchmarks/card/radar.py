"""Draw a profile: a spoke for each task, the score from the middle outwards, bands over seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from benchmarks.card.records import Profile, Result
from chimera.report.stats import spread
from chimera.report.style import empty, save

if TYPE_CHECKING:
    from matplotlib.projections.polar import PolarAxes

OURS, REFERENCE = "C0", "0.55"


def ends(result: Result) -> tuple[float, float, float]:
    """Mean score and Student's interval of it, within 0 and 1; from one seed the mean thrice."""
    found = spread(list(result.scores.values()))
    assert found is not None
    low, high = found.interval or (found.mean, found.mean)
    mean, low, high = (min(1.0, max(0.0, x)) for x in (found.mean, low, high))
    return mean, low, high


def draw(profile: Profile, reference: Profile | None, tasks: Sequence[str], file: Path) -> None:
    """Write `file` (.svg) with the mixer's scores, their intervals, and attention's mean scores.

    Args:
        profile: of the mixer.
        reference: of attention; None without.
        tasks: the spokes; those without a result are left out.
        file: its PNG and PDF are not written.
    """
    tasks = [task for task in tasks if task in profile.results]
    figure = empty(5.6, 4.6)
    axis = cast("PolarAxes", figure.add_subplot(projection="polar"))
    angles = [2 * math.pi * i / len(tasks) for i in range(len(tasks))]
    round_ = [*angles, angles[0]]
    points = [ends(profile.results[task]) for task in tasks]
    means, lows, highs = ([*column, column[0]] for column in zip(*points, strict=True))
    axis.fill_between(round_, lows, highs, color=OURS, alpha=0.2, linewidth=0)
    axis.plot(round_, means, color=OURS, marker="o", markersize=4, label=profile.mixer)
    if reference is not None and reference.mixer != profile.mixer:
        known = [ends(reference.results[t])[0] if t in reference.results else 0 for t in tasks]
        axis.plot(
            round_, [*known, known[0]], label=reference.mixer, color=REFERENCE, linestyle="--",
            linewidth=1.2,
        )  # fmt: skip
    axis.set_xticks(angles, [task.replace("_", "\n") for task in tasks], fontsize=9)
    axis.set_yticks([0.25, 0.5, 0.75, 1.0], ["", "½", "", "1"], fontsize=8)
    axis.set_ylim(0, 1)
    axis.set_theta_offset(math.pi / 2)
    axis.tick_params(pad=14)
    axis.legend(loc="lower left", bbox_to_anchor=(-0.25, -0.12), fontsize=9, frameon=False)
    save(figure, file, forms=("svg",))
