"""Compare proximal and SGD-L1 updates of sparse gates (SAIDL Tables 8 and 9, Figure 9).

    min_g ½‖A g − b‖² + λ‖g‖₁

    python -m chimera.tables.gates [to=<folder>]

Table 8 and Figure 9 have no task gradient: A and b are zero. 8 gates start at 1, η = 0.1, λ = 0.15,
200 steps. Each proximal step subtracts ηλ = 0.015 from every gate, so all gates are zero after
⌈1/0.015⌉ = 67 steps. The subgradient step oscillates about zero for ever.

Table 9 is a LASSO problem: A [20 10] normal, b = A g_true, 5 of 10 in g_true are zero, λ = 0.1,
η = 0.01, 500 steps from a normal g. The paper states neither a seed nor the size of g_true: here
|g_true| is in [0.5, 1] where it is not zero. The number of zeros of the minimiser depends on A. The
table uses the first seed whose minimiser has all five zeros, as in the paper. The zeros of ten
seeds are printed below it: the proximal update has the zeros of the minimiser in all of them,
whether 3, 4 or 5.

Each update is computed twice: by the adapter's gate under torch's SGD and autograd, and by the
formulas in NumPy, which share no code with it.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from chimera.adapter.sora import Gate
from chimera.config.arguments import read
from chimera.report.formatting import show_grid
from chimera.safe_io import replacing
from chimera.tables import run

Array = NDArray[np.float64]
Update = Literal["proximal", "sgd_l1"]
UPDATES: tuple[Update, ...] = ("proximal", "sgd_l1")
#: Of the LASSO problem: rows and columns of A, zeros of g_true.
N = 20
D = 10
ZEROS = 5
#: Seeds whose zeros are counted, and the one that the table shows.
SEEDS = 10
SHOWN = 2
USAGE = "python -m chimera.tables.gates [to=<folder>]"


@dataclass(frozen=True)
class Options:
    """Options of the command line.

    Args:
        to: folder for the tables' files; None: only print the tables.
    """

    to: Path | None = None


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


def without_task(start: Array) -> Problem:
    """The problem of Table 8: gates [d] that only the penalty moves."""
    d = len(start)
    return Problem(np.zeros((1, d)), np.zeros(1), start, 0.1, 0.15, 200, np.zeros(d))


def lasso(seed: int) -> Problem:
    """The problem of Table 9, drawn by a seed."""
    random = np.random.default_rng(seed)
    A = random.normal(size=(N, D))
    truth = random.uniform(0.5, 1.0, D) * random.choice([-1.0, 1.0], D)
    truth[random.permutation(D)[:ZEROS]] = 0.0
    return Problem(A, A @ truth, random.normal(size=D), 0.01, 0.1, 500, truth)


def by_numpy(p: Problem, update: Update) -> Array:
    """g before and after each step [steps + 1, d], by the formulas."""
    path = [p.start]
    for _ in range(p.steps):
        g = path[-1]
        gradient = p.A.T @ (p.A @ g - p.b)
        if update == "proximal":
            z = g - p.lr * gradient
            path.append(np.sign(z) * np.maximum(np.abs(z) - p.lr * p.l1, 0.0))
        else:
            path.append(g - p.lr * (gradient + p.l1 * np.sign(g)))
    return np.stack(path)


def by_torch(p: Problem, update: Update) -> Array:
    """g before and after each step [steps + 1, d], by an adapter's gate, SGD and autograd."""
    A = torch.from_numpy(p.A)
    b = torch.from_numpy(p.b)
    start = torch.from_numpy(p.start.copy())
    gate = Gate(start, update=update, threshold="lr_lambda", l1=p.l1, xi=0.0, penalty=0.0)
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


def main(arguments: Sequence[str]) -> None:
    """Print both tables; write them to `to=` if given."""
    to = read(Options, arguments, USAGE).to
    still = without_task(np.ones(8))
    rows = []
    paths = {update: by_torch(still, update) for update in UPDATES}
    for update, path in paths.items():
        gap = np.abs(path - by_numpy(still, update)).max()
        step = first_all_zero(path)
        left = f"{np.count_nonzero(path[-1])} of {len(still.start)}"
        rows.append((update, "never" if step is None else str(step), left, f"{gap:.1e}"))
    head: tuple[str, ...] = ("update", "all zero at step", "gates left", "max |numpy − torch|")
    show_grid(
        f"r={len(still.start)}, lr={still.lr}, λ={still.l1}, {still.steps} steps", head, (), rows
    )

    p = lasso(SHOWN)
    found = []
    for update in UPDATES:
        reference = by_numpy(p, update)[-1]
        for name, g in (("NumPy", reference), ("torch", by_torch(p, update)[-1])):
            gap = "ref" if g is reference else f"{np.abs(g - reference).max():.2e}"
            exact = int((g == 0).sum())
            near = int((np.abs(g) < 1e-6).sum())
            found.append((update, name, str(exact), str(near), f"{p.loss(g):.4e}", gap))
    head = ("update", "by", "exact zeros", "|g| < 1e-6", "loss", "‖numpy − torch‖∞")
    title = f"n={N}, d={D}, λ={p.l1}, η={p.lr}, {p.steps} steps, seed {SHOWN}"
    show_grid(title, head, (), found)
    for update in UPDATES:
        counts = [q.zeros_found(by_torch(q, update)[-1]) for q in map(lasso, range(SEEDS))]
        print(f"{update}: zeros found, of {ZEROS}, for seeds 0 to {SEEDS - 1}: {counts}")
    if to:
        to.mkdir(parents=True, exist_ok=True)
        largest = {update: np.abs(path).max(axis=1) for update, path in paths.items()}
        steps = zip(range(still.steps + 1), *largest.values(), strict=True)
        for name, lines in (("lasso", [head, *found]), ("gates", [("step", *UPDATES), *steps])):
            with replacing(to / f"{name}.csv") as new, new.open("w", newline="") as file:
                csv.writer(file).writerows(lines)
        draw(largest, to / "gates.png")


def draw(largest: dict[Update, Array], file: Path) -> None:
    """Draw the largest gate against steps (SAIDL Figure 9)."""
    from chimera.report import style

    figure = style.empty(7, 4)
    axis = figure.subplots()
    for name, gates in largest.items():
        axis.plot(gates, label=name)
    axis.set_yscale("symlog", linthresh=1e-3)
    axis.set_xlabel("step")
    axis.set_ylabel("largest |gate|")
    axis.legend(frameon=False)
    style.tidy(axis)
    style.save(figure, file, ["png"])


if __name__ == "__main__":
    run(main)
