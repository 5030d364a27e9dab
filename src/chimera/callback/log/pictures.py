"""Pictures of a model at validation: activations.png, weights.png, maps.png, gates.png.

They are in the run's directory, and with every logger that has a method
`show_picture(key, file, step)`.
Hooks are on the modules for the batch that is drawn only, so training is not slower.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import lightning.pytorch as pl
import torch
from jaxtyping import Float
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor, nn

from chimera.contract import Context, Mixer, Norm, Ternary
from chimera.safe_io import replacing
from chimera.types import NonNegativeInt, PositiveInt

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Fewest tokens of a sample from which a map is drawn.
SHORTEST = 4
#: Values of a norm's output that a histogram is made of.
VALUES = 50_000
#: Random directions of the outputs whose gradients are averaged.
DIRECTIONS = 4
#: Panels of a picture; of more modules some are drawn, evenly.
PANELS = 12
#: Channels of a gate that are drawn.
CHANNELS = 48
#: Codes −1, 0, 1: Okabe and Ito's blue, grey and vermilion.
CODES = {-1: "#0072B2", 0: "0.6", 1: "#D55E00"}
Value = TypeVar("Value")


class Pictures(Callback):
    """Draws the final validation, and others on demand; changes no number of the run.

    The first batch of a validation that is drawn has hooks; all other batches, and training, have
    none. Runs on several processes and compiled models are not drawn.

    Args:
        every: also draw each n-th validation during training; None draws the final one only.
        shortest: fewest optimiser steps of a run that is drawn.
        tokens: of a validation sample that maps show.
    """

    def __init__(
        self,
        *,
        every: PositiveInt | None = None,
        shortest: NonNegativeInt = 100,
        tokens: PositiveInt = 48,
    ) -> None:
        self.every = every
        self.shortest = shortest
        self.tokens = tokens
        self._validations = 0
        self._captured: Captured | None = None

    def on_validation_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:  # fmt: skip
        if batch_idx == dataloader_idx == 0 and self._is_due(trainer, pl_module):
            self._captured = Captured(_model(pl_module), self.tokens)

    def on_validation_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any
    ) -> None:
        if self._captured is None:
            return
        captured = self._captured
        self._captured = None
        captured.release()
        total = int(getattr(pl_module, "total_steps", 0))
        step = total if _is_final(trainer) else trainer.global_step
        for name, figure in self._figures(captured, pl_module, step):
            file = Path(trainer.default_root_dir) / f"{name}.png"
            with replacing(file) as new:
                figure.savefig(new, dpi=110, format="png", metadata={"Software": None})
            for logger in trainer.loggers:
                if show := getattr(logger, "show_picture", None):
                    show(f"pictures/{name}", file, step)

    def on_exception(self, trainer: pl.Trainer, pl_module: Any, exception: BaseException) -> None:
        if self._captured is not None:
            self._captured.release()
            self._captured = None

    def _is_due(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> bool:
        steps = getattr(pl_module, "total_steps", 0)
        compiled = getattr(pl_module, "compiled", False)
        if trainer.world_size > 1 or compiled or steps < self.shortest or trainer.sanity_checking:
            return False
        if find_spec("matplotlib") is None:  # on a lent machine, say: `make gpu` carries none
            return False
        if _is_final(trainer):
            return True
        self._validations += 1
        return self.every is not None and self._validations % self.every == 0

    def _figures(
        self, captured: Captured, pl_module: pl.LightningModule, step: int
    ) -> Iterator[tuple[str, Figure]]:
        if captured.norms:
            yield "activations", draw_activations(captured.norms, step)
        if layers := ternary_weights(_model(pl_module)):
            yield "weights", draw_weights(layers, step)
        shares = {
            name: influence(mixer, x)
            for name, (mixer, x) in evenly(captured.mixers, PANELS - 1).items()
            if len(x) >= SHORTEST
        }
        if shares:
            yield "maps", draw_maps(shares, step)
        if captured.gates:
            yield "gates", draw_gates(captured.gates, step)


def _model(pl_module: pl.LightningModule) -> Any:
    return getattr(pl_module, "model", pl_module)


def _is_final(trainer: pl.Trainer) -> bool:
    """Whether this is the validation after training."""
    return trainer.state.fn == TrainerFn.VALIDATING


class Captured:
    """What a model does in one batch, by the module's name, on the CPU and in float32.

    Its hooks are on the model until `release`. It has some values of each norm's output, without
    padding, [n]; the output of each layer with the role `gate`, for the first sample, [t c]; and
    each mixer of a block with its input, for the first sample without padding, [t d].

    Args:
        model: to watch.
        tokens: of a sample that are kept.
    """

    def __init__(self, model: nn.Module, tokens: int) -> None:
        self.tokens = tokens
        self.norms: dict[str, Tensor] = {}
        self.gates: dict[str, Tensor] = {}
        self.mixers: dict[str, tuple[Mixer, Tensor]] = {}
        self._hooks: list[Any] = []
        outer = mixers_of(model)
        for name, module in model.named_modules():
            if isinstance(module, Norm):
                self._hooks.append(module.register_forward_hook(partial(self._on_norm, name)))
            elif getattr(module, "role", None) == "gate":
                self._hooks.append(module.register_forward_hook(partial(self._on_gate, name)))
            if name in outer:
                self._hooks.append(module.register_forward_pre_hook(partial(self._on_mixer, name)))

    def release(self) -> None:
        """Take the hooks off."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def _on_norm(self, name: str, _: nn.Module, inputs: Any, output: Tensor) -> None:
        if name in self.norms:  # of an earlier traversal of the stack
            return
        mask = inputs[1] if len(inputs) > 1 else None
        values = (output if mask is None else output[mask]).reshape(-1)
        stride = max(1, values.numel() // VALUES)
        kept = values[::stride].detach().float().cpu()
        if len(kept := kept[kept.isfinite()]):
            self.norms[name] = kept

    def _on_gate(self, name: str, _: nn.Module, inputs: Any, output: Tensor) -> None:
        if name not in self.gates and output.ndim == 3:
            self.gates[name] = output[0, : self.tokens].detach().float().cpu()

    def _on_mixer(self, name: str, module: nn.Module, inputs: Any) -> None:
        # A mixer inside another library's model may be called otherwise.
        if name not in self.mixers and len(inputs) > 1 and isinstance(inputs[1], Context):
            x = inputs[0][0]
            mask = inputs[1].mask
            first = x if mask is None else x[mask[0]]
            assert isinstance(module, Mixer)
            self.mixers[name] = module, first[: self.tokens].detach()


def mixers_of(model: nn.Module) -> dict[str, Mixer]:
    """Mixers that are not inside another one, by name."""
    found: dict[str, Mixer] = {}
    for name, module in model.named_modules():
        inside = any(name.startswith(f"{outer}.") for outer in found)
        if isinstance(module, Mixer) and not inside:
            found[name] = module
    return found


def influence(mixer: Mixer, x: Float[Tensor, "t d"]) -> Float[Tensor, "t t"]:
    """How much each input token (column) moves each output token (row); every row has the sum 1.

    It is ‖∂y_t/∂x_s‖, estimated with a few random directions of y. For softmax attention it is
    close to the weights, and it is defined alike for every mixer. All rows come from one batch, in
    which sample t keeps the gradient of output t.

    Args:
        mixer: of a block, in evaluation mode; its parameters get no gradient.
        x: its inputs of one sample, without padding.
    """
    length = len(x)
    parameter = next(mixer.parameters(), x)
    with torch.inference_mode(False), torch.enable_grad():
        rows = x.to(parameter.dtype).clone().expand(length, -1, -1).clone().requires_grad_()
        at = torch.arange(length, device=x.device)
        y = mixer(rows, Context(pos=at[None])).y[at, at]
        draws = torch.Generator().manual_seed(0)  # not torch's own, which training draws from
        total = torch.zeros(length, length, device=x.device)
        for _ in range(DIRECTIONS):
            direction = torch.randn(y.shape[-1], generator=draws).to(y)
            (gradient,) = torch.autograd.grad((y * direction).sum(), rows, retain_graph=True)
            total += gradient.float().square().sum(-1)
        sizes = total.sqrt().nan_to_num(0.0, 0.0)
        return (sizes / sizes.sum(-1, keepdim=True).clamp(min=1e-30)).cpu()


def by_distance(shares: Float[Tensor, "t t"]) -> Float[Tensor, " t"]:
    """Mean influence of the token n places before, n = 0 …; NaN where no row has one."""
    length = len(shares)
    return torch.stack([shares.diagonal(-n).mean() for n in range(length)])


@torch.no_grad()
def ternary_weights(model: nn.Module) -> dict[str, tuple[Tensor, Tensor]]:
    """Latent weights over their scale, [n], and their codes −1, 0, 1, of each ternary layer."""
    found = {}
    for name, module in model.named_modules():
        weight = getattr(module, "weight", None)
        if isinstance(module, Ternary) and isinstance(weight, nn.Parameter):
            codes, scale = module.ternary()
            values = (weight.float() / scale.float().clamp(min=1e-30)).reshape(-1)
            stride = max(1, values.numel() // VALUES)
            found[name] = values[::stride].cpu(), codes.reshape(-1)[::stride].cpu()
    return found


def evenly(values: Mapping[str, Value], most: int = PANELS) -> dict[str, Value]:
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


def draw_activations(norms: Mapping[str, Tensor], step: int) -> Figure:
    """Histograms of what comes out of each norm, with standard deviation and largest size."""
    shown = evenly(norms)
    figure, axes = _panels(shown, 2.6, 1.9)
    for axis, values in zip(axes, shown.values(), strict=True):
        reach = max(float(values.abs().quantile(0.9995)), 1e-6)
        axis.hist(values.clamp(-reach, reach).numpy(), bins=80, density=True, color="#0072B2")
        axis.set_yscale("log")
        note = f"std {float(values.std()):.2f}\nlargest {float(values.abs().max()):.1f}"
        axis.text(0.97, 0.95, note, transform=axis.transAxes, fontsize=7, va="top", ha="right")
        # Room for the note above the data.
        low, high = axis.get_ylim()
        axis.set_ylim(low, high * (high / low) ** 0.35)
    return _named(figure, f"Activations after norms, step {step}", "value", "density")


def draw_weights(layers: Mapping[str, tuple[Tensor, Tensor]], step: int) -> Figure:
    """Histograms of latent weights over their scale, by their codes; dashed: the thresholds."""
    shown = evenly(layers)
    figure, axes = _panels(shown, 2.6, 1.9)
    for axis, (name, (values, codes)) in zip(axes, shown.items(), strict=True):
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
    return _named(figure, title, "weight over its scale; dashed: thresholds", "weights")


def draw_maps(shares: Mapping[str, Float[Tensor, "t t"]], step: int) -> Figure:
    """Influence of tokens on each other in each mixer, and how it decays with the distance."""
    shown = evenly(shares, PANELS - 1)
    figure, (*axes, decay) = _panels([*shown, "mean share by distance"], 2.9, 2.7)
    image = None
    # Of diffuse maps the largest share is a few per cent.
    top = max(1e-6, *(float(map_.sqrt().quantile(0.995)) for map_ in shown.values()))
    for number, (axis, (name, map_)) in enumerate(zip(axes, shown.items(), strict=True)):
        # The square root shows small influences too.
        image = axis.imshow(map_.sqrt().numpy(), cmap="magma", vmin=0.0, vmax=top)
        axis.set_xlabel("input token", fontsize=7)
        axis.set_ylabel("output token", fontsize=7)
        curve = by_distance(map_).clamp(min=1e-8).numpy()
        colour = f"C{number}" if len(shown) <= 10 else None
        decay.plot(curve, lw=1.2, color=colour, label=words(name))
    decay.set_yscale("log")
    decay.set_ylim(1e-5, 1.5)
    decay.set_xlabel("tokens back", fontsize=7)
    decay.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=4, fontsize=7, frameon=False)
    if image is not None:
        bar = figure.colorbar(image, ax=axes, shrink=0.7, pad=0.01)
        bar.set_label("share of a row's influence, square root", fontsize=7)
        bar.ax.tick_params(labelsize=7)
    figure.suptitle(f"Which input moves which output, by mixer, step {step}", fontsize=10)
    return figure


def draw_gates(outputs: Mapping[str, Float[Tensor, "t c"]], step: int) -> Figure:
    """Outputs of the layers that make gates and decays, by token and channel."""
    shown = evenly(outputs)
    figure, axes = _panels(shown, 2.9, 2.1)
    for axis, values in zip(axes, shown.values(), strict=True):
        part = values[:, :: max(1, -(-values.shape[1] // CHANNELS))]
        reach = max(float(part.abs().quantile(0.99)), 1e-6)
        image = axis.imshow(part.numpy(), cmap="RdBu_r", vmin=-reach, vmax=reach, aspect="auto")
        figure.colorbar(image, ax=axis, pad=0.02).ax.tick_params(labelsize=6)
    title = f"Gate projections before their activation, one validation sample, step {step}"
    return _named(figure, title, "channel", "token")


def _threshold(values: Tensor, codes: Tensor, code: int, sign: float) -> float:
    """Between the largest weight with code 0 and the smallest with ±1, on one side.

    Where each row has its own threshold, the two overlap, and it is their middle.
    """
    inside = values[(codes == 0) & (values * sign >= 0)] * sign
    outer = values[codes == code] * sign
    if not len(inside):
        return sign * float(outer.min())
    return sign * (float(inside.max()) + float(outer.min())) / 2


def _panels(names: Collection[str], width: float, height: float) -> tuple[Any, list[Any]]:
    """A figure with a titled panel for each module; the rest of the grid is left out."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # slow to import
    from matplotlib.figure import Figure

    columns = min(4, max(1, len(names)))
    rows = math.ceil(len(names) / columns)
    figure = Figure(figsize=(max(5.0, width * columns), 0.7 + height * rows), layout="constrained")
    FigureCanvasAgg(figure)
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axis in axes[len(names) :]:
        axis.remove()
    for axis, name in zip(axes, names, strict=False):
        axis.tick_params(labelsize=6.5)
        axis.set_title(words(name), fontsize=8)
    return figure, axes[: len(names)]


def _named(figure: Figure, title: str, x: str, y: str) -> Figure:
    figure.suptitle(title, fontsize=10)
    figure.supxlabel(x, fontsize=8)
    figure.supylabel(y, fontsize=8)
    return figure
