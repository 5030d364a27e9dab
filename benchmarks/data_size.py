"""Memory and seconds of preparing text of several sizes: `python -m benchmarks data_size [MB …]`.

The text is made from the words of Python's documentation by frequency, as JSON lines of 1 to 8 kB,
so its size is free and its words are those of prose. Each size is prepared in a fresh process
(tokenizer learnt, text divided and encoded) by as many processes as there are cores. Memory is the
peak of the proportional set size, the process and its workers together, read ten times a second.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

SIZES = (10, 100, 1000)  # MB
_WORKER = "--prepare"


def main(*sizes: str) -> dict[str, Any]:
    """Print the table of `SIZES` and return its rows; of other sizes in MB, print it only."""
    rows = table(tuple(map(int, sizes)) or SIZES)
    return {} if sizes else {"rows": rows}


def table(sizes: tuple[int, ...]) -> list[dict[str, float]]:
    """Rows of memory and seconds, printed as they are measured, and their slope."""
    rows = []
    for size in sizes:
        with tempfile.TemporaryDirectory() as folder:
            rows.append(measured(size, Path(folder)))
        print(rows[-1], flush=True)
    if len(rows) > 1:
        first, last = rows[-2:]
        slope = (last["peak_gb"] - first["peak_gb"]) / (last["mb"] - first["mb"]) * 1000
        print(f"peak at 100 GB by the slope of the last two: {last['peak_gb'] + 99 * slope:.2f} GB")
    return rows


def measured(size: int, folder: Path) -> dict[str, float]:
    """Prepare about `size` MB of text in a fresh process."""
    text = folder / "text.jsonl"
    write_text(text, size * 1_000_000)
    command = [sys.executable, "-m", "benchmarks.data_size", _WORKER, str(text)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    peak = 0.0

    def watch() -> None:
        nonlocal peak
        while process.poll() is None:
            peak = max(peak, sum(map(proportional, family(process.pid))))
            time.sleep(0.1)

    watcher = threading.Thread(target=watch)
    watcher.start()
    out, _ = process.communicate()
    watcher.join()
    row: dict[str, float] = json.loads(out.splitlines()[-1])
    return {"mb": text.stat().st_size / 1e6, "peak_gb": peak / 1e9, **row}


def write_text(file: Path, size: int) -> None:
    """Write JSON lines of about `size` bytes of words, drawn by their frequencies."""
    import pydoc_data.topics

    words, counts = np.unique(
        " ".join(pydoc_data.topics.topics.values()).split(), return_counts=True
    )
    bounds = np.cumsum(counts) / counts.sum()
    rng = np.random.default_rng(0)
    written = 0
    with file.open("w", encoding="utf-8") as stream:
        while written < size:
            drawn = words[np.searchsorted(bounds, rng.random(rng.integers(150, 1200)))]
            row = json.dumps({"text": " ".join(drawn.tolist())}) + "\n"
            written += stream.write(row)


def prepare_one(text: str) -> None:
    """Prepare a file as a run does; print the seconds of each stage as JSON."""
    from chimera.data.corpus.text import Text
    from chimera.data.encode import prepare as stages
    from chimera.data.tokenizer.sentence_piece import SentencePiece

    corpus = Text(path=text, cache_dir=str(Path(text).parent / "cache"))
    start = time.perf_counter()
    report = stages.prepare(corpus, SentencePiece(num_threads=1)).report
    seconds = time.perf_counter() - start
    tokenizer, encode = report["tokenizer_seconds"], report["packing_seconds"]
    tokens = sum(split["tokens"] for split in report["splits"].values())
    row = {"seconds": seconds, "tokenizer": tokenizer, "encode": encode, "tokens": tokens}
    print(json.dumps({**row, "divide": seconds - tokenizer - encode}))


def family(process: int) -> list[int]:
    """A process and its descendants."""
    try:
        children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    except OSError:
        return []
    return [process, *(each for child in children for each in family(int(child)))]


def proportional(process: int) -> int:
    """Bytes of memory of a process; a page that n processes share counts 1/n."""
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)


if __name__ == "__main__":
    prepare_one(sys.argv[2])
