"""Write the figures of README and docs from `benchmarks/results/`: `python -m benchmarks.figures`.

Text between `<!-- figures: <name> -->` and `<!-- end of figures -->` is written by the function of
that name here, from the results file of the same name or those it reads. A test compares.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from benchmarks.card import controls, longer
from benchmarks.card.stored import read as read_profiles
from benchmarks.card.stored import read_longer
from benchmarks.claims import all_claims, claims
from benchmarks.cola import cola
from benchmarks.edges import edges
from benchmarks.equal_page import equalities
from benchmarks.gates import gates
from benchmarks.gradient_rules import gradient_rules
from benchmarks.grafts import grafts
from benchmarks.main_job import main_job
from benchmarks.markdown import table
from benchmarks.overtaking import overtaking
from benchmarks.plateau import plateau
from benchmarks.qdyt import qdyt
from benchmarks.rates import chosen_rates
from benchmarks.ratios import encoders, speed
from benchmarks.results_page import missing, results
from benchmarks.rise import rise
from benchmarks.scaling import scaling_law
from benchmarks.seeds import seeds
from benchmarks.spanish import spanish
from benchmarks.titan import titan, titan_baselines, titan_parts, titan_pattern
from benchmarks.train_step import MAIN, THEIRS
from benchmarks.two_machines import two_machines
from chimera.paths import ROOT

RESULTS = ROOT / "benchmarks" / "results"
FILES = (*("README.md", "docs/ternary.md", "docs/speed.md", "docs/results.md", "docs/scales.md"),)
MARKED = re.compile(r"(<!-- figures: (\w+) -->\n).*?(<!-- end of figures -->)", re.DOTALL)


def read(name: str) -> dict[str, Any]:
    """Contents of a results file."""
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return found


def source(name: str, result: dict[str, Any]) -> str:
    """Which command printed a table, on what."""
    machine, commit = result["machine"], result["machine"]["git"]
    features = ", ".join(result.get("features", [])) or "–"
    state = "" if not commit["changed"] else " with changes"
    return (
        f"`python -m benchmarks {name}`, commit `{commit['commit'][:7]}`{state}:"
        f" {machine['processor']}, {machine['cpus']} cores, instruction sets {features}.\n"
    )


def readme() -> str:
    """The paragraph of the README about speed."""
    rows, overhead = read("train_step")["rows"], read("overhead")["overhead"]
    ternary = read("ternary")
    plain = rows["chimera, BERT's parts, fp32"]
    main = rows["chimera, main job, fp32"]
    text = (
        f"A training step of the BERT-shaped encoder of {plain['parameters'] / 1e6:.1f} M"
        f" parameters runs at {plain['times_theirs']:.1f} times the tokens/s of Hugging Face's"
        f" `{THEIRS}` on the same two cores in fp32, the ternary main job at"
        f" {main['times_theirs']:.1f} times"
    )
    half = rows.get("chimera, main job, bf16")
    if half:
        text += f" (in bf16 at {half['times_theirs_in_fp32']:.1f} times their fp32 step)"
    body = ternary["decoding"]["body, times fp32"]["packed"]
    size = ternary["decoding"]["bytes"]
    text += (
        f". All that a run records adds {overhead:.1%} to a bare loop. The body of a packed ternary"
        f" decoder (dim 1024, depth 8) takes {size['packed']['body'] / 1e6:.0f} MB in place of"
        f" {size['fp32']['body'] / 1e6:.0f} and decodes {body:.1f} times as fast as in fp32"
        " ([docs/speed.md](docs/speed.md), [docs/ternary.md](docs/ternary.md)).\n"
    )
    return text


def convolution() -> str:
    """The README's sentence about convolutions."""
    store = ROOT / "experiments"
    profiles = read_profiles(store)
    return controls.sentence(profiles, longer.gather(read_longer(store), profiles))


def train_step() -> str:
    """Steps against Hugging Face's."""
    result = read("train_step")
    rows = [
        [
            name,
            f"{row['tokens_per_second']:,.0f}",
            f"{row['times_theirs']:.2f}",
            f"{row['times_theirs_in_fp32']:.2f}",
        ]
        for name, row in result["rows"].items()
    ]
    head = ["step", "tokens/s", "times theirs", "times theirs in fp32"]
    return f"{table(head, rows)}\n{source('train_step', result)}"


def profile_step() -> str:
    """Where a step's time goes."""
    result = read("profile_step")
    rows = []
    for name, row in result["rows"].items():
        others = "; ".join(
            f"{operation.replace('aten::', '')} {share:.1%}"
            for operation, share in row["others"].items()
        )
        rows.append([
            name, f"{1e3 * row['seconds']:.0f}", f"{row['products']:.0%}", f"{row['distance']:.0%}",
            others,
        ])  # fmt: skip
    head = ["step", "ms", "products", "of the machine's rate", "the ten largest others (calls)"]
    costs = "; ".join(
        f"{precision}: {added(precision, '')} with `simulate`,"
        f" {added(precision, ', int8')} with `int8`"
        for precision in ("fp32", "bf16")
        if precision in result["rows"]
    )
    return (
        f"{table(head, rows)}\nThe quantiser adds to a step without it: {costs}"
        f" ({' '.join(MAIN)}).\n\n{source('profile_step', result)[:-1]}"
        f" Threads: {result.get('threads', 2)}.\n"
    )


def added(precision: str, compute: str) -> str:
    """What a quantiser adds to the seconds of a step in this precision."""
    rows = read("profile_step")["rows"]
    with_it = rows[f"{precision}{compute}"]["seconds"]
    return f"{with_it / rows[f'{precision}, no quantiser']['seconds'] - 1:.0%}"


def compiled() -> str:
    """Steps with torch.compile by blocks."""
    result = read("compiled")
    rows = [
        [
            name, f"{1e3 * row['plain']:.0f}", f"{1e3 * row['compiled']:.0f}",
            f"{row['plain'] / row['compiled']:.2f}", f"{row['first']:.0f}",
        ]
        for name, row in result["rows"].items()
    ]  # fmt: skip
    head = ["main job", "plain, ms", "compiled, ms", "times as fast", "first step, s"]
    return f"{table(head, rows)}\n{source('compiled', result)[:-1]} Threads: {result['threads']}.\n"


def heap() -> str:
    """Steps where freed memory goes back to the system, and where it stays."""
    result = read("heap")
    rows = [
        [
            name,
            *(f"{1e3 * row[k]['seconds']:.0f}" for k in ("given back", "kept")),
            *(f"{row[k]['faults']:,.0f}" for k in ("given back", "kept")),
        ]
        for name, row in result["rows"].items()
    ]
    head = ["step", "given back, ms", "kept, ms", "faults of pages, given back", "kept"]
    return f"{table(head, rows)}\n{source('heap', result)[:-1]} Threads: {result['threads']}.\n"


def threads() -> str:
    """Steps alone and beside a busy process."""
    result = read("threads")
    rows = [
        [
            name,
            f"{1e3 * row['alone']:.0f}",
            f"{row['lost_alone']:+.0%}",
            f"{1e3 * row['beside']:.0f}",
            f"{row['fair']:.2f}",
        ]
        for name, row in result["rows"].items()
    ]
    head = ["setting", "alone, ms", "lost", "beside a busy process, ms", "times the fair share"]
    return f"{table(head, rows)}\n{source('threads', result)}"


def ternary() -> str:
    """Products, decoding and training with ternary weights."""
    result = read("ternary")
    kinds = ("fp32", "bf16", "int8", "packed")
    products = [
        [
            shape.replace("x", " × "),
            *(f"{1e3 * row[kind]:.3g}" if kind in row else "–" for kind in kinds),
        ]
        for shape, row in result["products"].items()
    ]
    decoding, size = result["decoding"], result["decoding"]["bytes"]
    decoded = [
        [
            name,
            *(
                f"{1e3 * decoding[part][name]:.2f} ({decoding[f'{part}, times fp32'][name]:.1f} ×)"
                for part in ("body", "whole")
            ),
            *(f"{size[name][part] / 1e6:.0f}" for part in ("body", "whole")),
        ]
        for name in ("packed", "fp32", "bf16")
    ]
    training = result["training"]
    trained = [
        [name, f"{1e3 * value:.0f}", f"{training['times fp32'][name]:.2f}"]
        for name, value in training["seconds"].items()
    ]
    widths = ["decoder", "body, ms a token", "with 32,000 entries", "body, MB", "whole, MB"]
    return (
        f"{table(['product m × k × n, ms', *kinds], products)}\n"
        f"{table(widths, decoded)}\n"
        f"{table(['training step', 'ms', 'times fp32'], trained)}\n"
        f"{source('ternary', result)[:-1]} Kernel path: {result['kernel']}; threads:"
        f" {result['threads']}.\n"
    )


WRITERS: dict[str, Callable[[], str]] = {
    function.__name__: function
    for function in (
        *(readme, main_job, convolution, train_step, profile_step, compiled, heap),
        *(threads, ternary),
        *(results, cola, missing, claims, all_claims, qdyt, gradient_rules, grafts, plateau),
        *(seeds, titan, titan_parts, overtaking, equalities, chosen_rates, edges, rise),
        *(encoders, gates, speed, scaling_law, two_machines),
        *(titan_baselines, titan_pattern, spanish),
    )
}


def written(text: str) -> str:
    """A document with its figures written anew."""
    return MARKED.sub(lambda found: found[1] + WRITERS[found[2]]() + found[3], text)


def main() -> None:
    """Write the figures of all documents."""
    for name in FILES:
        file = ROOT / name
        file.write_text(written(file.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
