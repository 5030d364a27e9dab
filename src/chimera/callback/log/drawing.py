"""Draw a model: histograms of activations and ternary weights, maps of mixers and gates."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from jaxtyping import Float
from torch import Tensor

from chimera.callback.log.captured import by_distance

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Panels of a picture; of more modules some are drawn, evenly.
PANELS = 12
#: Channels of a gate that are drawn.
CHANNELS = 48
#: Codes −1, 0, 1: Okabe and Ito's blue, grey and vermilion.
CODES = {-1: "#0072B2", 0: "0.6", 1: "#D55E00"}
Value = TypeVar("Value")


def some(values: Mapping[str, Value], most: int = PANELS) -> dict[str, Value]:
    """At most so many items, evenly, the first and the last among them."""
    names = list(values)
    if len(names) <= most:
        return dict(values)
    places = {round(n * (len(names) - 1) / (most - 1)) for n in range(most)}
    return {names[place]: values[names[place]] for place in sorted(places)}


def words(name: str) -> str:
    """A module's name in words: `body.blocks.3.mixer.q_proj` is `block 3, mixer q`."""
    name = re.sub(r"^(model|body|backbone)\.", "", name)
    name = re.sub(r"(^|\.)blocks\.(\d+)\.?", r"\1block \2, ", name)
    if name == "norm":
        return "final norm"
    return name.replace("_proj", "").replace("_", " ").replace(".", " ").strip(", ")


def activations(norms: Mapping[str, Tensor], step: int) -> Figure:
    """Histograms of what comes out of each norm, with standard deviation and largest size."""
    shown = some(norms)
    figure, axes = _panels(len(shown), 2.6, 1.9)
    for axis, (name, values) in zip(axes, shown.items(), strict=False):
        reach = max(float(values.abs().quantile(0.9995)), 1e-6)
        axis.hist(values.clamp(-reach, reach).numpy(), bins=80, density=True, color="#0072B2")
        axis.set_yscale("log")
        axis.set_title(words(name), fontsize=8)
        note = f"std {float(values.std()):.2f}\nlargest {float(values.abs().max()):.1f}"
        axis.text(0.97, 0.95, note, transform=axis.transAxes, fontsize=7, va="top", ha="right")
        # Room for the note above the data.
        low, high = axis.get_ylim()
        axis.set_ylim(low, high * (high / low) ** 0.35)
    _name(figure, f"Activations after norms, step {step}", "value", "density")
    return figure


def weights(layers: Mapping[str, tuple[Tensor, Tensor]], step: int) -> Figure:
    """Histograms of latent weights over their scale, by their codes; dashed: the thresholds."""
    shown = some(layers)
    figure, axes = _panels(len(shown), 2.6, 1.9)
    for axis, (name, (values, codes)) in zip(axes, shown.items(), strict=False):
        reach = max(float(values.abs().quantile(0.999)), 1e-6)
        parts = [values[codes == code].clamp(-reach, reach).numpy() for code in CODES]
        edges = [-reach + 2 * reach * n / 80 for n in range(81)]
        axis.hist(parts, bins=edges, stacked=True, color=list(CODES.values()))
        for code, sign in ((1, 1.0), (-1, -1.0)):
            if (codes == code).any() and (codes == 0).any():
                axis.axvline(_threshold(values, codes, code, sign), color="k", ls="--", lw=0.9)
        shares = " ".join(f"{float((codes == c).float().mean()):.0%}" for c in CODES)
        axis.set_title(f"{words(name)}\n{shares}", fontsize=8)
        axis.set_yticks([])
    title = f"Latent weights by ternary code (−1, 0, +1 and their shares), step {step}"
    _name(figure, title, "weight over its scale; dashed: thresholds", "weights")
    return figure


def maps(shares: Mapping[str, Float[Tensor, "t t"]], step: int) -> Figure:
    """Influence of tokens on each other in each mixer, and how it decays with the distance."""
    shown = some(shares, PANELS - 1)
    figure, axes = _panels(len(shown) + 1, 2.9, 2.7)
    image = None
    # Of diffuse maps the largest share is a few per cent.
    top = max(1e-6, *(float(map_.sqrt().quantile(0.995)) for map_ in shown.values()))
    for axis, (name, map_) in zip(axes, shown.items(), strict=False):
        # The square root shows small influences too.
        image = axis.imshow(map_.sqrt().numpy(), cmap="magma", vmin=0.0, vmax=top)
        axis.set_title(words(name), fontsize=8)
        axis.set_xlabel("input token", fontsize=7)
        axis.set_ylabel("output token", fontsize=7)
    decay = axes[len(shown)]
    for number, (name, map_) in enumerate(shown.items()):
        curve = by_distance(map_)
        colour = f"C{number}" if len(shown) <= 10 else None
        decay.plot(curve.clamp(min=1e-8).numpy(), lw=1.2, color=colour, label=words(name))
    decay.set_yscale("log")
    decay.set_ylim(1e-5, 1.5)
    decay.set_xlabel("tokens back", fontsize=7)
    decay.set_title("mean share by distance", fontsize=8)
    decay.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=4, fontsize=7, frameon=False)
    if image is not None:
        bar = figure.colorbar(image, ax=axes[: len(shown)], shrink=0.7, pad=0.01)
        bar.set_label("share of a row's influence, square root", fontsize=7)
        bar.ax.tick_params(labelsize=7)
    figure.suptitle(f"Which input moves which output, by mixer, step {step}", fontsize=10)
    return figure


def gates(outputs: Mapping[str, Float[Tensor, "t c"]], step: int) -> Figure:
    """Outputs of the layers that make gates and decays, by token and channel."""
    shown = some(outputs)
    figure, axes = _panels(len(shown), 2.9, 2.1)
    for axis, (name, values) in zip(axes, shown.items(), strict=False):
        part = values[:, :: max(1, -(-values.shape[1] // CHANNELS))]
        reach = max(float(part.abs().quantile(0.99)), 1e-6)
        image = axis.imshow(part.numpy(), cmap="RdBu_r", vmin=-reach, vmax=reach, aspect="auto")
        axis.set_title(words(name), fontsize=8)
        bar = figure.colorbar(image, ax=axis, pad=0.02)
        bar.ax.tick_params(labelsize=6)
    title = f"Gate projections before their activation, one validation sample, step {step}"
    _name(figure, title, "channel", "token")
    return figure


def _threshold(values: Tensor, codes: Tensor, code: int, sign: float) -> float:
    """Between the largest weight with code 0 and the smallest with ±1, on one side.

    Where each row has its own threshold, the two overlap, and it is their middle.
    """
    inside = values[(codes == 0) & (values * sign >= 0)] * sign
    outer = values[codes == code] * sign
    if not len(inside):
        return sign * float(outer.min())
    return sign * (float(inside.max()) + float(outer.min())) / 2


def _panels(count: int, width: float, height: float) -> tuple[Any, Sequence[Any]]:
    """A figure with so many panels; the rest of the grid is left out."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # slow to import
    from matplotlib.figure import Figure

    columns = min(4, max(1, count))
    rows = math.ceil(count / columns)
    figure = Figure(figsize=(max(5.0, width * columns), 0.7 + height * rows), layout="constrained")
    FigureCanvasAgg(figure)
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axis in axes:
        axis.tick_params(labelsize=6.5)
    for axis in axes[count:]:
        axis.remove()
    return figure, axes[:count]


def _name(figure: Figure, title: str, x: str, y: str) -> None:
    figure.suptitle(title, fontsize=10)
    figure.supxlabel(x, fontsize=8)
    figure.supylabel(y, fontsize=8)
