"""The page docs/gpu.md of what `make gpu` measured: tables from `benchmarks/results/gpu/`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from benchmarks.gpu.__main__ import RESULTS
from benchmarks.main_job import known
from benchmarks.markdown import table

PACKED = ("packed", "one byte", "bf16", "fp16")


def read(part: str) -> dict[str, Any]:
    """Contents of a part's file."""
    found: dict[str, Any] = json.loads((RESULTS / "gpu" / f"{part}.json").read_text())
    return found


def _source(part: str) -> str:
    """Machine, versions and commit of a part's file."""
    machine = read(part)["machine"]
    state = " with changes" if machine["git"]["changed"] else ""
    return (
        f"`{part}.json`, commit `{machine['git']['commit'][:7]}`{state}: {machine['gpu']}"
        f" ({machine['gpu_gib']} GiB), {machine['cpus']} cores of {machine['processor']}, torch"
        f" {machine['torch']}, Python {machine['python']}.\n"
    )


def gpu_contract() -> str:
    """Errors as shares of their bounds, by precision, of torch's own paths; what kernels change."""
    result = read("contract")
    rows = []
    for half in ("fp32", "bf16", "fp16"):
        found = [r for r in result["rows"] if r["half"] == half and not r["kernels"]]
        worst = max(found, key=_share)
        inside = sum(_share(row) <= 1 for row in found)
        where = f"`{worst['group']}={worst['name']}`, {worst['what']}"
        rows.append([half, f"{len(found):,}", f"{inside:,}", f"{_share(worst):.2f}", where])
    head = ["precision", "passes", "inside the bound", "largest error ÷ bound", "of"]
    names = {(row["group"], row["name"]) for row in result["rows"]}
    done = result["cases"] - result["not_run"]
    said = (
        f"{done} of {result['cases']} cases had time, with {len(names)} components;"
        f" {len(result['failed'])} failed, {len(result['refused'])} were refused. Run again with"
        f" fused kernels, {_changed(result['rows'])} passes in half precision have another error."
    )
    return f"{table(head, rows)}\n{said}\n\n{_source('contract')}"


def _changed(rows: list[dict[str, Any]]) -> int:
    """Passes in half precision whose errors the kernels change."""
    errors: dict[tuple[Any, ...], set[float]] = {}
    for row in rows:
        key = tuple(row[name] for name in ("group", "name", "causal", "half", "what"))
        if row["half"] != "fp32":
            errors.setdefault(key, set()).add(row["error"])
    return sum(len(found) > 1 for found in errors.values())


def _share(row: dict[str, Any]) -> float:
    return float(row["error"] / row["bound"])


def gpu_presets() -> str:
    """Steps of the papers' presets."""
    rows = []
    for row in read("presets")["rows"]:
        extra = [word for word in row["choices"] if word.startswith("model.gradient_check")]
        kept = {"true": ", checkpointed", "false": ", not checkpointed"}
        name = row["name"] + (kept[extra[0].partition("=")[2]] if extra else "")
        first = [name, f"{row['precision']}, {row['batch']} × {row['length']}"]
        if "error" in row:
            rows.append([*first, row["error"], "", "", ""])
            continue
        rows.append([
            *first, f"{1e3 * row['seconds']:.0f}", f"{row['tokens_per_second']:,.0f}",
            f"{row['mfu']:.1%}", f"{row['peak_gib']:.1f}",
        ])  # fmt: skip
    head = ["model", "precision, batch", "ms a step", "tokens/s", "MFU", "peak GiB"]
    return f"{table(head, rows)}\n{_source('presets')}"


def gpu_lengths() -> str:
    """Speed of training by length, and memory at the longest; rows without one are left out."""
    result = read("lengths")
    longest = str(result["lengths"][-1])
    rows, missing = [], []
    for name, cells in result["rows"].items():
        if any("error" in cell for cell in cells.values()):
            missing.append(name)
            continue
        speeds = [f"{cells[str(n)]['tokens_per_second']:,.0f}" for n in result["lengths"]]
        last = cells[longest]
        rows.append([
            f"`{name.split()[0]}`, {name.split()[1]}", *speeds,
            f"{last['latency_ms']:.1f}", f"{last['peak_allocated_mb']:,.0f}",
        ])  # fmt: skip
    head = ["row of `saidl/hardware`", *(f"tokens/s at {n}" for n in result["lengths"])]
    head += [f"ms forward at {longest}", f"peak MB at {longest}"]
    said = f"No time was left for {', '.join(missing)}.\n\n" if missing else ""
    return f"{table(head, rows)}\n{said}{_source('lengths')}"


def gpu_packed() -> str:
    """Layers with packed ternary weights, in microseconds of a CUDA graph."""
    result = read("packed")
    measured = [row for row in result["rows"] if "error" not in row]
    rows = [
        [
            f"{row['k']} → {row['n']}", str(row["m"]),
            *(f"{1e6 * row[name]['graph_seconds']:.0f}" for name in PACKED),
            f"{row['bf16']['bytes'] / row['packed']['bytes']:.1f}",
        ]
        for row in measured
    ]  # fmt: skip
    exact = sum(row["against_cpu"]["exact"] and not row["against_cpu"]["wrong"] for row in measured)
    head = ["layer", "tokens", *(f"{name}, µs" for name in PACKED), "bf16's bytes ÷ packed"]
    said = (
        f"Of {len(measured)} rows {exact} have the sums of the CPU to the bit;"
        f" {len(result['rows']) - len(measured)} more had no time.\n\n"
    )
    return f"{table(head, rows)}\n{said}{_source('packed')}"


def gpu_job() -> str:
    """The default job on the card beside the same seed on processors."""
    lines = [*_runs(), *_processors()]
    head = ["default job, seed 0", "validation perplexity", "seconds"]
    return f"{table(head, lines)}\n{_source('job')}"


def _runs() -> Iterator[list[str]]:
    result = read("job")
    for precision, run in result["runs"].items():
        name = f"{result['machine']['gpu']}, {precision}"
        if "error" in run:
            yield [name, run["error"], ""]
            continue
        yield [name, f"{run['metrics']['val/perplexity']:.1f}", f"{run['seconds']:.0f}"]


def _processors() -> Iterator[list[str]]:
    for name, found in known().items():
        first = next(run for run in found["runs"] if run["seed"] == 0)
        yield [
            f"{name}, {found['machine']['cpus']} cores, fp32",
            f"{first['perplexity']:.1f}",
            f"{first['seconds']:.0f}",
        ]
