"""SAIDL Table 16: speed and memory of its attention variants at 256 to 4096 tokens, batch 1.

The rows are the table's own (`experiments/saidl/hardware`), measured by the function that its
runs use (`chimera.task.cost`), in float32 as in the table and in bf16. A model is untrained: its
cost does not depend on its weights.
"""

from __future__ import annotations

import gc
from typing import Any

import torch

from benchmarks.gpu.setting import Setting
from chimera.config.compose import compose, plain
from chimera.paths import EXPERIMENTS
from chimera.task.cost import cost
from chimera.train.build import make_task

LENGTHS = (256, 512, 1024, 2048, 4096)
SMALL = ["model.dim=32", "model.depth=1", "model.heads=4", "model.max_len=64"]
VOCABULARY = 50257  # GPT-2's, as the preset names
AT_ONCE = 1 << 25


def main(setting: Setting) -> dict[str, Any]:
    """Measure each row at each length that there is time for."""
    lengths = (16, 32) if setting.tiny else LENGTHS
    names = sorted(file.stem for file in (EXPERIMENTS / "saidl" / "hardware").glob("*.yaml"))
    rows: dict[str, dict[str, dict[str, Any]]] = {}
    for precision in ("fp32", "bf16"):
        for name in names[:2] if setting.tiny else names:
            overrides = [f"+saidl/hardware={name}", f"task.cost_at=[{lengths[-1]}]"]
            config = plain(compose([*overrides, *(SMALL if setting.tiny else [])]))
            vocabulary = 64 if setting.tiny else VOCABULARY
            model = make_task(config, vocabulary).model.to(setting.device)
            row = rows.setdefault(f"{name} {precision}", {})
            for length in lengths:
                row[str(length)] = measured(setting, model, precision, length, vocabulary)
            print(name, precision, row[str(lengths[-1])], flush=True)
            del model
            gc.collect()
    return {"lengths": list(lengths), "rows": rows}


def measured(
    setting: Setting, model: torch.nn.Module, precision: str, length: int, vocabulary: int
) -> dict[str, Any]:
    """tokens/s of training, latency, peak memory; `error` where it does not fit."""
    if setting.left < 2:
        return {"error": "no time left"}
    try:
        with setting.autocast(precision):
            return dict(cost(model, length, vocabulary, AT_ONCE))
    except RuntimeError as error:
        return {"error": f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"}
