"""What of a run's directory has to stay the same, read from its files alone."""

from __future__ import annotations

import csv
import hashlib
import json
import re
from pathlib import Path
from typing import Any

COLUMNS = ("loss", "grad_norm", "accuracy", "learning_rate", "scaler_scale", "epoch")
#: Of run.json, besides the metrics.
FACTS = ("identity", "parameters", "trained", "bytes", "tokenizer", "steps", "validations")
FACTS += ("skipped",)
#: Metrics of the clock or of the machine's memory.
CLOCK = re.compile(r"second|latency|peak_|memory")


def gather(run: Path, *, named: bool) -> dict[str, Any]:
    """Numbers as the text that they are written as.

    Args:
        run: its directory.
        named: the directory has the name that the run gave it.
    """
    found: dict[str, Any] = {"directory": run.name if named else None}
    if (run / "steps.csv").exists():
        with (run / "steps.csv").open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        found["steps"] = {column: [row[column] for row in rows] for column in COLUMNS}
    if (run / "run.json").exists():
        record = json.loads((run / "run.json").read_text(encoding="utf-8"), parse_float=str)
        found["facts"] = {key: record.get(key) for key in FACTS}
        found["corpus"] = record["data"].get("splits")
        metrics = record["metrics"]
        found["metrics"] = {k: v for k, v in metrics.items() if not CLOCK.search(k)}
    last = run / "checkpoints" / "last.ckpt"
    found["weights"] = weights(last) if last.exists() else None
    found["files"] = sorted(
        p.relative_to(run).as_posix()
        for folder in (run, run / "checkpoints")
        for p in (folder.iterdir() if folder.is_dir() else ())
    )
    return found


def weights(checkpoint: Path) -> str:
    """A hash of all tensors of a checkpoint's model, whatever they are called."""
    import torch

    state = torch.load(checkpoint, map_location="cpu", weights_only=True)["state_dict"]
    digests = []
    for tensor in state.values():
        flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
        head = f"{tuple(tensor.shape)} {tensor.dtype} ".encode()
        digests.append(hashlib.sha256(head + flat.numpy().tobytes()).hexdigest())
    return hashlib.sha256("".join(sorted(digests)).encode()).hexdigest()[:16]


def weights_of_export(folder: Path) -> dict[str, str]:
    """A hash of each file of weights that was exported."""
    files = sorted(folder.rglob("*.safetensors"))
    return {f.name: hashlib.sha256(f.read_bytes()).hexdigest()[:16] for f in files}
