"""Resolve `quant.compute=auto`: time the products of the model's own layers, once, before a run.

Every quantised layer's forward and backward pass runs on as many tokens as a micro-batch has, at
most `TOKENS`, with each arithmetic. One arithmetic serves the whole run: that with the least sum.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from hydra.utils import instantiate

from chimera import world
from chimera.config.init_from import causal_of
from chimera.model.assemble import check_model, choose
from chimera.rundir.measured import ARITHMETICS, chosen, is_open
from chimera.train.console import say
from chimera.train.precision import device_of_fp16
from chimera.train.trainer import trainer_settings

TOKENS, ROUNDS = 4096, 3
#: An arithmetic whose first pass takes so many times the best one's is not timed again.
HOPELESS = 3.0
HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}


def resolved(config: dict[str, Any]) -> dict[str, Any]:
    """The configuration with an arithmetic in place of `auto`; says in one line which, and why.

    Args:
        config: checked.
    """
    if not is_open(config):
        return config
    choices = choose(config, adapter=False)
    if obstacle := getattr(choices.quant, "obstacle", ""):
        say(f"quant.compute=auto is simulate: {obstacle}")
        return chosen(config, "simulate", {})
    seconds = measure(config, shapes(config, choices))
    best = min(seconds, key=lambda name: seconds[name])
    times = ", ".join(f"{name} {1e3 * s:.1f}" for name, s in seconds.items())
    say(f"quant.compute=auto is {best} (ms of a micro-batch's products: {times})")
    return chosen(config, best, seconds)


def shapes(config: dict[str, Any], choices: Any) -> Counter[tuple[int, int]]:
    """Number of quantised layers by (d_in, d_out), each loop counted."""
    settings = instantiate(config["model"], _convert_="all")
    model = check_model(settings, choices, causal=causal_of(config["task"]))
    layers = (m for m in model.modules() if hasattr(m, "compute") and hasattr(m, "rule"))
    loops = getattr(settings, "loops", 1)
    found: Counter[tuple[int, int]] = Counter()
    for layer in layers:
        found[layer.in_features, layer.out_features] += loops  # type: ignore[index]
    return found


def measure(config: dict[str, Any], layers: Counter[tuple[int, int]]) -> dict[str, float]:
    """Seconds of the products of all layers by arithmetic.

    Args:
        config: checked.
        layers: number of layers by (d_in, d_out).
    """
    trainer_settings(config)  # sets the number of threads
    gpu = torch.cuda.is_available() and config["trainer"]["accelerator"] != "cpu"
    device = torch.device("cuda" if gpu else "cpu")
    if config["precision"] == "fp16":
        device = torch.device(device_of_fp16(config["trainer"]["accelerator"]))
    length = getattr(instantiate(config["model"], _convert_="all"), "max_len", 128)
    tokens = min(TOKENS, max(1, config["data"]["batch_size"] // world.world_size()) * length)
    total = dict.fromkeys(ARITHMETICS, 0.0)
    for (d_in, d_out), count in layers.items():
        best = float("inf")
        for compute in ARITHMETICS:
            node = {**config["quant"], "compute": compute}
            layer = instantiate(node, _convert_="all").linear(d_in, d_out, bias=False, role="up")
            x = torch.randn(tokens, d_in, device=device, requires_grad=True)
            half = HALF.get(config["precision"])
            found = timed(once(layer.to(device), x, half), best)
            best, total[compute] = min(best, found), total[compute] + count * found
    return total


def once(layer: Any, x: torch.Tensor, half: torch.dtype | None) -> Callable[[], None]:
    """A function that runs a layer forward and backward."""

    def run() -> None:
        with torch.autocast(x.device.type, half, enabled=half is not None):
            y = layer(x)
        y.backward(torch.ones_like(y))
        if x.is_cuda:
            torch.cuda.synchronize()

    return run


def timed(run: Callable[[], None], best: float) -> float:
    """Least seconds of a few runs after one; of the first one, if it is hopeless."""
    seconds = []
    for _ in range(1 + ROUNDS):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
        if seconds[0] > HOPELESS * best:
            return seconds[0]
    return min(seconds[1:])
