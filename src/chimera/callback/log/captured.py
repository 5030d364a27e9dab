"""What a model does in one validation batch: outputs of norms and gates, inputs of mixers.

Hooks are on the modules for this batch only, so training is not slower.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from chimera.contract import Ctx, Mixer, Norm, Packable

#: Values of a norm's output that a histogram is made of.
VALUES = 50_000
#: Random directions of the outputs whose gradients are averaged.
DIRECTIONS = 4


@dataclass
class Captured:
    """Tensors of one batch by the module's name, on the CPU, in float32.

    Args:
        norms: some values of each norm's output, without padding, [n].
        gates: output of each layer with the role `gate`, for the first sample, [t c].
        mixers: input of each mixer of a block, for the first sample without padding, [t d].
        tokens: of a sample that are kept.
    """

    tokens: int
    norms: dict[str, Tensor] = field(default_factory=dict)
    gates: dict[str, Tensor] = field(default_factory=dict)
    mixers: dict[str, tuple[Mixer, Tensor]] = field(default_factory=dict)
    _hooks: list[Any] = field(default_factory=list)

    def watch(self, model: nn.Module) -> None:
        """Put hooks on the model's parts; `release` takes them off."""
        outer = mixers_of(model)
        for name, module in model.named_modules():
            if isinstance(module, Norm):
                self._hooks.append(module.register_forward_hook(self._on_norm(name)))
            elif getattr(module, "role", None) == "gate":
                self._hooks.append(module.register_forward_hook(self._on_gate(name)))
            if name in outer:
                self._hooks.append(module.register_forward_pre_hook(self._on_mixer(name)))

    def release(self) -> None:
        """Take the hooks off."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def _on_norm(self, name: str) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: Any, output: Tensor) -> None:
            if name in self.norms:  # of an earlier traversal of the stack
                return
            mask = inputs[1] if len(inputs) > 1 else None
            values = (output if mask is None else output[mask]).reshape(-1)
            stride = max(1, values.numel() // VALUES)
            kept = values[::stride].detach().float().cpu()
            if len(kept := kept[kept.isfinite()]):
                self.norms[name] = kept

        return hook

    def _on_gate(self, name: str) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: Any, output: Tensor) -> None:
            if name not in self.gates and output.ndim == 3:
                self.gates[name] = output[0, : self.tokens].detach().float().cpu()

        return hook

    def _on_mixer(self, name: str) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: Any) -> None:
            # A mixer inside another library's model may be called otherwise.
            if name not in self.mixers and len(inputs) > 1 and isinstance(inputs[1], Ctx):
                x, mask = inputs[0], inputs[1].mask
                first = x[0] if mask is None else x[0][mask[0]]
                assert isinstance(module, Mixer)
                self.mixers[name] = module, first[: self.tokens].detach()

        return hook


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
        y = mixer(rows, Ctx(pos=at[None])).y[at, at]
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
        if isinstance(module, Packable) and isinstance(weight, nn.Parameter):
            codes, scale = module.ternary()
            values = (weight.float() / scale.float().clamp(min=1e-30)).reshape(-1)
            stride = max(1, values.numel() // VALUES)
            found[name] = values[::stride].cpu(), codes.reshape(-1)[::stride].cpu()
    return found
