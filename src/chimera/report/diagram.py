"""Draw the diagram of a model as a picture, for what shows no Mermaid.

Only the charts of `chimera.model.diagram` are read: boxes from the input to the output, some of
them inside frames.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from chimera.report import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: A box: its identifier, its text.
_BOX = re.compile(r'(\w+)[\[(]+"([^"]*)"')
#: Width of a picture, and height of a line of text and of what is around a box, in inches.
WIDTH = 4.0
LINE = 0.19
AROUND = 0.34


def drawn(diagram: str) -> Figure:
    """The boxes of a chart from top to bottom, with the frames around them."""
    from matplotlib.patches import FancyBboxPatch, Rectangle  # slow to import

    boxes, frames = _read(diagram)
    heights = [LINE * (text.count("\n") + 1) + AROUND for text, _ in boxes]
    figure = style.empty(WIDTH, sum(heights) + AROUND)
    figure.set_layout_engine("none")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, WIDTH), ylim=(-sum(heights) - AROUND, 0))
    axes.axis("off")
    tops = [-AROUND / 2 - sum(heights[:number]) for number in range(len(boxes) + 1)]
    for text, depth, first, last in frames:
        left = 0.15 + 0.25 * depth
        size = (WIDTH - 2 * left, tops[first] - tops[last] - 0.06)
        frame = Rectangle((left, tops[last] + 0.06), *size, fill=False, color="0.6")
        axes.add_patch(frame)
        # The text of an inner frame is on the other side than that of the frame around it.
        side = ("right", WIDTH - left - 0.08) if depth % 2 else ("left", left + 0.08)
        place = (side[1], tops[first] - 0.05)
        axes.text(*place, text, fontsize=7, color="0.4", va="top", ha=side[0])
    for number, (text, _) in enumerate(boxes):
        middle = (tops[number] + tops[number + 1]) / 2
        high = heights[number] - AROUND + 0.1
        place = (1.1, middle - high / 2)
        axes.add_patch(FancyBboxPatch(place, WIDTH - 2.2, high, boxstyle="round,pad=0.03", fc="w"))
        axes.text(WIDTH / 2, middle, style.escaped(text), ha="center", va="center", fontsize=8)
        if number:
            above = tops[number] + AROUND / 2 - 0.1
            arrow = {"arrowstyle": "->", "color": "0.3"}
            end = (WIDTH / 2, middle + high / 2 + 0.03)
            axes.annotate("", end, (WIDTH / 2, above), arrowprops=arrow)
    return figure


def _read(diagram: str) -> tuple[list[tuple[str, int]], list[tuple[str, int, int, int]]]:
    """Texts and depths of the boxes; texts, depths, first and one past the last box of frames."""
    boxes = dict[str, tuple[str, int]]()
    frames: list[tuple[str, int, int, int]] = []
    opened: list[tuple[str, int]] = []
    for line in diagram.splitlines():
        if line.strip() == "end":
            text, first = opened.pop()
            frames.append((text, len(opened), first, len(boxes)))
            continue
        found = [(name, text.replace("<br/>", "\n")) for name, text in _BOX.findall(line)]
        if line.lstrip().startswith("subgraph"):
            opened.append((found[0][1], len(boxes)))
        else:
            for name, text in found:
                boxes.setdefault(name, (text, len(opened)))
    return [*boxes.values()], frames
