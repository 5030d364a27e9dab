"""Print the results of `benchmarks.mixers`; write them to `docs/cost.md` and `docs/cost.png`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from benchmarks.aims import AT, Aim
from chimera.paths import ROOT
from chimera.rundir.environment import environment

DOCS = ROOT / "docs"
Rows = dict[str, dict[str, Any]]
COMMAND = "python -m benchmarks mixers"


def write(rows: Rows, aims: Sequence[Aim], lengths: Sequence[int]) -> dict[str, Any]:
    """Print the tables, write both documents; return the contents of the results file."""
    table = _table(rows, lengths)
    head = ["| aim | wanted | reached | met | mixing alone |", "|---|---:|---:|---|---:|"]
    verdicts = [
        f"| {a.what} | {a.wanted} | {a.reached} | {'yes' if a.met else '**no**'} | {a.mixing} |"
        for a in aims
    ]
    print("\n".join([*table, "", *head, *verdicts]))
    DOCS.mkdir(exist_ok=True)
    text = [*_opening(), *table, "", "## Aims", "", *head, *verdicts, "", _ceiling(rows), ""]
    (DOCS / "cost.md").write_text("\n".join(text), encoding="utf-8")
    picture(rows)
    return {"rows": rows, "aims": [asdict(aim) for aim in aims]}


def _opening() -> list[str]:
    machine = environment()
    return [
        "# Cost of each mixer",
        "",
        f"Written by `{COMMAND}` on {machine['processor']}, 2 threads; do not edit."
        " Width 256, 4 heads, batch 1, fp32, causal; a forward and a backward pass with the"
        " gradient of the input. Times are medians of rounds, each of which measures every mixer."
        " Memory is the peak that torch's allocator holds beyond weights and input. The exponents"
        " t^ are slopes of log cost over log length from 1024 tokens on. Rows are ordered by time"
        f" at {AT} tokens. A dash marks a length at which a quadratic mixer needs too much time or"
        " memory. Patterns of several mixers are left out: they cost what their members cost.",
        "",
        "![time and memory against length](cost.png)",
        "",
    ]


def _ceiling(rows: Rows) -> str:
    """Explain why layers miss aims that the mixing alone meets: all layers have projections."""
    seconds = {name: row["seconds"][AT] for name, row in rows.items() if AT in row["seconds"]}
    projections = seconds["projections alone"]
    bounds = ", ".join(
        f"{seconds[name] / projections:.1f} × over {name}"
        for name in ("naive softmax", "naive retention", "naive linear")
    )
    return (
        f"The four projections of a layer alone take {1e3 * projections:.0f} ms at {AT} tokens, so"
        f" no layer of this width can gain more than {bounds}. The column *mixing alone* subtracts"
        " them on both sides. Retention has a fifth projection, for its gate, and a norm per head."
        " The layers of Mamba and mLSTM are twice as wide inside; their projections count on both"
        " sides of the ratio."
    )


def _table(rows: Rows, lengths: Sequence[int]) -> list[str]:
    heads = ["mixer", *(f"{t} ms" for t in lengths), "t^", *(f"{t} MB" for t in lengths), "t^"]
    lines = ["| " + " | ".join(heads) + " |", "|---|" + "---:|" * (len(heads) - 1)]
    for name in sorted(rows, key=lambda n: rows[n]["seconds"].get(AT, float("inf"))):
        row = rows[name]
        times = (_cell(row["seconds"].get(t), 1e3) for t in lengths)
        sizes = (_cell(row["bytes"].get(t), 1e-6) for t in lengths)
        label = f"`{name}`" if row["ours"] else f"*{name}*"
        slopes = (f"{row[k]:.2f}" for k in ("time_exponent", "memory_exponent"))
        cells = [label, *times, next(slopes), *sizes, next(slopes)]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _cell(value: float | None, unit: float) -> str:
    return "–" if value is None else f"{value * unit:,.0f}"


def picture(rows: Rows) -> None:
    """Draw time and memory against length, log-log, with the name at the end of each line."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(15, 9), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    colours = _colours(rows)
    _panel(left, rows, "seconds", 1e3, colours)
    left.set_title("time, forward and backward (ms)")
    _panel(right, rows, "bytes", 1e-6, colours)
    right.set_title("peak memory (MB)")
    figure.suptitle("Cost against length: width 256, 4 heads, batch 1, fp32, 2 threads, CPU")
    figure.savefig(DOCS / "cost.png", dpi=110)


def _panel(axis: Any, rows: Rows, key: str, unit: float, colours: dict[str, Any]) -> None:
    slope = {"seconds": "time_exponent", "bytes": "memory_exponent"}[key]
    for name, row in rows.items():
        x, y = list(row[key]), [v * unit for v in row[key].values()]
        style = "-" if row["ours"] else "--"
        axis.loglog(x, y, style, marker="o", markersize=3, linewidth=1.2, color=colours[name])
    ticks = sorted({t for row in rows.values() for t in row[key]})
    low, high = axis.get_ylim()
    ends = sorted((list(row[key].items())[-1][::-1], name) for name, row in rows.items())
    heights = _spread([y * unit for (y, _), _ in ends], low, high)
    for ((y, x), name), height in zip(ends, heights, strict=True):
        axis.annotate(
            f"{name}  t^{rows[name][slope]:.2f}",
            (x, y * unit),
            (ticks[-1] * 1.4, height),
            fontsize=8,
            color=colours[name],
            va="center",
            arrowprops={
                "arrowstyle": "-",
                "color": colours[name],
                "linewidth": 0.5,
                "relpos": (0, 0.5),
                "shrinkA": 1,
            },
        )
    axis.set_xticks(ticks, [str(t) for t in ticks])
    axis.minorticks_off()
    axis.set_xlim(ticks[0] * 0.9, ticks[-1] * 3.2)
    axis.set_ylim(low, high)
    axis.set_xlabel("tokens")
    axis.grid(alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)


def _spread(values: Sequence[float], low: float, high: float) -> list[float]:
    """Heights of labels: near the ascending `values`, but apart on a log axis from low to high."""
    gap = (math.log(high) - math.log(low)) / max(45, len(values) + 1)
    places = [math.log(v) for v in values]
    for _ in range(300):
        for i in range(1, len(places)):
            short = gap - (places[i] - places[i - 1])
            if short > 0:
                places[i] += short / 2
                places[i - 1] -= short / 2
    return [math.exp(p) for p in places]


def _colours(rows: Rows) -> dict[str, Any]:
    """Colours by name: dark ones in turn by time, so that neighbours differ; grey for peers."""
    from matplotlib import colormaps

    dark = [colormaps["Dark2"](i) for i in range(7)] + [colormaps["Set1"](i) for i in range(2)]
    ours = sorted(
        (n for n in rows if rows[n]["ours"]), key=lambda n: list(rows[n]["seconds"].values())[-1]
    )
    return dict.fromkeys(rows, "0.3") | {n: dark[i % len(dark)] for i, n in enumerate(ours)}
