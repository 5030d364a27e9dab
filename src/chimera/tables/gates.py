"""Compare proximal and SGD-L1 updates of sparse gates (SAIDL Tables 8 and 9, Figure 9, 3.6).

    min_g ½‖A g − b‖² + λ‖g‖₁

    chimera table saidl/gates [to=<folder>]

Table 8 and Figure 9 have no task gradient: A and b are zero. 8 gates start at 1, η = 0.1, λ = 0.15,
200 steps. Each proximal step subtracts ηλ = 0.015 from every gate, so all gates are zero after
⌈1/0.015⌉ = 67 steps. The subgradient step oscillates about zero for ever.

3.6 asks whether sign(0) matters (SPEC E15). With η = λ = 1/8 a step is 1/64 without rounding, so
gates that start at 1 are exactly 0 after 64 steps: with sign(0) = 0 they stay there, with ±1 they
leave by ηλ and come back at every second step. Gates that start elsewhere never land on 0, and
sign(0) is not used.

Table 9 is a LASSO problem: A [20 10] normal, b = A g_true, 5 of 10 in g_true are zero, λ = 0.1,
η = 0.01, 500 steps from a normal g.

Each update is computed twice: by the adapter's gate under torch's SGD and autograd, and by the
formulas in NumPy, which share no code with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from chimera.adapter.sora import Gate, SignAtZero
from chimera.report import style
from chimera.tables import Grid, place, publish

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Array = NDArray[np.float64]
Update = Literal["proximal", "sgd_l1"]
UPDATES: tuple[Update, ...] = ("proximal", "sgd_l1")
#: Updates of 3.6, with the values of sign(0); the proximal update has no use for it.
CONVENTIONS: dict[str, tuple[Update, SignAtZero | None]] = {
    "proximal": ("proximal", None),
    "sgd_l1, sign(0) = 0": ("sgd_l1", None),
    "sgd_l1, sign(0) = 1": ("sgd_l1", 1),
    "sgd_l1, sign(0) = −1": ("sgd_l1", -1),
}
#: What the paper prints: step at which all gates are zero, gates left; zeros of the LASSO problem.
TABLE_8 = {"proximal": "67, 0", "sgd_l1": "never, 8"}
TABLE_9 = {"proximal": "5", "sgd_l1": "0"}
#: Of the LASSO problem: rows and columns of A, zeros of g_true.
N = 20
D = 10
ZEROS = 5
#: Seeds whose zeros are counted, and the one that the table shows.
SEEDS = 10
SHOWN = 2
TABLE = "saidl/gates"


@dataclass(frozen=True)
class Problem:
    """A problem and how it is minimised.

    Args:
        A, b: of the loss, [n d] and [n].
        start: initial g [d].
        lr, l1, steps: η, λ and the number of steps.
        truth: g_true [d].
    """

    A: Array
    b: Array
    start: Array
    lr: float
    l1: float
    steps: int
    truth: Array

    def loss(self, g: Array) -> float:
        """The objective at g [d]."""
        return float(0.5 * np.square(self.A @ g - self.b).sum() + self.l1 * np.abs(g).sum())

    def zeros_found(self, g: Array) -> int:
        """Number of zeros of g_true that are exactly zero in g [d]."""
        return int(((g == 0) & (self.truth == 0)).sum())


def without_task(start: Array, lr: float = 0.1, l1: float = 0.15) -> Problem:
    """The problem of Table 8: gates [d] that only the penalty moves."""
    d = len(start)
    return Problem(np.zeros((1, d)), np.zeros(1), start, lr, l1, 200, np.zeros(d))


def lasso(seed: int) -> Problem:
    """The problem of Table 9, drawn by a seed."""
    random = np.random.default_rng(seed)
    A = random.normal(size=(N, D))
    truth = random.uniform(0.5, 1.0, D) * random.choice([-1.0, 1.0], D)
    truth[random.permutation(D)[:ZEROS]] = 0.0
    return Problem(A, A @ truth, random.normal(size=D), 0.01, 0.1, 500, truth)


def by_numpy(p: Problem, update: Update, sign_at_zero: SignAtZero | None = None) -> Array:
    """g before and after each step [steps + 1, d], by the formulas."""
    path = [p.start]
    for _ in range(p.steps):
        g = path[-1]
        gradient = p.A.T @ (p.A @ g - p.b)
        if update == "proximal":
            z = g - p.lr * gradient
            path.append(np.sign(z) * np.maximum(np.abs(z) - p.lr * p.l1, 0.0))
        else:
            sign = np.where(g == 0, sign_at_zero or 0, np.sign(g))
            path.append(g - p.lr * (gradient + p.l1 * sign))
    return np.stack(path)


def by_torch(p: Problem, update: Update, sign_at_zero: SignAtZero | None = None) -> Array:
    """g before and after each step [steps + 1, d], by an adapter's gate, SGD and autograd."""
    A = torch.from_numpy(p.A)
    b = torch.from_numpy(p.b)
    start = torch.from_numpy(p.start.copy())
    gate = Gate(
        start, update=update, threshold="lr_lambda", l1=p.l1, xi=0.0, penalty=0.0,
        sign_at_zero=sign_at_zero,
    )  # fmt: skip
    optimizer = torch.optim.SGD(gate.parameters(), lr=p.lr)
    path = [p.start]
    for _ in range(p.steps):
        optimizer.zero_grad()
        (0.5 * (A @ gate.g - b).square().sum()).backward()
        gate.before_step(len(p.start))
        optimizer.step()
        gate.after_step(p.lr)
        path.append(gate.g.detach().numpy().copy())
    return np.stack(path)


def first_all_zero(path: Array) -> int | None:
    """First step after which all gates are zero; None if there is none."""
    all_zero = np.flatnonzero((path == 0).all(axis=1))
    return int(all_zero[0]) if len(all_zero) else None


def step_by_step(p: Problem) -> Grid:
    """Table 8: when the gates are zero."""
    body = []
    for update in UPDATES:
        path = by_torch(p, update)
        gap = np.abs(path - by_numpy(p, update)).max()
        left = str(np.count_nonzero(path[-1]))
        step = _step(path)
        body.append([update, step, left, _size(path[-1]), f"{gap:.0e}", TABLE_8[update]])
    head = ["update", "all zero at step", "gates left", "largest gate left", "max |numpy − torch|"]
    title = f"Table 8: r = {len(p.start)}, η = {p.lr}, λ = {p.l1}, {p.steps} steps"
    return Grid("gates", title, [*head, "paper"], body)


def at_zero(p: Problem, elsewhere: Problem) -> Grid:
    """3.6: what sign(0) changes for gates that land on zero, and for gates that do not.

    Args:
        p: whose gates start at a multiple of ηλ.
        elsewhere: whose gates do not.
    """
    body = []
    for name, (update, sign) in CONVENTIONS.items():
        path = by_torch(p, update, sign)
        landed = first_all_zero(path)
        later = path[(landed or 0) + 1 :]
        at_rest = int((later == 0).all(axis=1).sum())
        moved = np.abs(by_torch(elsewhere, update, sign) - by_torch(elsewhere, update)).max()
        body.append(
            [name, _step(path), _size(later[0]), f"{at_rest} of {len(later)}", f"{moved:g}"]
        )
    head = ["update", "all zero at step", "largest gate at the next", "later steps with all zero"]
    head += ["change by sign(0), other gates"]
    title = f"Section 3.6: gates from 1, η = λ = {p.lr}, {p.steps} steps; other gates: from N(0, 1)"
    return Grid("sign_at_zero", title, head, body)


def solutions(p: Problem) -> Grid:
    """Table 9: exact zeros and the loss, by both implementations."""
    body = []
    for update in UPDATES:
        reference = by_numpy(p, update)[-1]
        for name, g in (("NumPy", reference), ("torch", by_torch(p, update)[-1])):
            gap = "ref" if g is reference else f"{np.abs(g - reference).max():.0e}"
            zeros = (int((g == 0).sum()), int((np.abs(g) < 1e-6).sum()))
            body.append([update, name, *map(str, zeros), f"{p.loss(g):.4e}", gap, TABLE_9[update]])
    head = ["update", "by", "exact zeros", "|g| < 1e-6", "loss", "‖numpy − torch‖∞", "zeros, paper"]
    title = f"Table 9: n = {N}, d = {D}, λ = {p.l1}, η = {p.lr}, {p.steps} steps, seed {SHOWN}"
    return Grid("lasso", title, head, body)


def by_seed() -> Grid:
    """Zeros of g_true that are exactly zero, for several problems."""
    problems = [lasso(seed) for seed in range(SEEDS)]
    body = [
        [update, *(str(p.zeros_found(by_torch(p, update)[-1])) for p in problems)]
        for update in UPDATES
    ]
    title = f"Exact zeros by seed, of {ZEROS}"
    return Grid("lasso_seeds", title, ["update", *map(str, range(SEEDS))], body)


def _step(path: Array) -> str:
    step = first_all_zero(path)
    return "never" if step is None else str(step)


def _size(g: Array) -> str:
    return f"{np.abs(g).max():.4g}"


def main(arguments: Sequence[str]) -> None:
    """Print and write the tables and figures."""
    folder = place(TABLE, arguments)
    paper = without_task(np.ones(8))
    landing = without_task(np.ones(8), 0.125, 0.125)
    elsewhere = without_task(np.random.default_rng(0).normal(size=8), 0.125, 0.125)
    shown = lasso(SHOWN)
    grids = [step_by_step(paper), at_zero(landing, elsewhere), solutions(shown), by_seed()]
    publish(TABLE, grids, {"gates": draw(paper, landing), "lasso": draw_lasso(shown)}, folder)


def draw(paper: Problem, landing: Problem) -> Figure:
    """The largest gate against steps: Figure 9, and 3.6 around the step at which gates land."""
    figure = style.empty(11, 4)
    left, right = figure.subplots(1, 2)
    for number, update in enumerate(UPDATES):
        _line(left, np.abs(by_torch(paper, update)).max(axis=1), number, update)
    left.set_yscale("symlog", linthresh=1e-3)
    left.set_title("Figure 9: gates from 1, ηλ = 0.015", fontsize=10)
    left.set_ylabel("largest |gate|")
    for number, (name, (update, sign)) in enumerate(CONVENTIONS.items()):
        _line(right, by_torch(landing, update, sign)[:, 0], number, name)
    right.set_xlim(58, 78)
    right.set_ylim(-0.03, 0.1)
    right.set_title("Section 3.6: gates from 1, ηλ = 1/64", fontsize=10)
    right.set_ylabel("gate")
    return _finished(figure)


def draw_lasso(p: Problem) -> Figure:
    """Table 9: distance of the loss to the lowest one, and the gates that should be zero."""
    figure = style.empty(11, 4)
    left, right = figure.subplots(1, 2)
    paths = {update: by_torch(p, update) for update in UPDATES}
    lowest = min(p.loss(g) for path in paths.values() for g in path)
    for number, (update, path) in enumerate(paths.items()):
        _line(left, np.array([p.loss(g) - lowest for g in path]), number, update)
        _line(right, np.abs(path[:, p.truth == 0]).max(axis=1), number, update)
    left.set_yscale("log")
    left.set_ylim(bottom=1e-12)  # rounding below
    left.set_ylabel("loss − lowest loss")
    right.set_yscale("symlog", linthresh=1e-6)
    right.set_ylabel("largest |g| where g_true = 0")
    figure.suptitle("Table 9: LASSO", fontsize=11)
    return _finished(figure)


def _line(axis: Axes, values: Array, number: int, label: str) -> None:
    axis.plot(values, label=label, linewidth=1.4, **(style.line(number) | {"marker": ""}))


def _finished(figure: Figure) -> Figure:
    for axis in figure.axes:
        axis.set_xlabel("step")
        axis.legend(frameon=False, fontsize=8.5)
        style.tidy(axis)
    return figure
