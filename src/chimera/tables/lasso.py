"""The zeros that each update of gates finds in a small LASSO problem (SAIDL Table 9).

    min_g ½‖A g − b‖² + λ‖g‖₁,   A [20 10] normal,   b = A g_true,   5 of 10 in g_true are zero

    python -m chimera.tables.lasso [to=<folder>]

λ = 0.1, η = 0.01, 500 steps, from g normal. The paper gives no seed and no size of g_true: ours has
|g| in [0.5, 1] where it is not zero. How many of its zeros the minimiser has depends on A: the
table is of the first seed whose minimiser has all five, as the paper's. Ten seeds are counted
besides; there the proximal update has the zeros of the minimiser, whether 3, 4 or 5.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from chimera.adapter.sora import Gate
from chimera.config.arguments import read
from chimera.tables.command import Folder, run, show

Array = NDArray[np.float64]
Update = Literal["proximal", "sgd_l1"]
N, D, ZEROS, L1, LR, STEPS = 20, 10, 5, 0.1, 0.01, 500
SEEDS, SHOWN = 10, 2
UPDATES: tuple[Update, ...] = ("proximal", "sgd_l1")
USAGE = "python -m chimera.tables.lasso [to=<folder>]"


class Problem(NamedTuple):
    """A [n d], b [n], the sparse solution behind them [d], and where to begin [d]."""

    A: Array
    b: Array
    truth: Array
    start: Array


def problem(seed: int) -> Problem:
    """The problem of a seed."""
    random = np.random.default_rng(seed)
    A = random.normal(size=(N, D))
    truth = random.uniform(0.5, 1.0, D) * random.choice([-1.0, 1.0], D)
    truth[random.permutation(D)[:ZEROS]] = 0.0
    return Problem(A, A @ truth, truth, random.normal(size=D))


def by_numpy(p: Problem, update: Update) -> Array:
    """The last g, by the formulas."""
    g = p.start.copy()
    for _ in range(STEPS):
        gradient = p.A.T @ (p.A @ g - p.b)
        if update == "proximal":
            z = g - LR * gradient
            g = np.sign(z) * np.maximum(np.abs(z) - LR * L1, 0.0)
        else:
            g = g - LR * (gradient + L1 * np.sign(g))
    return g


def by_torch(p: Problem, update: Update) -> Array:
    """The last g, as gates of an adapter under torch's SGD and autograd."""
    A, b = torch.from_numpy(p.A), torch.from_numpy(p.b)
    gate = Gate(
        torch.from_numpy(p.start.copy()),
        update=update, threshold="lr_lambda", l1=L1, xi=0.0, penalty=0.0,
    )  # fmt: skip
    optimizer = torch.optim.SGD(gate.parameters(), lr=LR)
    for _ in range(STEPS):
        optimizer.zero_grad()
        (0.5 * (A @ gate.g - b).square().sum()).backward()
        gate.before_step(D)
        optimizer.step()
        gate.after_step(LR)
    return gate.g.detach().numpy().copy()


def loss(p: Problem, g: Array) -> float:
    """½‖A g − b‖² + λ‖g‖₁."""
    return float(0.5 * np.square(p.A @ g - p.b).sum() + L1 * np.abs(g).sum())


def zeros_found(p: Problem, g: Array) -> int:
    """The number of the solution's zeros that are exactly zero in g."""
    return int(((g == 0) & (p.truth == 0)).sum())


def main(arguments: Sequence[str]) -> None:
    """Print the table, and write it if a folder is named."""
    to = read(Folder, arguments, USAGE).to
    head = ("update", "by", "exact zeros", "|g| < 1e-6", "loss", "‖numpy − torch‖∞")
    one, rows = problem(SHOWN), []
    for update in UPDATES:
        reference = by_numpy(one, update)
        for name, g in (("NumPy", reference), ("torch", by_torch(one, update))):
            gap = "ref" if g is reference else f"{np.abs(g - reference).max():.2e}"
            exact, near = int((g == 0).sum()), int((np.abs(g) < 1e-6).sum())
            rows.append((update, name, str(exact), str(near), f"{loss(one, g):.4e}", gap))
    show(head, rows, f"n={N}, d={D}, λ={L1}, η={LR}, {STEPS} steps, seed {SHOWN}")
    for update in UPDATES:
        counts = [zeros_found(p, by_torch(p, update)) for p in map(problem, range(SEEDS))]
        print(f"{update}: zeros found of {ZEROS}, seeds 0 to {SEEDS - 1}: {counts}")
    if to:
        to.mkdir(parents=True, exist_ok=True)
        with (to / "lasso.csv").open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([head, *rows])


if __name__ == "__main__":
    run(main)
