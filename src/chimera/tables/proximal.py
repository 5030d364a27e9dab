"""Compare proximal and SGD-L1 updates of gates without a task gradient (SAIDL Table 8, Figure 9).

    python -m chimera.tables.proximal [to=<folder>]

r = 8 gates start at 1, η = 0.1, λ = 0.15, 200 steps. Each proximal step subtracts ηλ = 0.015 from
every gate, so all gates are zero after ⌈1/0.015⌉ = 67 steps. The subgradient step oscillates about
zero for ever. The torch version is the adapter's gate under torch's SGD; the NumPy version shares
no code with it.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from chimera.adapter.sora import Gate
from chimera.config.arguments import read
from chimera.tables.command import Folder, run, show

Path_ = NDArray[np.float64]  # [steps + 1, r], starting with the initial gates
R, LR, L1, STEPS = 8, 0.1, 0.15, 200
USAGE = "python -m chimera.tables.proximal [to=<folder>]"


def numpy_gates(update: Literal["proximal", "sgd_l1"], start: Path_) -> Path_:
    """Gates after each step [steps + 1, r], by the formulas in NumPy, from `start` [r]."""
    g, path = start.copy(), [start.copy()]
    for _ in range(STEPS):
        z = g - LR * np.zeros_like(g)
        if update == "proximal":
            g = np.sign(z) * np.maximum(np.abs(z) - LR * L1, 0.0)
        else:
            g = z - LR * L1 * np.sign(g)
        path.append(g.copy())
    return np.stack(path)


def torch_gates(update: Literal["proximal", "sgd_l1"], start: Path_) -> Path_:
    """Gates after each step [steps + 1, r], with an adapter's `Gate`, from `start` [r]."""
    gate = Gate(
        torch.from_numpy(start.copy()),
        update=update, threshold="lr_lambda", l1=L1, xi=0.0, penalty=0.0,
    )  # fmt: skip
    optimizer = torch.optim.SGD(gate.parameters(), lr=LR)
    path = [start.copy()]
    for _ in range(STEPS):
        gate.g.grad = torch.zeros_like(gate.g)
        gate.before_step(R)
        optimizer.step()
        gate.after_step(LR)
        path.append(gate.g.detach().numpy().copy())
    return np.stack(path)


def first_all_zero(path: Path_) -> int | None:
    """First step after which all gates are zero; None if there is none."""
    all_zero = np.flatnonzero((path == 0).all(axis=1))
    return int(all_zero[0]) if len(all_zero) else None


def main(arguments: Sequence[str]) -> None:
    """Print the table; write the curves to `to=` if given."""
    to = read(Folder, arguments, USAGE).to
    head, rows = ("update", "all zero at step", "gates left", "max |numpy − torch|"), []
    paths: dict[str, Path_] = {}
    updates: tuple[Literal["proximal", "sgd_l1"], ...] = ("proximal", "sgd_l1")
    for update in updates:
        ours, reference = torch_gates(update, np.ones(R)), numpy_gates(update, np.ones(R))
        paths[update] = ours
        gap, step = np.abs(ours - reference).max(), first_all_zero(ours)
        left = f"{np.count_nonzero(ours[-1])} of {R}"
        rows.append((update, "never" if step is None else str(step), left, f"{gap:.1e}"))
    show(head, rows, f"r={R}, lr={LR}, λ={L1}, {STEPS} steps")
    if to:
        to.mkdir(parents=True, exist_ok=True)
        with (to / "proximal.csv").open("w", newline="", encoding="utf-8") as file:
            curves = csv.writer(file)
            curves.writerow(["step", *paths])
            for step in range(STEPS + 1):
                curves.writerow([step, *(float(path[step].max()) for path in paths.values())])
        draw(paths, to / "proximal.png")


def draw(paths: dict[str, Path_], file: Path) -> None:
    """Draw the largest gate against steps (SAIDL Figure 9)."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axis = figure.subplots()
    for name, path in paths.items():
        axis.plot(np.abs(path).max(axis=1), label=name)
    axis.set_yscale("symlog", linthresh=1e-3)
    axis.set_xlabel("step")
    axis.set_ylabel("largest |gate|")
    axis.legend(frameon=False)
    axis.grid(alpha=0.3)
    figure.savefig(file, dpi=130)


if __name__ == "__main__":
    run(main)
