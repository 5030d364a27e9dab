"""Train the small shape of TITAN's preset in fp16 with padding, beside float32 of three seeds.

    python -m benchmarks.half_precision              runs what is missing, then prints the table
    python -m benchmarks.half_precision --steps 300 --batch 4

The preset's own precision is fp16; scale=small sets fp32, for speed. Blocks of the text are cut to
16 to 128 tokens, so that every batch is padded. The scaler leaves a step out where its scale drops.
The losses are means of the task's loss over each fifth of the steps, on the same batches for equal
seeds. It prints the last, and the root mean square difference over the fifths: of fp16 and float32
at equal seeds, and of two seeds in float32, the seed noise.
"""

from __future__ import annotations

import argparse
import csv
import math
import statistics
from collections.abc import Iterable
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

from chimera.cli.train import main as train
from chimera.data.batch import mlm
from chimera.data.batch.collate import Example
from chimera.data.batch.loader import Key
from chimera.paths import ROOT

SHORTEST = 16


class RaggedBlocks(mlm.MaskedBlocks):
    """Masked blocks cut to a length that their number decides; a masked position stays in each."""

    def __getitem__(self, key: Key) -> Example:
        whole = super().__getitem__(key)
        count = SHORTEST + (whole.number * 7919) % (len(whole.ids) - SHORTEST + 1)
        count = max(count, int(whole.positions[0]) + 1)
        inside = whole.positions < count
        return Example(
            whole.number, whole.ids[:count], whole.positions[inside], whole.targets[inside]
        )


def run(folder: Path, precision: str, seed: int, steps: int, batch: int) -> list[dict[str, Any]]:
    """Rows of steps.csv of one run, which is trained unless it is there."""
    directory = folder / f"{precision}-{seed}-{steps}-{batch}"
    if not (directory / "run.json").exists():
        train(
            [
                "preset=titan_bert_ultra", "scale=small", f"precision={precision}", f"seed={seed}",
                f"trainer.max_steps={steps}", f"data.batch_size={batch}", "data.max_bytes=2000000",
                "trainer.limit_test_batches=5", f"trainer.val_check_interval={steps}",
                "logger=none", "trainer.progress=none", f"run_dir={directory}",
            ]
        )  # fmt: skip
    with (directory / "steps.csv").open() as file:
        return list(csv.DictReader(file))


def facts(rows: list[dict[str, Any]]) -> tuple[list[float], list[int]]:
    """Mean loss of each fifth of the steps, and the steps that the scaler left out."""
    scales = [65536.0 if rows[0]["scaler_scale"] != "1.0" else 1.0]
    scales += [float(row["scaler_scale"]) for row in rows]
    skipped = [i for i, (a, b) in enumerate(pairwise(scales), 1) if b < a]
    size = len(rows) // 5
    losses = [float(row["loss"]) for row in rows]
    return [statistics.mean(losses[i * size : (i + 1) * size]) for i in range(5)], skipped


def apart(pairs: Iterable[tuple[list[float], list[float]]]) -> float:
    """Root mean square difference over the fifths of all pairs of runs."""
    squares = [(a - b) ** 2 for one, other in pairs for a, b in zip(one, other, strict=True)]
    return math.sqrt(statistics.mean(squares))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=ROOT / "runs" / "half_precision")
    options = parser.parse_args()
    mlm.MaskedBlocks = RaggedBlocks  # type: ignore[misc]
    print("| precision | seed | loss | steps left out |\n| --- | --- | --- | --- |", flush=True)
    losses: dict[str, list[list[float]]] = {"fp32": [], "fp16": []}
    for seed in range(options.seeds):
        for precision, found in losses.items():
            rows = run(options.folder, precision, seed, options.steps, options.batch)
            fifths, skipped = facts(rows)
            found.append(fifths)
            print(f"| {precision} | {seed} | {fifths[-1]:.4f} | {skipped or 'none'} |", flush=True)
    pairs = zip(losses["fp16"], losses["fp32"], strict=True)
    print(f"\nfp16 and float32 at equal seeds differ by {apart(pairs):.4f}", end="")
    if options.seeds > 1:
        print(f", two seeds of float32 by {apart(combinations(losses['fp32'], 2)):.4f}")


if __name__ == "__main__":
    main()
