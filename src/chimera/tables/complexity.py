"""Count what TITAN's mixers cost against the length and against Runge-Kutta steps (TITAN Table 7).

    chimera table titan/complexity [to=<folder>]

Operations are counted on tensors without numbers (`ops.flops`): FLOPs of matrix products, and one
for each number that another operation writes. The four projections cost 8 d² per token and hide a
square term up to L ≈ 2d, so a column shows the term apart. With c(L) = aL + bL²

    share of L² at 2L = 4bL² / c(2L) = 2 (c(2L) − 2 c(L)) / c(2L)

Times are of the processor, one thread, so that other programs do not count.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import torch
from hydra.utils import instantiate
from torch import Tensor, nn

from chimera.config.compose import compose, plain
from chimera.contract import Context
from chimera.model.assemble import build_model, choose
from chimera.ops.flops import Count
from chimera.tables import Grid, place, publish

TABLE = "titan/complexity"
#: Name, choice of the mixer, and what Table 7 says of training, and of a token in recurrent form.
MIXERS = {
    "retention, parallel": (["mixer=retnet", "mixer.form=parallel"], "L²d", "d²"),
    "retention, chunkwise": (["mixer=retnet", "mixer.form=chunkwise"], "", ""),
    "ODE, K = 2": (["mixer=ode", "mixer.steps=2"], "KL²d", "none"),
    "Mamba with memory": (["mixer=titan_memory", "mixer.expand=1"], "LdN", "dN"),
    "attention": (["mixer=titan_attention"], "L²d", "Ld"),
}
LENGTHS = (256, 512, 1024, 2048, 4096)
STEPS = (1, 2, 4, 8)
#: Width and heads of the counted and of the timed mixers.
WIDTH = 1024
TIMED = 256
TIMES = 5


def mixer_of(words: Sequence[str], width: int, device: str, *, causal: bool = False) -> nn.Module:
    """The mixer of a layer, without quantiser and position."""
    shape = [f"model.dim={width}", f"model.heads={width // 64}", "model.depth=1"]
    config = plain(compose([*words, *shape, "position=none", "data=pydocs"]))
    with torch.device(device):
        model = build_model(
            instantiate(config["model"], _convert_="all"),
            choose(config),
            vocab_size=8,
            causal=causal,
        )
    block: Any = model.backbone.blocks[0]
    return block.mixer


def inputs(width: int, first: int, count: int, device: str) -> tuple[Tensor, Context]:
    """Hidden states of some tokens of a sequence, and their positions."""
    pos = torch.arange(first, first + count, device=device)[None]
    return torch.randn(1, count, width, device=device), Context(pos)


def operations(words: Sequence[str], length: int, *, train: bool) -> float:
    """Operations of a pass over a sequence; of training with the backward pass."""
    mixer = mixer_of(words, WIDTH, "meta").train(train)
    x, ctx = inputs(WIDTH, 0, length, "meta")
    with Count() as counter, torch.set_grad_enabled(train):
        out = mixer(x, ctx)
        if train:
            out.y.sum().backward()
    return counter.products + counter.elementwise


@torch.no_grad()
def of_a_token(words: Sequence[str], length: int) -> tuple[float, int]:
    """Operations of a token after `length` others in recurrent form, and numbers of the state."""
    mixer = mixer_of(words, WIDTH, "meta", causal=True).eval()
    state = mixer(*inputs(WIDTH, 0, length, "meta"), mixer.init_state(1)).state  # type: ignore[operator]
    with Count() as counter:
        mixer(*inputs(WIDTH, length, 1, "meta"), state)
    return counter.products + counter.elementwise, numbers(state)


def numbers(state: object) -> int:
    """Numbers in a state."""
    if isinstance(state, Tensor):
        return state.numel()
    return sum(map(numbers, state)) if isinstance(state, tuple) else 0


def seconds(words: Sequence[str], length: int, *, train: bool) -> float:
    """Seconds of a processor for the same pass, the median of some."""
    mixer = mixer_of(words, TIMED, "cpu").train(train)
    x, ctx = inputs(TIMED, 0, length, "cpu")

    def work() -> None:
        with torch.set_grad_enabled(train):
            y = mixer(x, ctx).y
        if train:
            y.sum().backward()

    return _median(work)


@torch.no_grad()
def seconds_of_a_token(words: Sequence[str], length: int) -> float:
    """Seconds of a processor for a token after `length` others in recurrent form."""
    mixer = mixer_of(words, TIMED, "cpu", causal=True).eval()
    state = mixer(*inputs(TIMED, 0, length, "cpu"), mixer.init_state(1)).state  # type: ignore[operator]
    x, ctx = inputs(TIMED, length, 1, "cpu")
    return _median(lambda: mixer(x, ctx, state))


def _median(work: Callable[[], object]) -> float:
    work()
    found = []
    for _ in range(TIMES):
        start = time.process_time()
        work()
        found.append(time.process_time() - start)
    return median(found)


def by_length(*, train: bool) -> Grid:
    """Operations of each mixer against the length."""
    body = []
    for name, (words, claimed, _) in MIXERS.items():
        found = [operations(words, length, train=train) for length in LENGTHS]
        half, whole = found[-2:]
        square = 2 * (whole - 2 * half) / whole
        counts = [f"{count / 1e9:.2f}" for count in found]
        body.append([name, f"O({claimed})" if claimed else "", *counts, f"{square:.0%}"])
    name = "training" if train else "parallel"
    head = ["mixer", "paper", *(f"L = {n}" for n in LENGTHS), f"share of L² at {LENGTHS[-1]}"]
    return Grid(name, f"Billion operations of a sequence, {name}, d = {WIDTH}", head, body)


def recurrent() -> Grid:
    """Operations of a token in recurrent form, and the size of the state."""
    body = []
    for name, (words, _, claimed) in MIXERS.items():
        found = [of_a_token(words, length) for length in LENGTHS]
        counts = [f"{count / 1e6:.2f}" for count, _ in found]
        sizes = [f"{size:,}" for _, size in (found[0], found[-1])]
        paper = f"O({claimed})" if "d" in claimed else claimed
        body.append([name, paper, *counts, *sizes])
    head = ["mixer", "paper", *(f"after {n}" for n in LENGTHS)]
    head += [f"numbers of the state after {n}" for n in (LENGTHS[0], LENGTHS[-1])]
    title = f"Million operations of a token, recurrent form, d = {WIDTH}"
    return Grid("recurrent", title, head, body)


def by_steps() -> Grid:
    """Operations of the ODE against its steps."""
    words = {steps: ["mixer=ode", f"mixer.steps={steps}"] for steps in STEPS}
    body = []
    for name, train in (("parallel", False), ("training", True)):
        found = [operations(of, 512, train=train) for of in words.values()]
        relative = [f"{count / found[0]:.2f}" for count in found]
        one = operations(["mixer=ode", "mixer.steps=1"], 512, train=train)
        attention = operations(["mixer=attention"], 512, train=train)
        body.append([name, *relative, f"{one / attention:.2f}"])
    head = ["form", *(f"K = {steps}" for steps in STEPS), "K = 1, relative to attention"]
    return Grid("steps", "Operations of the ODE relative to K = 1, L = 512", head, body)


def times() -> Grid:
    """Times of each mixer against the length."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    lengths = LENGTHS[:-1]
    body = []
    for name, (words, _, _) in MIXERS.items():
        for form, train in (("parallel", False), ("training", True)):
            found = [seconds(words, length, train=train) for length in lengths]
            body.append([name, form, *(f"{1e3 * each:.1f}" for each in found)])
        found = [seconds_of_a_token(words, length) for length in lengths]
        body.append([name, "recurrent, a token", *(f"{1e3 * each:.2f}" for each in found)])
    torch.set_num_threads(threads)
    head = ["mixer", "form", *(f"L = {n}" for n in lengths)]
    return Grid("times", f"Milliseconds of a processor, d = {TIMED}, float32", head, body)


def main(arguments: Sequence[str]) -> None:
    """Print and write the tables."""
    folder = place(TABLE, arguments)
    grids = [by_length(train=False), by_length(train=True), recurrent(), by_steps(), times()]
    publish(TABLE, grids, {}, folder)
