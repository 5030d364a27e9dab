"""Every mixer on the device in fp32, bf16 and fp16, against float32 on the CPU.

Logits, gradients, and decoding of a padded prompt and of tokens after it: parallel, chunkwise and
recurrent forms in one small decoder or encoder (`tests.contract.precision`). Errors only: the
bounds of half precision are measured on CPUs (docs/dev/half-precision.md).
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from tests.contract import precision

from benchmarks.gpu.job import HALF, Setting, reason
from chimera.contract_tests import zoo

JOBS = 4


def main(setting: Setting, part: str) -> dict[str, Any]:
    """Errors of every fourth mixer, by pass and precision."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    names = ["linear", "retnet"] if setting.tiny else zoo.distinct("mixer")[int(part) :: JOBS]
    rows: dict[str, Any] = {}
    for case in precision.cases(names, length=16 if setting.tiny else 128, padding="both", dim=64):
        try:
            rows[f"{case.name} {'decoder' if case.causal else 'encoder'}"] = errors(setting, case)
        except Exception as error:  # noqa: BLE001 - a mixer that fails says so
            rows[f"{case.name} failed"] = reason(error)
    setting.ready()
    return rows


def errors(setting: Setting, case: precision.Case) -> dict[str, Any]:
    """Largest error of each pass in each precision."""
    torch.manual_seed(0)
    model = case.model()
    want = precision.passes(model, case, nullcontext)
    found: dict[str, Any] = {}
    for name in ("fp32", *HALF):
        context = partial(setting.autocast, name)
        got = precision.passes(model, case, context, scaled=name == "fp16", device=setting.device)
        found[name] = {
            what: max(precision._distances(got[what], tensors).values())
            for what, tensors in want.items()
        }
    return found
