"""Count the zeros that each gate update finds in a small LASSO problem (SAIDL Table 9).

    min_g ½‖A g − b‖² + λ‖g‖₁,   A [20 10] normal,   b = A g_true,   5 of 10 in g_true are zero

    python -m chimera.tables.lasso [to=<folder>]

λ = 0.1, η = 0.01, 500 steps from a normal g. The paper states neither a seed nor the size of
g_true: here |g_true| is in [0.5, 1] where it is not zero. The number of zeros of the minimiser
depends on A. The table uses the first seed whose minimiser has all five zeros, as in the paper. The
zeros of ten seeds are printed below it: the proximal update has the zeros of the minimiser in all
of them, whether 3, 4 or 5.
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
    """A [n d], b [n], the sparse g_true [d] that gives b, and the initial g [d]."""

    A: Array
    b: Array
    truth: Array
    start: Array


def problem(seed: int) -> Problem:
    """Draw the problem of a seed."""
    random = np.random.default_rng(seed)
    A = random.normal(size=(N, D))
    truth = random.uniform(0.5, 1.0, D) * random.choice([-1.0, 1.0], D)
    truth[random.permutation(D)[:ZEROS]] = 0.0
    return Problem(A, A @ truth, truth, random.normal(size=D))


def by_numpy(p: Problem, update: Update) -> Array:
    """Minimise by the formulas in NumPy; return the last g [d]."""
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
    """Minimise with an adapter's `Gate`, torch's SGD and autograd; return the last g [d]."""
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
    """The objective ½‖A g − b‖² + λ‖g‖₁ at g [d]."""
    return float(0.5 * np.square(p.A @ g - p.b).sum() + L1 * np.abs(g).sum())


def zeros_found(p: Problem, g: Array) -> int:
    """Number of zeros of g_true that are exactly zero in g [d]."""
    return int(((g == 0) & (p.truth == 0)).sum())


def main(arguments: Sequence[str]) -> None:
    """Print the table; write it to `to=` if given."""
    to = read(Folder, arguments, USAGE).to
    head = ("update", "by", "exact zeros", "|g| < 1e-6", "loss", "‖numpy − torch‖∞")
    shown, rows = problem(SHOWN), []
    for update in UPDATES:
        reference = by_numpy(shown, update)
        for name, g in (("NumPy", reference), ("torch", by_torch(shown, update))):
            gap = "ref" if g is reference else f"{np.abs(g - reference).max():.2e}"
            exact, near = int((g == 0).sum()), int((np.abs(g) < 1e-6).sum())
            rows.append((update, name, str(exact), str(near), f"{loss(shown, g):.4e}", gap))
    show(head, rows, f"n={N}, d={D}, λ={L1}, η={LR}, {STEPS} steps, seed {SHOWN}")
    for update in UPDATES:
        counts = [zeros_found(p, by_torch(p, update)) for p in map(problem, range(SEEDS))]
        print(f"{update}: zeros found, of {ZEROS}, for seeds 0 to {SEEDS - 1}: {counts}")
    if to:
        to.mkdir(parents=True, exist_ok=True)
        with (to / "lasso.csv").open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([head, *rows])


if __name__ == "__main__":
    run(main)
