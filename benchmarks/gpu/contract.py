"""Every component on the device against float32 on the CPU, within the bounds of half precision.

The rows are those of `tests.contract.precision`, with the half-precision passes on the device, in
fp32, bf16 and fp16. Where flash-linear-attention is installed, mixers are measured with its
kernels and with torch's own paths. fp32 (without TF32) is held to 1e-3 of the worst token or
parameter: sums in another order.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from importlib.util import find_spec
from multiprocessing import TimeoutError, get_context
from typing import Any

import torch
from tests.contract import precision

from benchmarks.gpu.setting import Setting, kernels
from chimera.errors import UserError

#: Width of the models: heads of 16 or more, as the kernels need.
DIM, LENGTH, DRAWS = 128, 128, 2
SINGLE = 1e-3
TINY = ("linear", "retnet", "bitnet158")


def main(setting: Setting) -> dict[str, Any]:
    """Measure all cases that fit the time, in as many processes as there are cores."""
    length = 16 if setting.tiny else LENGTH
    cases = list(
        precision.cases(TINY if setting.tiny else (), length=length, padding="both", dim=DIM)
    )
    variants = [True, False] if find_spec("fla") and setting.device == "cuda" else [False]
    rows: list[dict[str, Any]] = []
    refused, failed, unfinished = [], [], len(cases)
    one = partial(case_rows, device=setting.device, variants=variants)
    workers = 1 if setting.tiny else max(1, min(12, (os.cpu_count() or 2) - 2))
    with get_context("spawn").Pool(workers) as pool, suppress(TimeoutError):
        results = pool.imap_unordered(one, cases)
        while unfinished:  # the processes end with the block, whatever they are at
            found, refusal, failure = results.next(timeout=max(0.0, setting.left))
            unfinished -= 1
            rows += found
            refused += [refusal] if refusal else []
            failed += [failure] if failure else []
    outside = [row for row in rows if not row["error"] <= row["bound"]]
    print(f"{len(rows)} passes, {len(outside)} outside their bound, {unfinished} cases not run")
    for line in (*(f"outside: {row}" for row in outside), *(f"failed: {x}" for x in failed)):
        print(line)
    error = {"error": f"{len(failed)} cases failed"} if failed else {}
    return {
        "passes": len(rows), "outside": outside, "cases": len(cases), "not_run": unfinished,
        "refused": refused, "failed": failed, "kernels": variants, "rows": rows, **error,
    }  # fmt: skip


def case_rows(
    case: precision.Case, device: str, variants: list[bool]
) -> tuple[list[dict[str, Any]], str, str]:
    """Rows of one case, the words of a refusal, and those of a failure."""
    torch.set_num_threads(1)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    rows = []
    try:
        for on in variants:
            with kernels(on):
                for row in precision.measure(case, draws=DRAWS, device=device, single=SINGLE):
                    flat = asdict(row)
                    rows.append({**flat.pop("case"), **flat, "kernels": on})
    except UserError as refusal:
        return rows, str(refusal), ""
    except Exception as error:  # noqa: BLE001 - a case that fails says so, and the others go on
        line = str(error).partition("\n")[0]
        return rows, "", f"{case.group}={case.name} {type(error).__name__}: {line}"
    return rows, "", ""
