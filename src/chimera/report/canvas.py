"""Make figures without a display, and write them as PNG, SVG and PDF."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def png(figure: Figure) -> bytes:
    """Encode a figure as PNG without a time, so that equal figures give equal bytes."""
    out = io.BytesIO()
    figure.savefig(out, dpi=130, format="png", metadata={"Software": None})
    return out.getvalue()


def save(figure: Figure, file: Path, forms: Sequence[str] = ("png", "svg", "pdf")) -> None:
    """Write a figure in these forms beside each other, with the same bytes each time.

    Args:
        figure: to be written.
        file: its name; each form replaces the suffix.
        forms: png, svg, pdf.
    """
    import matplotlib  # slow to import

    if "png" in forms:
        file.with_suffix(".png").write_bytes(png(figure))
    else:
        figure.draw_without_rendering()
    figure.set_layout_engine("none")  # all forms have one layout
    fonts: Any = {"svg.fonttype": "none", "svg.hashsalt": file.stem, "pdf.fonttype": 42}
    with matplotlib.rc_context(fonts):
        if "svg" in forms:
            figure.savefig(file.with_suffix(".svg"), metadata={"Date": None})
        if "pdf" in forms:
            figure.savefig(file.with_suffix(".pdf"), metadata={"CreationDate": None})


def empty(width: float, height: float) -> Figure:
    """A figure of so many inches that needs no display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # slow to import
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure
