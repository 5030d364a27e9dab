"""Recurrences in bf16: our chunkwise form and flash-linear-attention's kernels, time and error.

Shapes are those of a decoder of 12 heads of 64 at 16 × 1024 tokens. Errors, of outputs and
gradients (‖got − want‖/‖want‖), are against the parallel form in float64 on the CPU, on the same
numbers rounded to bf16, at 2 × 256 tokens.

Triton 3.4 to 3.7.0 on Hopper computes gradients of decays of tokens wrongly in tiles of 64
channels, and the library refuses them: `narrow` has tiles of 32, `wide` those of 64 all the same.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.gpu.job import Setting, reason
from chimera.ops import channels, decay, delta, dplr, ssd

HEADS, WIDTH = 12, 64
#: (batch, tokens) of errors and of times.
SMALL, LARGE = (2, 256), (16, 1024)
#: Functions of the library by mixer.
NAMES = {"gated_delta": "gated_delta_rule", "delta": "delta_rule", "kda": "kda",
         "retnet": "simple_gla", "gla": "gla", "mamba2": "simple_gla"}  # fmt: skip
Inputs = dict[str, Tensor]


def draw(name: str, batch: int, tokens: int) -> Inputs:
    """Inputs of a mixer, as its projections give them at initialisation, rounded to bf16."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(batch, HEADS, tokens, *shape, generator=generator)

    found = {name: F.normalize(normal(WIDTH), dim=-1) for name in "qk"} | {"v": normal(WIDTH)}
    if name == "mamba2":  # all heads share queries and keys
        found |= {name: found[name][:, :1] for name in "qk"}
    if "delta" in name or name == "kda":
        found["beta"] = normal().sigmoid()
    if name in ("gated_delta", "mamba2"):
        found["g"] = -0.1 * F.softplus(normal())
    if name in ("kda", "gla"):
        found["g"] = F.logsigmoid(normal(WIDTH) + 2.0) / 16
    return {key: x.bfloat16() for key, x in found.items()}


def ours(name: str, x: Inputs, *, whole: bool = False) -> Tensor:
    """Output of our operation; `whole`: in one chunk."""
    one: dict[str, Any] = {"chunk": channels.power_of_two(x["v"].shape[2])} if whole else {}
    q, k, v, g, beta = (x.get(key, x["v"]) for key in ("q", "k", "v", "g", "beta"))
    if name == "retnet":
        return decay.chunkwise(q, k, v, rates(q), **one)[0]
    if name == "mamba2":
        if whole:
            return decay.chunkwise(q.expand_as(v), k.expand_as(v), v, g, **one)[0]
        return ssd.chunkwise(q, k, v, g, torch.ones_like(g))[0]
    if name == "gla":
        return channels.chunkwise(q, k, v, g, **one)[0]
    if name == "kda":
        size = beta[..., None]
        return dplr.chunkwise(q, k, size * v, -size * k * g.exp(), k, g, **one)[0]
    per_token = x.get("g")
    k, v, beta = k[..., None, :], v[..., None, :], beta[..., None, None]
    return delta.chunkwise(q, k, v, beta, per_token, **one)[0]


def theirs(name: str, x: Inputs) -> Tensor:
    """Output of the library's kernels, which have tokens before heads."""
    import fla.ops as library

    x = {
        key: y.expand(-1, HEADS, *y.shape[2:]).transpose(1, 2).contiguous() for key, y in x.items()
    }
    if "g" in x and name != "gla":
        x["g"] = x["g"].float()
    if name == "retnet":
        x["g_gamma"] = rates(x["q"])
    return getattr(library, f"chunk_{NAMES[name]}")(**x, scale=1.0)[0].transpose(1, 2)


def rates(like: Tensor) -> Tensor:
    """RetNet's log-decays of the heads."""
    exponents = torch.linspace(5, 12, HEADS, dtype=torch.float64)
    wide = torch.float64 if like.dtype == torch.float64 else torch.float32
    return torch.log1p(-(2.0**-exponents)).to(like.device, wide)


def main(setting: Setting, name: str) -> dict[str, Any]:
    """Errors and times of one recurrence."""
    os.environ["CHIMERA_FUSED"] = "0"
    exact = {key: y.double() for key, y in draw(name, *SMALL).items()}
    want = gradients(lambda x: ours(name, x, whole=True), exact)
    variants = {"ours": ""}
    if setting.device == "cuda":
        gated = name in ("gated_delta", "mamba2")  # decays of tokens
        variants |= {"fla": ""} | ({"narrow": "narrow", "wide": "wide"} if gated else {})
    rows, large = dict[str, Any](), SMALL if setting.tiny else LARGE
    timed: dict[str, tuple[Callable[[Inputs], Tensor], Inputs]] = {}
    for label, tile in variants.items():
        call = (lambda x: ours(name, x)) if label == "ours" else (lambda x: theirs(name, x))
        try:
            with tiles(tile):
                got = gradients(call, on(setting, draw(name, *SMALL)))
                rows[label] = {
                    key: float((got[key] - y).norm() / y.norm()) for key, y in want.items()
                }
                timed[label] = call, on(setting, draw(name, *large))
                gradients(*timed[label])
        except Exception as error:  # noqa: BLE001 - a refusal is a result
            rows[label] = reason(error)
            timed.pop(label, None)
    setting.ready()
    for label, (call, x) in timed.items():
        with tiles(variants[label]):
            rows[label]["forward_ms"] = 1e3 * setting.median(lambda: call(x).sum())  # noqa: B023
            rows[label]["step_ms"] = 1e3 * setting.median(lambda: call(x).sum().backward())  # noqa: B023
    return rows


def on(setting: Setting, x: Inputs) -> Inputs:
    """Leaves on the device."""
    return {key: y.to(setting.device).requires_grad_() for key, y in x.items()}


def gradients(call: Callable[[Inputs], Tensor], x: Inputs) -> Inputs:
    """Output, and gradients of its product with constants, on the CPU in float64."""
    leaves = {key: y.detach().requires_grad_() for key, y in x.items()}
    o = call(leaves)
    weights = torch.randn(o.shape, generator=torch.Generator().manual_seed(1))
    (o.double() * weights.to(o.device)).sum().backward()
    found = {"o": o.detach()} | {
        f"d{key}": y.grad for key, y in leaves.items() if y.grad is not None
    }
    return {key: y.double().cpu() for key, y in found.items()}


@contextmanager
def tiles(which: str) -> Iterator[None]:
    """Let the library compute what it refuses, in tiles of 32 channels (`narrow`) or of 64."""
    if not which:
        yield
        return
    from fla.ops.common import chunk_o

    before = chunk_o.TRITON_ABOVE_3_7_1, chunk_o.check_shared_mem
    chunk_o.TRITON_ABOVE_3_7_1 = True
    if which == "narrow":
        chunk_o.check_shared_mem = lambda *_, **__: False
    try:
        yield
    finally:
        chunk_o.TRITON_ABOVE_3_7_1, chunk_o.check_shared_mem = before
